"""What a lane takes, told from the headers of its files before anything is loaded.

Text weights are mapped: their pages count, though the system can drop and read them again. What the CPU wants in
another order is there a second time. The encoder's weights are read into memory of their own. The formulas of the
compute buffers give what llama.cpp itself reports for SmolVLM-256M and 500M and InternVL3-1B, in both lanes.

Source:
    ggml_repack_get_optimal_repack_type of llama.cpp, ggml/src/ggml-cpu/repack.cpp, and supports of amx/amx.cpp: what is
    repacked on which processor; set_limit_image_tokens in tools/mtmd/clip.cpp: the largest pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from edge_vl.engine import LaneMemory
from edge_vl.gguf_header import GGUFTensor, read_gguf_header
from edge_vl.machine import read_machine
from edge_vl.model_spec import GGUF_FAMILY, ModelSpec
from edge_vl_llama_cpp.context import ContextPlan
from edge_vl_llama_cpp.files import GGUFFile
from edge_vl_llama_cpp.kv_types import flash_attention

__all__ = ["language_memory", "repacked_bytes", "text_compute_bytes", "vision_compute_bytes", "vision_memory"]

_WIDE = 4  # bytes of a number in arithmetic
_MASK_BYTES = 2  # of an entry of the attention mask
_CELLS = 256  # llama.cpp rounds the entries of a cache up to it
_CONTEXT_BYTES = 8 << 20  # graphs, scheduler and allocator: measured
_VOCABULARY_FACTOR = 11  # memory by bytes of a file's header, which is nearly all vocabulary: measured
_TOKENIZER_FACTOR = 13  # memory by bytes of tokenizer.json: 22 MiB for 1.7 MiB

_REPACKED = {
    "avx2": {"q4_0", "q4_k", "iq4_nl", "mxfp4"},
    "avx512f": {"q2_k"},
    "asimddp": {"q4_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4", "q8_0"},
    "i8mm": {"q4_0", "q4_k", "q5_k", "q6_k", "q8_0"},
    "amx_int8": {"q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_xs"},
}
"""Types that are kept in another order, by flag of the processor."""

_MAX_TOKENS = {
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "ling3vl", "glm4v"), 4096),
    **dict.fromkeys(("pixtral", "kimivl", "lightonocr"), 1024),
    "lfm2": 256,
}
"""Image tokens of the largest picture, by kind of projector, where pictures keep their shape."""

_PART = re.compile(r"-00001-of-(\d{5})$")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of a file.

    Attributes:
        weights_bytes: of all tensors, in all parts of a split file.
        repacked_bytes: of those that are there a second time.
        header_bytes: of everything else.
    """

    weights_bytes: int
    repacked_bytes: int
    header_bytes: int


