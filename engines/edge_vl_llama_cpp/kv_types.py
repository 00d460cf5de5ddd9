"""What llama.cpp offers of KV policies: ggml types for keys and for values.

Its types are `f32`, `f16`, `q8_0` for int8 and `q4_0` for int4. The latter two quantise each entry by itself, 32
channels to a scale; llama.cpp rotates heads of a multiple of 64 channels first, which spreads outliers. So they are not
the int8 and int4 of other engines, and layers or kinds of token cannot differ.

Quantised values need flash attention. It has no f32: with it f32 entries are rounded to f16 in every step. So it is
required for the ones, off for the others, and llama.cpp's own choice otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edge_vl.engine import LaneOptions
from edge_vl.errors import RequestError
from edge_vl.kv_offer import KVOffer
from edge_vl.kv_policy import KVPolicy, KVPrecision, Precision
from edge_vl_llama_cpp.files import GGUFFile
from edge_vl_llama_cpp.library import ENGINE

__all__ = [
    "KV_TYPES",
    "KVType",
    "choose_kv",
    "entry_bytes",
    "flash_attention",
    "grant_kv",
    "head_widths",
    "kv_precisions",
]

_NO_FLASH = ("grok",)
"""Architectures that llama.cpp runs without flash attention."""


@dataclass(frozen=True, slots=True)
class KVType:
    """A ggml type of the KV cache.

    Attributes:
        name: ggml's.
        number: ggml's.
        block: values of a block; heads must be whole blocks.
        block_bytes: bytes of one.
    """

    name: str
    number: int
    block: int
    block_bytes: int


KV_TYPES: dict[Precision, KVType] = {
    "f32": KVType("f32", 0, 1, 4),
    "f16": KVType("f16", 1, 1, 2),
    "int8": KVType("q8_0", 8, 32, 34),
    "int4": KVType("q4_0", 2, 32, 18),
}
"""ggml's type for each precision."""


def choose_kv(file: GGUFFile, policy: KVPolicy) -> KVPrecision:
    """Turn a policy into the precision of all keys and all values.

    Args:
        file: the text model.
        policy: what is wanted; `auto` is f16.

    Raises:
        RequestError: llama.cpp cannot do it, or not for this model.
    """
    if lacking := KVOffer(tuple(KV_TYPES)).lacks(policy):
        raise RequestError(f"kv is {policy.name!r}, and engine {ENGINE!r} has {lacking}", field="kv")
    precision = policy.text or KVPrecision("f16", "f16")
    for side, width in zip((precision.keys, precision.values), head_widths(file), strict=True):
        kind = KV_TYPES[side]
        if width % kind.block:
            raise RequestError(
                f"a KV cache in {side} ({kind.name}) needs heads of a multiple of {kind.block} values and "
                f"{file.path.name} has heads of {width}; use f16",
                field="kv",
            )
    if reason := _conflict(file, precision):
        raise RequestError(f"kv is {policy.name!r}, and {reason}", field="kv")
    return precision


def grant_kv(
    file: GGUFFile, options: LaneOptions, check_device: Callable[[KVPrecision], None] | None = None
) -> tuple[LaneOptions, tuple[str, ...]]:
    """Pass over a policy that only a profile wishes for where llama.cpp cannot keep it.

    Args:
        file: the text model.
        options: how it is to be loaded.
        check_device: raises a `RequestError` where the device does not run flash attention that a precision requires;
            None: it does.

    Returns:
        Options with a policy that llama.cpp keeps, and a note if that is not the profile's.

    Raises:
        RequestError: llama.cpp cannot keep it, and it was asked for.
    """
    try:
        precision = choose_kv(file, options.kv)
        if check_device is not None and flash_attention(precision) == "required":
            check_device(precision)
    except RequestError as error:
        if not options.is_kv_wish:
            raise
        own = dataclasses.replace(options, kv=KVPolicy(), is_kv_wish=False)
        kept = choose_kv(file, own.kv).name
        return own, (f"KV cache: in {kept} and not in the profile's {options.kv.name}: {error}",)
    return options, ()


def flash_attention(precision: KVPrecision) -> Literal["required", "off", "auto"]:
    """Say whether llama.cpp must use flash attention, must not, or may choose."""
    if precision.values in ("int8", "int4"):
        return "required"
    return "off" if "f32" in (precision.keys, precision.values) else "auto"


def kv_precisions(file: GGUFFile) -> list[str]:
    """Return the precisions whose blocks fit into the heads of a text model."""
    return [name for name, kind in KV_TYPES.items() if all(width % kind.block == 0 for width in head_widths(file))]


def head_widths(file: GGUFFile) -> tuple[int, int]:
    """Return the widths of a key's and a value's head; 0 where the file does not say."""
    heads, width = file.number("attention.head_count"), file.number("embedding_length")
    usual = width // heads if heads else 0
    return file.number("attention.key_length") or usual, file.number("attention.value_length") or usual


def entry_bytes(file: GGUFFile, precision: KVPrecision) -> int:
    """Return the memory of one entry in all layers; layers without attention have no heads."""
    layers = file.number("block_count")
    heads = file.numbers("attention.head_count_kv") or file.numbers("attention.head_count") or (1,)
    total_heads = sum(heads[:layers]) if len(heads) > 1 else heads[0] * layers
    nbytes = 0
    for side, width in zip((precision.keys, precision.values), head_widths(file), strict=True):
        kind = KV_TYPES[side]
        nbytes += total_heads * width * kind.block_bytes // kind.block
    return max(1, nbytes)


def _conflict(file: GGUFFile, precision: KVPrecision) -> str:
    """Say why llama.cpp refuses keys and values of these precisions together; empty if it does not.

    Source:
        llama_init_from_model of llama.cpp, src/llama-context.cpp; build_attn_mha, src/llama-graph.cpp: casts to f16.
    """
    is_required = flash_attention(precision) == "required"
    if is_required and file.architecture in _NO_FLASH:
        return (
            f"quantised values need flash attention, which llama.cpp does not have for {file.architecture}; keep "
            f"values in f16: {KVPrecision(precision.keys, 'f16').name}"
        )
    if is_required and precision.keys == "f32":
        return (
            "beside quantised values llama.cpp rounds f32 keys to f16 in every step; keep keys in f16: "
            f"{KVPrecision('f16', precision.values).name}"
        )
    if file.number("attention.key_length_mla") and precision.keys != precision.values:
        return f"llama.cpp keeps keys and values of {file.path.name} together, so they cannot differ"
    return ""
