"""What llama.cpp would answer with an abort, found in a file's header before it is loaded.

llama.cpp compares the shapes of the tensors that it loads with the file's numbers and refuses politely. Numbers that it
computes with first, or that no tensor's shape depends on, are checked here.
"""

from __future__ import annotations

import math

from edge_vl.errors import ModelError
from edge_vl_llama_cpp.files import GGUFFile
from edge_vl_llama_cpp.required_tensors import check_projector_tensors, check_text_tensors

__all__ = ["check_cutting", "check_projector_file", "check_text_file"]

_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_MAX_SIDE = 16_384

_FIXED_GRID = ("gemma3", "idefics3", "internvl")
"""Kinds of projector whose table of positions has exactly the patches of one tile, and perhaps a class token."""

_FIRST_LINEAR = {
    "idefics3": "mm.model.fc.weight",
    "internvl": "mm.model.mlp.1.weight",
    "qwen2vl_merger": "mm.0.weight",
    "qwen2.5vl_merger": "mm.0.weight",
}
"""The tensor that merged patches go into."""

_MAX_TILES = 256
_MAX_COLOUR = 1e6
_KIND_NAMES = {4: "uint32", 5: "int32", 6: "float32", 7: "bool", 8: "string"}
_KINDS = {
    8: ("general.name", "general.description", "clip.projector_type", "clip.vision.projector_type"),
    7: ("clip.has_vision_encoder", "clip.has_audio_encoder", "clip.use_gelu", "clip.use_silu"),
    6: ("clip.vision.attention.layer_norm_epsilon",),
    5: ("clip.minicpmv_version",),
    4: (
        "clip.minicpmv_query_num",
        "clip.vision.attention.head_count",
        "clip.vision.attention.head_count_kv",
        "clip.vision.attention.head_dim",
        "clip.vision.block_count",
        "clip.vision.embedding_length",
        "clip.vision.feed_forward_length",
        "clip.vision.image_max_pixels",
        "clip.vision.image_min_pixels",
        "clip.vision.image_size",
        "clip.vision.n_wa_pattern",
        "clip.vision.patch_size",
        "clip.vision.preproc_image_size",
        "clip.vision.preproc_max_tiles",
        "clip.vision.preproc_min_tiles",
        "clip.vision.projection_dim",
        "clip.vision.projector.scale_factor",
        "clip.vision.spatial_merge_size",
        "clip.vision.window_size",
    ),
}
"""The type that llama.cpp asserts of a vision encoder's value, by GGUF's number."""

_SECTIONED = ("qwen2vl", "qwen3vl")
"""Architectures whose rotated dimensions have sections."""


def check_text_file(file: GGUFFile) -> None:
    """Refuse a text model whose numbers make no sense.

    Raises:
        ModelError: it says which.
    """
    if file.values.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        raise ModelError(f"{file.path} has no tokenizer; download a complete file", file=str(file.path))
    layers, width = file.number("block_count"), file.number("embedding_length")
    _check(file, 0 < layers <= _MAX_LAYERS, f"{layers} layers")
    _check(file, width > 0, f"a width of {width}")
    context = file.number("context_length")
    _check(file, context < 1 << 31, f"a context of {context} tokens")
    repeated = file.repeated_token
    _check(file, not repeated, f"two tokens with the text {repeated!r:.40}")
    _check_epsilons(file)
    _check_rope(file)
    all_heads, all_kv_heads = file.numbers("attention.head_count"), file.numbers("attention.head_count_kv")
    if len(all_heads) == 1:
        all_heads *= len(all_kv_heads)
    for heads, kv_heads in zip(all_heads, all_kv_heads, strict=False):
        _check(
            file,
            0 <= kv_heads <= heads and (not kv_heads or heads % kv_heads == 0),
            f"{heads} heads with {kv_heads} key and value heads",
        )
    check_text_tensors(file)


def _check_rope(file: GGUFFile) -> None:
    """Compare the widths of heads with the dimensions that are rotated."""
    rope = file.values.get(f"{file.architecture}.rope.dimension_count")
    _check(file, not isinstance(rope, int) or (rope > 0 and rope % 2 == 0), f"{rope} rotated dimensions")
    width, heads = file.number("embedding_length"), file.number("attention.head_count")
    keys = file.number("attention.key_length")
    if not keys and heads:
        _check(file, heads <= width, f"{heads} heads in a width of {width}")
        keys = width // heads
    rotated = file.number("rope.dimension_count") or keys
    if len(file.numbers("attention.head_count")) == 1 and keys:
        _check(file, rotated <= keys, f"{rotated} rotated dimensions in keys {keys} wide")
    for key, value in file.values.items():
        if key.startswith(f"{file.architecture}.rope.") and isinstance(value, float):
            _check(file, math.isfinite(value), f"{value} for {key}")
            _check(file, value > 0 or "freq_base" not in key, f"{value} for {key}")
    sections = file.numbers("rope.dimension_sections")
    if sections:
        _check(file, min(sections) >= 0 and sum(sections) <= rotated, f"sections {sections} in {rotated} dimensions")
    if file.architecture.startswith(_SECTIONED):
        _check(file, 3 <= len(sections) <= 4 and sum(sections) > 0, f"sections of rotated dimensions {sections}")
    if file.architecture == "qwen2vl":
        values = file.number("attention.value_length") or width // heads
        _check(file, keys == values == rotated, f"keys, values and rotation {keys}, {values} and {rotated} wide")
        _check(file, heads * keys == width, f"{heads} heads {keys} wide in a width of {width}")