def vision_memory(model: ModelSpec, text: GGUFFile, file: GGUFFile) -> LaneMemory:
    """Return what the vision lane takes for the largest picture or tile.

    Args:
        model: what is run.
        text: the text model, of which the lane needs the vocabulary.
        file: the encoder's file.

    Raises:
        ModelError: a file cannot be read.
    """
    sizes, vocabulary = _sizes(file.path), _sizes(text.path)
    side, patch = file.number("vision.image_size"), file.number("vision.patch_size") or 1
    num_patches = max(1, side // patch) ** 2
    if tokens := _MAX_TOKENS.get(file.projector_type, 0):
        merge = file.number("vision.spatial_merge_size") or file.number("vision.projector.scale_factor") or 2
        num_patches = tokens * merge**2
    num_pixels = num_patches * patch**2
    return LaneMemory(
        weights_bytes=sizes.weights_bytes,
        kv_bytes=0,
        activation_bytes=vision_compute_bytes(file, num_patches)
        + _VOCABULARY_FACTOR * vocabulary.header_bytes
        + _CONTEXT_BYTES,
        # Bytes once, numbers as the preprocessor, the batch and the encoder hold them; a tile twice, as its thumbnail.
        picture_bytes=_resized_bytes(model) + num_pixels * 3 * (1 + 4 * _WIDE),
        dtype=file.dtype,
        file=str(file.path),
    )


def language_memory(model: ModelSpec, file: GGUFFile, plan: ContextPlan) -> LaneMemory:
    """Return what the language lane takes; all its caches share the entries of one context.

    Args:
        model: what is run.
        file: the text model's file.
        plan: sizes of the context.

    Raises:
        ModelError: the file cannot be read.
    """
    sizes = _sizes(file.path)
    cells = _cells(plan)
    logits_bytes = plan.max_sequences * _vocab_size(model, file) * _WIDE
    vocabulary_bytes = _VOCABULARY_FACTOR * sizes.header_bytes
    if model.family != GGUF_FAMILY:
        vocabulary_bytes += _TOKENIZER_FACTOR * model.tokenizer_file.stat().st_size
    return LaneMemory(
        weights_bytes=sizes.weights_bytes + sizes.repacked_bytes,
        kv_bytes=cells * plan.entry_bytes,
        activation_bytes=text_compute_bytes(file, plan, logits_bytes)
        + logits_bytes
        + vocabulary_bytes
        + _CONTEXT_BYTES,
        picture_bytes=0,
        dtype=file.dtype,
        file=str(file.path),
        context_length=plan.context_length,
    )


def vision_compute_bytes(file: GGUFFile, num_patches: int) -> int:
    """Return the compute buffer of an encoder with flash attention; some kinds have a class token besides."""
    hidden, ffn = file.number("vision.embedding_length"), file.number("vision.feed_forward_length")
    return (num_patches + 1) * _WIDE * (ffn + 3 * hidden)


def text_compute_bytes(file: GGUFFile, plan: ContextPlan, logits_bytes: int) -> int:
    """Return the compute buffer of a context: rows of one layer, or logits, and the mask.

    Without flash attention there are the scores of all heads besides, and the mask is as wide as they are.
    """
    hidden = file.number("embedding_length")
    expert_ffn = file.number("expert_feed_forward_length") * (file.number("expert_used_count") or 1)
    ffn = max(file.number("feed_forward_length"), expert_ffn)
    largest = max(plan.batch_rows * _WIDE * (3 * ffn + 4 * hidden), logits_bytes)
    if flash_attention(plan.kv) != "off":
        return largest + plan.batch_rows * _cells(plan) * _MASK_BYTES
    scores = plan.batch_rows * _WIDE * (file.number("attention.head_count") * _cells(plan) + 6 * hidden)
    return max(largest, scores) + plan.batch_rows * _cells(plan) * _WIDE


def repacked_bytes(tensors: Iterable[GGUFTensor], flags: Iterable[str]) -> int:
    """Return the bytes of the weights that are kept in another order besides; embeddings are looked up, not multiplied.

    Args:
        tensors: of a text model.
        flags: of the processor.
    """
    kinds = set[str]().union(*(_REPACKED.get(flag, set()) for flag in flags))
    return sum(
        tensor.nbytes
        for tensor in tensors
        if tensor.dtype in kinds
        and len(tensor.shape) >= 2
        and tensor.shape[1] % 8 == 0
        and not tensor.name.startswith(("token_embd", "per_layer_token_embd"))
    )


def _cells(plan: ContextPlan) -> int:
    return -(-plan.context_length // _CELLS) * _CELLS


def _sizes(path: Path) -> _Sizes:
    state = path.stat()
    return _sizes_of_state(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _sizes_of_state(path: Path, _mtime_ns: int, _size: int) -> _Sizes:
    """Read the headers once for each state of a file: a vocabulary of 150,000 takes a fifth of a second."""
    weights = repacked = header_bytes = 0
    flags = read_machine().flags
    for part in _parts(path):
        header = read_gguf_header(part)
        weights += header.weights_bytes
        repacked += repacked_bytes(header.tensors, flags)
        header_bytes += min((tensor.offset for tensor in header.tensors), default=part.stat().st_size)
    return _Sizes(weights, repacked, header_bytes)


def _parts(path: Path) -> list[Path]:
    """Return all files of a model that is split."""
    found = _PART.search(path.stem)
    if not found:
        return [path]
    begin = path.stem[: found.start()]
    return [path.with_name(f"{begin}-{number:05d}-of-{found[1]}.gguf") for number in range(1, int(found[1]) + 1)]


def _vocab_size(model: ModelSpec, file: GGUFFile) -> int:
    """Return the length of a row of logits; 0 where nothing says it."""
    text = model.config.get("text_config") or model.config
    size = text.get("vocab_size", 0) or file.number("vocab_size")
    return size if isinstance(size, int) else 0


def _resized_bytes(model: ModelSpec) -> int:
    """Return bytes of a resized picture and its tiles; 0 where the encoder cuts by itself."""
    size = model.preprocessor.get("size")
    longest = size.get("longest_edge", 0) if isinstance(size, dict) else 0
    return 2 * 3 * longest**2 if isinstance(longest, int) else 0
