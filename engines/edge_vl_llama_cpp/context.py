"""The llama.cpp context of a language lane: its sizes, and making it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge_vl.engine import LaneOptions
from edge_vl.errors import ModelError, RequestError
from edge_vl.machine import usable_cores
from edge_vl_llama_cpp.files import GGUFFile
from edge_vl_llama_cpp.library import Device, explain
from edge_vl_llama_cpp.native_model import NativeModel

__all__ = ["KV_TYPES", "ContextPlan", "block_tokens", "head_widths", "kv_dtypes", "make_context", "plan_context"]

DEFAULT_CONTEXT = 8192
"""Most entries where none are asked for: the cache is allocated at once."""

_BATCH_ROWS = 512
_MAX_SEQUENCES = 32
_MAX_STATES = 9  # each sequence of a recurrent model costs a whole state; one is kept free for what may fail


@dataclass(frozen=True, slots=True)
class _KVType:
    """A precision of the KV cache.

    Attributes:
        number: ggml's number of the type.
        block: values of a block; heads must be whole blocks.
        block_bytes: bytes of one.
    """

    number: int
    block: int
    block_bytes: int


KV_TYPES = {
    "fp32": _KVType(0, 1, 4),
    "fp16": _KVType(1, 1, 2),
    "q8_0": _KVType(8, 32, 34),
    "q4_0": _KVType(2, 32, 18),
}
"""Precisions of the KV cache by name."""


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """Sizes of a context.

    Attributes:
        context_length: entries that one sequence may have.
        batch_rows: rows of one pass.
        max_sequences: caches at a time.
        kv_dtype: precision of the KV cache, a key of `KV_TYPES`.
        entry_bytes: memory of one entry in all layers.
        threads: of the lane.
    """

    context_length: int
    batch_rows: int
    max_sequences: int
    kv_dtype: str
    entry_bytes: int
    threads: int


def plan_context(file: GGUFFile, options: LaneOptions, block_tokens: int, *, keeps_states: bool) -> ContextPlan:
    """Choose the sizes of a context.

    Args:
        file: the text model.
        options: wanted context length, threads and precision of the KV cache.
        block_tokens: most image tokens that must go in together; 0 for none.
        keeps_states: the model has recurrent states.

    Raises:
        RequestError: the precision of the KV cache is unknown, or does not suit the model's heads.
    """
    limit = file.number("context_length") or DEFAULT_CONTEXT
    context_length = min(limit, options.context_length or min(limit, DEFAULT_CONTEXT))
    kv_dtype = _kv_dtype(file, options.kv_dtype)
    return ContextPlan(
        context_length=context_length,
        batch_rows=min(context_length, max(_BATCH_ROWS, block_tokens)),
        max_sequences=_MAX_STATES if keeps_states else _MAX_SEQUENCES,
        kv_dtype=kv_dtype,
        entry_bytes=_entry_bytes(file, KV_TYPES[kv_dtype]),
        threads=options.threads or usable_cores(),
    )


def make_context(model: NativeModel, plan: ContextPlan, device: Device) -> Any:
    """Make the context; its KV cache is allocated at once.

    Raises:
        ModelError: llama.cpp cannot make it, for want of memory for instance.
    """
    llama = model.library.llama
    settings = llama.llama_context_default_params()
    settings.n_ctx = plan.context_length
    settings.n_batch = settings.n_ubatch = plan.batch_rows
    settings.n_seq_max = plan.max_sequences
    settings.n_outputs_max = plan.max_sequences  # logits of one row for each sequence, not of every row of a batch
    settings.n_threads = settings.n_threads_batch = plan.threads
    kind = KV_TYPES[plan.kv_dtype]
    settings.type_k = settings.type_v = kind.number
    settings.flash_attn_type = (
        llama.LLAMA_FLASH_ATTN_TYPE_ENABLED if kind.block > 1 else llama.LLAMA_FLASH_ATTN_TYPE_AUTO
    )
    settings.kv_unified = True  # a fork shares the entries of its trunk
    settings.swa_full = True  # sliding windows that drop entries could not be trimmed
    settings.no_perf = True
    settings.offload_kqv = settings.op_offload = not device.is_cpu
    with model.library.log.collect() as errors:
        context = llama.llama_init_from_model(model.pointer, settings)
    if not context:
        raise ModelError(
            f"llama.cpp cannot make a context of {plan.context_length} entries for {model.path}: {explain(errors)}; "
            "a smaller context_length needs less memory",
            file=str(model.path),
        )
    return context


def block_tokens(file: GGUFFile) -> int:
    """Return the most image tokens of an encoder that see each other and so must go in together; 0 for none.

    Source:
        clip.cpp and mtmd_decode_use_non_causal of llama.cpp, tools/mtmd: Gemma 3 merges 4x4 patches unless its file
        says otherwise, and Gemma 4 makes at most 1120 tokens.
    """
    if file.projector_type in ("gemma4v", "gemma4uv"):
        return 1120
    side, patch = file.number("vision.image_size"), file.number("vision.patch_size")
    if file.projector_type != "gemma3" or not side or not patch:
        return 0
    factor = file.number("vision.projector.scale_factor") or 4
    return (side // patch // factor) ** 2


def head_widths(file: GGUFFile) -> tuple[int, int]:
    """Return the widths of a key's and a value's head; 0 where the file does not say."""
    heads, width = file.number("attention.head_count"), file.number("embedding_length")
    usual = width // heads if heads else 0
    return file.number("attention.key_length") or usual, file.number("attention.value_length") or usual


def kv_dtypes(file: GGUFFile) -> list[str]:
    """Return the precisions whose blocks fit into the heads of a text model."""
    return [name for name, kind in KV_TYPES.items() if all(width % kind.block == 0 for width in head_widths(file))]


def _kv_dtype(file: GGUFFile, wanted: str) -> str:
    if wanted == "auto":
        return "fp16"
    if wanted not in KV_TYPES:
        raise RequestError(
            f"engine 'llama_cpp' has no KV cache in {wanted!r}; it offers auto, {', '.join(KV_TYPES)}", field="kv_dtype"
        )
    block = KV_TYPES[wanted].block
    if any(width % block for width in head_widths(file)):
        width = max(head_widths(file))
        raise RequestError(
            f"a KV cache in {wanted} needs heads of a multiple of {block} values and {file.path.name} has heads of "
            f"{width}; use fp16",
            field="kv_dtype",
        )
    return wanted


def _entry_bytes(file: GGUFFile, kind: _KVType) -> int:
    """Return the memory of one entry in all layers; layers without attention have no heads."""
    layers = file.number("block_count")
    heads = file.numbers("attention.head_count_kv") or file.numbers("attention.head_count") or (1,)
    total_heads = sum(heads[:layers]) if len(heads) > 1 else heads[0] * layers
    values = total_heads * sum(head_widths(file))
    return max(1, values * kind.block_bytes // kind.block)
