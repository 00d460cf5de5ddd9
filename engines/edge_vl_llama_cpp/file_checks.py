"""What llama.cpp would answer with an abort, found in a file's header before it is loaded.

llama.cpp compares the shapes of the tensors that it loads with the file's numbers and refuses politely. Numbers that it
computes with first, or that no tensor's shape depends on, are checked here.
"""

from __future__ import annotations

from edge_vl.errors import ModelError
from edge_vl_llama_cpp.files import GGUFFile

__all__ = ["check_projector_file", "check_text_file"]

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
    rope = file.values.get(f"{file.architecture}.rope.dimension_count")
    _check(file, not isinstance(rope, int) or (rope > 0 and rope % 2 == 0), f"{rope} rotated dimensions")
    all_heads, all_kv_heads = file.numbers("attention.head_count"), file.numbers("attention.head_count_kv")
    if len(all_heads) == 1:
        all_heads *= len(all_kv_heads)
    for heads, kv_heads in zip(all_heads, all_kv_heads, strict=False):
        _check(
            file,
            0 <= kv_heads <= heads and (not kv_heads or heads % kv_heads == 0),
            f"{heads} heads with {kv_heads} key and value heads",
        )


def check_projector_file(file: GGUFFile) -> None:
    """Refuse a vision encoder whose numbers make no sense or do not fit its tensors.

    Raises:
        ModelError: it says which.
    """
    width, heads = file.number("vision.embedding_length"), file.number("vision.attention.head_count")
    side, patch = file.number("vision.image_size"), file.number("vision.patch_size")
    _check(file, file.number("vision.block_count") > 0, f"{file.number('vision.block_count')} layers in its encoder")
    _check(file, 0 < heads <= width and width % heads == 0, f"{heads} heads in a width of {width}")
    _check(file, 0 < patch <= side <= _MAX_SIDE, f"tiles of {side} pixels in patches of {patch}")
    kernel = file.shapes.get("v.patch_embd.weight", ())
    if len(kernel) == 4:
        fits = kernel[:2] == (patch, patch) and kernel[3] == width
        _check(file, fits, f"patches of {patch} pixels and a width of {width} with a kernel of shape {kernel}")
    grid = side // patch
    table = file.shapes.get("v.position_embd.weight", ())
    if file.projector_type in _FIXED_GRID and len(table) == 2:
        _check(file, table[1] - grid * grid in (0, 1), f"{grid}x{grid} patches with {table[1]} positions")
    factor = file.number("vision.projector.scale_factor") or (4 if file.projector_type == "gemma3" else 2)
    if file.projector_type in _FIXED_GRID:
        _check(file, grid % factor == 0, f"{grid} patches a side, merged by {factor}")
    linear = file.shapes.get(_FIRST_LINEAR.get(file.projector_type, ""), ())
    if linear:
        merged = width * (4 if "qwen" in file.projector_type else factor * factor)
        _check(file, linear[0] == merged, f"merged patches {merged} wide with a projector that takes {linear[0]}")


def _check(file: GGUFFile, is_fine: bool, what: str) -> None:
    if not is_fine:
        raise ModelError(
            f"{file.path} is damaged or not meant for llama.cpp: it has {what}; download it again", file=str(file.path)
        )
