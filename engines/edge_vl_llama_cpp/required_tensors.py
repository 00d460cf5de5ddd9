"""Tensors that llama.cpp takes for granted, looked for in a file's header before it is loaded.

llama.cpp loads most tensors of a vision encoder if they are there, and computes with them later without looking. It
compares no shape of them either.

Source:
    `load_tensors` and `build_vit` in tools/mtmd/clip.cpp and the graphs in tools/mtmd/models of ggml-org/llama.cpp.
"""

from __future__ import annotations

from edge_vl.errors import ModelError
from edge_vl_llama_cpp.files import GGUFFile

__all__ = ["check_projector_tensors", "check_text_tensors"]

_ALWAYS = ("v.patch_embd.weight",)
_WITH_POSITIONS = (*_ALWAYS, "v.position_embd.weight")
_REQUIRED = {
    "idefics3": _WITH_POSITIONS,
    "gemma3": _WITH_POSITIONS,
    "internvl": (*_WITH_POSITIONS, "v.class_embd"),
    "lfm2": _WITH_POSITIONS,
    "resampler": _WITH_POSITIONS,
    "qwen2vl_merger": (*_ALWAYS, "v.patch_embd.weight.1"),
    "qwen2.5vl_merger": (*_ALWAYS, "v.patch_embd.weight.1"),
    "qwen3vl_merger": (*_WITH_POSITIONS, "v.patch_embd.weight.1", "v.patch_embd.bias"),
    "pixtral": _ALWAYS,
}
"""Tensors outside the layers, by kind of projector. Of other kinds only the layers are checked."""

_UNWANTED = {
    "resampler": ("v.class_embd",),
    "qwen2vl_merger": ("v.patch_embd.bias", "v.class_embd"),
    "qwen2.5vl_merger": ("v.patch_embd.bias", "v.class_embd"),
    "qwen3vl_merger": ("v.class_embd",),
}
"""Tensors whose absence llama.cpp asserts."""

_CHAINS = (("mm.0", "mm.2"), ("mm.1", "mm.2"), ("mm.model.mlp.1", "mm.model.mlp.3"))
"""Linear layers of projectors, one after the other."""

_ADDED_POSITIONS = ("gemma3", "idefics3", "internvl", "lfm2", "qwen3vl_merger")
"""Kinds of projector that add the table of positions as it is."""

_UNEVEN = ("gemma3nv", "dots3note_v", "yasa2")
"""Kinds of projector whose layers are not all alike, or have other names."""

_QKV = ("attn_q", "attn_k", "attn_v")
_BIASED = {"qwen2vl_merger": _QKV, "qwen2.5vl_merger": _QKV, "qwen3vl_merger": ("attn_qkv",)}
"""What attention begins with, where llama.cpp knows one way only."""

_LAYER = (*_QKV, "attn_qkv", "attn_out", "ffn_up", "ffn_gate", "ffn_down", "ln1", "ln2", "ls1", "ls2")
_UNCOMPUTABLE = ("i8", "i16", "i32", "i64", "f64", "q8_k")

_PLAIN_TEXT = ("llama", "qwen2", "qwen2vl", "qwen3", "qwen3vl", "gemma3", "lfm2", "smollm3")
"""Architectures of text models with one kind of attention, whose tensors are checked."""


def check_projector_tensors(file: GGUFFile) -> None:
    """Refuse a vision encoder that lacks a tensor, or has one of a shape or type that cannot be computed with.

    Raises:
        ModelError: it names the tensor.
    """
    kind = file.projector_type
    for name in _REQUIRED.get(kind, ()):
        _require(file, name)
    for name in _UNWANTED.get(kind, ()):
        if name in file.tensors:
            raise _damaged(file, f"has a tensor {name}, which the projector {kind!r} does not have")
    if kind not in _UNEVEN:
        _check_layers(file)
    if kind not in _REQUIRED:
        return
    for layer in range(file.number("vision.block_count")):
        _check_layer(file, f"v.blk.{layer}")
    _check_outside(file)