def _check_epsilons(file: GGUFFile) -> None:
    for key, value in file.values.items():
        if key.startswith(f"{file.architecture}.") and key.endswith("epsilon") and isinstance(value, float):
            _check(file, math.isfinite(value) and 0 <= value < 1, f"{value} for {key}")


def _check_kinds(file: GGUFFile) -> None:
    for kind, keys in _KINDS.items():
        for key in keys:
            found = file.header.kinds.get(key, kind)
            _check(file, found == kind, f"{key} as a value of type {found}, which is not {_KIND_NAMES[kind]}")


def check_projector_file(file: GGUFFile) -> None:
    """Refuse a vision encoder whose numbers make no sense or do not fit its tensors.

    Raises:
        ModelError: it says which.
    """
    _check_kinds(file)
    _check_epsilons(file)
    width, heads = file.number("vision.embedding_length"), file.number("vision.attention.head_count")
    side, patch = file.number("vision.image_size"), file.number("vision.patch_size")
    _check(file, file.number("vision.block_count") > 0, f"{file.number('vision.block_count')} layers in its encoder")
    _check(file, 0 < heads <= width and width % heads == 0, f"{heads} heads in a width of {width}")
    _check(file, 0 < patch <= side <= _MAX_SIDE, f"tiles of {side} pixels in patches of {patch}")
    kernel = file.shape("v.patch_embd.weight")
    if len(kernel) == 4:
        fits = kernel[:2] == (patch, patch) and kernel[3] == width
        _check(file, fits, f"patches of {patch} pixels and a width of {width} with a kernel of shape {kernel}")
    grid = side // patch
    table = file.shape("v.position_embd.weight")
    if file.projector_type in _FIXED_GRID and len(table) == 2:
        _check(file, table[1] - grid * grid in (0, 1), f"{grid}x{grid} patches with {table[1]} positions")
    factor = file.number("vision.projector.scale_factor") or (4 if file.projector_type == "gemma3" else 2)
    if file.projector_type in _FIXED_GRID:
        _check(file, grid % factor == 0, f"{grid} patches a side, merged by {factor}")
    linear = file.shape(_FIRST_LINEAR.get(file.projector_type, ""))
    if linear:
        merged = width * (4 if "qwen" in file.projector_type else factor * factor)
        _check(file, linear[0] == merged, f"merged patches {merged} wide with a projector that takes {linear[0]}")
    if file.projector_type == "idefics3":
        key = "vision.projector.scale_factor"
        _check(file, file.number(key) > 1, f"{file.number(key)} for clip.{key}")
        edge = file.number("vision.preproc_image_size")
        _check(file, edge * edge <= _MAX_TILES * side * side, f"pictures of {edge} pixels cut into tiles of {side}")
    if file.projector_type == "internvl":
        lowest = file.values.get("clip.vision.preproc_min_tiles", 1)
        most = file.values.get("clip.vision.preproc_max_tiles", 12)
        fits = lowest >= 1 and lowest * lowest <= most <= _MAX_TILES
        _check(file, fits, f"pictures cut into {lowest} to {most} tiles")
    if file.projector_type.startswith("qwen"):
        merge = file.values.get("clip.vision.spatial_merge_size", 2)
        _check(file, merge == 2, f"{merge} for clip.vision.spatial_merge_size")
    for key in ("image_mean", "image_std"):
        colours = file.values.get(f"clip.vision.{key}", [0.5] * 3)
        is_fine = isinstance(colours, list) and len(colours) == 3
        is_fine = is_fine and all(isinstance(entry, float) and abs(entry) < _MAX_COLOUR for entry in colours)
        is_fine = is_fine and (key == "image_mean" or min(colours) > 1 / _MAX_COLOUR)
        _check(file, is_fine, f"{colours} for clip.vision.{key}")
    check_projector_tensors(file)


def check_cutting(file: GGUFFile) -> None:
    """Refuse a vision encoder that does not say how llama.cpp is to cut pictures.

    Raises:
        ModelError: it says what is missing.
    """
    if file.projector_type == "idefics3" and not file.number("vision.preproc_image_size"):
        raise ModelError(
            f"{file.path} does not say how pictures are cut (clip.vision.preproc_image_size); download a newer "
            "conversion, or put the model's configuration (config.json, preprocessor_config.json) beside it",
            file=str(file.path),
        )


def _check(file: GGUFFile, is_fine: bool, what: str) -> None:
    if not is_fine:
        raise ModelError(
            f"{file.path} is damaged or not meant for llama.cpp: it has {what}; download it again", file=str(file.path)
        )
