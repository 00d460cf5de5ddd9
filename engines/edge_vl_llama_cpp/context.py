"""The llama.cpp context of a language lane: its sizes, and making it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge_vl.engine import LaneOptions
from edge_vl.errors import ModelError
from edge_vl.kv_policy import KVPrecision
from edge_vl.machine import usable_cores
from edge_vl_llama_cpp.files import GGUFFile
from edge_vl_llama_cpp.kv_types import KV_TYPES, choose_kv, entry_bytes, flash_attention
from edge_vl_llama_cpp.library import Device, explain
from edge_vl_llama_cpp.native_model import NativeModel

__all__ = ["ContextPlan", "block_tokens", "make_context", "plan_context"]

DEFAULT_CONTEXT = 8192
"""Most entries where none are asked for: the cache is allocated at once."""

_BATCH_ROWS = 512
_MAX_SEQUENCES = 32
_MAX_STATES = 9  # each sequence of a recurrent model costs a whole state; one is kept free for what may fail


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """Sizes of a context.

    Attributes:
        context_length: entries that one sequence may have.
        batch_rows: rows of one pass.
        max_sequences: caches at a time.
        kv: precision of the KV cache.
        entry_bytes: memory of one entry in all layers.
        threads: of the lane.
    """

    context_length: int
    batch_rows: int
    max_sequences: int
    kv: KVPrecision
    entry_bytes: int
    threads: int


def plan_context(file: GGUFFile, options: LaneOptions, block_tokens: int, *, keeps_states: bool) -> ContextPlan:
    """Choose the sizes of a context.

    Args:
        file: the text model.
        options: wanted context length, threads and KV policy.
        block_tokens: most image tokens that must go in together; 0 for none.
        keeps_states: the model has recurrent states.

    Raises:
        RequestError: llama.cpp does not have the KV policy, or not for this model.
    """
    limit = file.number("context_length") or DEFAULT_CONTEXT
    context_length = min(limit, options.context_length or min(limit, DEFAULT_CONTEXT))
    kv = choose_kv(file, options.kv)
    return ContextPlan(
        context_length=context_length,
        batch_rows=min(context_length, max(_BATCH_ROWS, block_tokens)),
        max_sequences=_MAX_STATES if keeps_states else _MAX_SEQUENCES,
        kv=kv,
        entry_bytes=entry_bytes(file, kv),
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
    settings.type_k, settings.type_v = KV_TYPES[plan.kv.keys].number, KV_TYPES[plan.kv.values].number
    # Where it is required, `check_flash_attention` has asked the device, and no context comes back without it.
    settings.flash_attn_type = {
        "required": llama.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        "off": llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        "auto": llama.LLAMA_FLASH_ATTN_TYPE_AUTO,
    }[flash_attention(plan.kv)]
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