def check_text_tensors(file: GGUFFile) -> None:
    """Refuse a text model with a tensor missing among its kin, or of a shape or type that cannot be computed with.

    Raises:
        ModelError: it names the tensor.
    """
    if file.architecture not in _PLAIN_TEXT:
        return
    _check_types(file)
    all_heads, width = file.numbers("attention.head_count"), file.number("embedding_length")
    keys = file.number("attention.key_length")
    for layer in range(file.number("block_count")):
        block = f"blk.{layer}"
        _all_or_none(file, tuple(f"{block}.{name}.bias" for name in _QKV))
        query = file.shape(f"{block}.attn_q.weight")
        if len(query) == 2 and len(all_heads) == 1 and all_heads[0]:
            rows = all_heads[0] * (keys or width // all_heads[0])
            if query[1] != rows:
                raise _damaged(file, f"has {all_heads[0]} heads and {query[1]} rows in {block}.attn_q.weight")


def _check_layers(file: GGUFFile) -> None:
    """Look for the same tensors in every layer, and for attention in the first."""
    kinds = [f"{name}.{part}" for name in _LAYER for part in ("weight", "bias")]
    wanted = [name for name in kinds if f"v.blk.0.{name}" in file.tensors]
    if "attn_qkv.weight" not in wanted:
        for name in _QKV:
            _require(file, f"v.blk.0.{name}.weight")
    _require(file, "v.blk.0.attn_out.weight")
    for layer in range(1, file.number("vision.block_count")):
        for name in kinds:
            if name in wanted:
                _require(file, f"v.blk.{layer}.{name}")
            elif f"v.blk.{layer}.{name}" in file.tensors:
                _require(file, f"v.blk.0.{name}")


def _check_layer(file: GGUFFile, block: str) -> None:
    """Look at one layer's tensors and their shapes."""
    kind, width = file.projector_type, file.number("vision.embedding_length")
    for name in ("ffn_up", "ffn_down", "ln1", "ln2"):
        _require(file, f"{block}.{name}.weight")
    _all_or_none(file, (f"{block}.ln1.bias", f"{block}.ln2.bias"))
    if f"{block}.attn_qkv.weight" not in file.tensors:
        _all_or_none(file, tuple(f"{block}.{name}.bias" for name in _QKV))
    for name in _BIASED.get(kind, ()):
        _require(file, f"{block}.{name}.weight")
        _require(file, f"{block}.{name}.bias")
    for name in ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "ls1.weight", "ls2.weight"):
        _check_shape(file, f"{block}.{name}", (width,))
    if not file.number("vision.attention.head_dim") and not file.number("vision.attention.head_count_kv"):
        for name in (*_QKV, "attn_out"):
            _check_shape(file, f"{block}.{name}.weight", (width, width))
        _check_shape(file, f"{block}.attn_qkv.weight", (width, 3 * width))
    head = width // file.number("vision.attention.head_count")
    for name in ("attn_q_norm.weight", "attn_k_norm.weight"):
        if file.shape(f"{block}.{name}") not in ((), (width,), (head,)):
            raise _misshapen(file, f"{block}.{name}")
    up, down = file.shape(f"{block}.ffn_up.weight"), file.shape(f"{block}.ffn_down.weight")
    if len(up) != 2 or down != up[::-1] or width not in up:
        raise _misshapen(file, f"{block}.ffn_up.weight")
    gate = file.shape(f"{block}.ffn_gate.weight")
    if gate not in ((), up, down):
        raise _misshapen(file, f"{block}.ffn_gate.weight")


def _check_outside(file: GGUFFile) -> None:
    """Look at the tensors outside the layers, and at how all fit together."""
    width = file.number("vision.embedding_length")
    for name in ("v.post_ln", "v.pre_ln"):
        for part in ("weight", "bias"):
            _check_shape(file, f"{name}.{part}", (width,))
        if f"{name}.weight" in file.tensors and "v.blk.0.ln1.bias" in file.tensors:
            _require(file, f"{name}.bias")
        if f"{name}.bias" in file.tensors:
            _require(file, f"{name}.weight")
    _check_shape(file, "v.patch_embd.bias", (width,))
    kernel = file.shape("v.patch_embd.weight")
    patch = file.number("vision.patch_size")
    if kernel != (patch, patch, 3, width):
        raise _misshapen(file, "v.patch_embd.weight")
    _check_shape(file, "v.patch_embd.weight.1", kernel)
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        if name in file.tensors and file.tensors[name].dtype not in ("f16", "f32"):
            raise _damaged(file, f"has {name} in {file.tensors[name].dtype}")
    positions = file.tensors.get("v.position_embd.weight")
    if positions and (len(positions.shape) != 2 or positions.shape[0] != width):
        raise _misshapen(file, positions.name)
    if positions and positions.dtype != "f32" and file.projector_type in _ADDED_POSITIONS:
        raise _damaged(file, f"has {positions.name} in {positions.dtype}")
    if "mm.patch_merger.weight" in file.tensors:
        _require(file, "mm.input_norm.weight")
    for first, second in _CHAINS:
        before, after = file.shape(f"{first}.weight"), file.shape(f"{second}.weight")
        if before and after and (len(before) != 2 or len(after) != 2 or after[0] != before[1]):
            raise _misshapen(file, f"{second}.weight")
    if file.projector_type == "gemma3":
        _check_shape(file, "mm.soft_emb_norm.weight", (width,))
        if file.shape("mm.input_projection.weight")[1:] not in ((), (width,)):
            raise _misshapen(file, "mm.input_projection.weight")
    if file.projector_type == "internvl":
        merged = file.shape("mm.model.mlp.1.weight")[:1]
        for part in ("weight", "bias"):
            _check_shape(file, f"mm.model.mlp.0.{part}", merged)
    _check_types(file)


def _check_types(file: GGUFFile) -> None:
    """Look at the types of all tensors, and at the lengths of biases."""
    for name, tensor in file.tensors.items():
        if tensor.dtype in _UNCOMPUTABLE or (len(tensor.shape) == 1 and tensor.dtype != "f32"):
            raise _damaged(file, f"has {name} in {tensor.dtype}")
        weight = file.shape(name.removesuffix(".bias") + ".weight") if name.endswith(".bias") else ()
        if weight and tensor.shape != weight[-1:]:
            raise _misshapen(file, name)


def _require(file: GGUFFile, name: str) -> None:
    if name not in file.tensors:
        raise _damaged(file, f"lacks the tensor {name}")


def _all_or_none(file: GGUFFile, names: tuple[str, ...]) -> None:
    if any(name in file.tensors for name in names):
        for name in names:
            _require(file, name)


def _check_shape(file: GGUFFile, name: str, shape: tuple[int, ...]) -> None:
    if name in file.tensors and file.shape(name) != shape:
        raise _misshapen(file, name)


def _misshapen(file: GGUFFile, name: str) -> ModelError:
    return _damaged(file, f"has {name} in the shape {file.shape(name)}, which does not fit its other tensors")


def _damaged(file: GGUFFile, what: str) -> ModelError:
    return ModelError(
        f"{file.path} is damaged or not meant for llama.cpp: it {what}; download it again", file=str(file.path)
    )
