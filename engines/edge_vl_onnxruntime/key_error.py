"""What compressing its KV cache does to each layer of a cut decoder, measured with its own queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_vl.agreement import TensorError, compare_tensors
from edge_vl.engine import Prefillable
from edge_vl.kv_error import KVErrors, LayerKVError, attention_logit_error
from edge_vl.plan import TextChunk
from edge_vl_kernels.kv_codes import dequantize, quantize_int4, quantize_int8
from edge_vl_kernels.kv_format import BLOCK_ENTRIES, CacheFormat, Precision
from edge_vl_kernels.kv_reference import FLOAT16_MAX, rotate
from edge_vl_onnxruntime.cache_formats import NUM_SINKS

if TYPE_CHECKING:
    from edge_vl_onnxruntime.cut_language import CutLanguageModel

__all__ = ["key_errors", "layer_errors"]

_PROBE_TOKENS = NUM_SINKS + 4 * BLOCK_ENTRIES
_QUERIES_OF_A_BLOCK = 16
_TEXT = (
    "The camera looks at a door, two boxes on a shelf and a red lamp. At noon somebody takes the smaller box away, and "
    "the lamp turns green. What has changed since the last picture? Nothing else moves until the evening, when the "
    'door stands open for a while: [{"object": "door", "is_open": true, "seconds": 1275.5}, 17, 3]. '
)


@dataclass(slots=True)
class _Seen:
    """What a layer was given.

    Attributes:
        queries: float32 (some, num_query_heads, head_dim), turned, of some rows.
        rows: number of the row of each, from 0.
        keys: float32 (rows, num_kv_heads, head_dim) of each pass, turned.
        values: likewise, as they come.
        num_rows: of all passes.
    """

    queries: list[NDArray[np.float32]] = field(default_factory=list)
    rows: list[NDArray[np.intp]] = field(default_factory=list)
    keys: list[NDArray[np.float32]] = field(default_factory=list)
    values: list[NDArray[np.float32]] = field(default_factory=list)
    num_rows: int = 0


def layer_errors(model: CutLanguageModel, run: Sequence[Prefillable]) -> KVErrors:
    """Prefill a run into a cache of its own and compare what it holds with what was given; see `edge_vl.kv_error`."""
    cache_format = model.kernels.cache_format
    cache = model.new_cache()
    try:
        with _watching(model) as layers:
            model.prefill(cache, run, want_logits=False)
        errors = []
        for index, seen in enumerate(layers):
            keys, values = np.concatenate(seen.keys), np.concatenate(seen.values)
            kept_keys, kept_values = cache.read(index)
            formats = [cache_format.pages[number].layers[index] for number in cache.block_formats]
            key_error = compare_tensors(keys, kept_keys)
            value_error = compare_tensors(values, kept_values)
            errors.append(
                LayerKVError(
                    TensorError(key_error.error, _coverage(keys, [one.keys for one in formats], 0, cache_format)),
                    TensorError(value_error.error, _coverage(values, [one.values for one in formats], 2, cache_format)),
                    _logit_error(seen, keys - kept_keys, model.kernels.scale, cache_format.num_sinks),
                )
            )
        return KVErrors(cache.num_tokens, cache.num_compressed, tuple(errors))
    finally:
        cache.close()


def key_errors(model: CutLanguageModel, precisions: Sequence[Precision]) -> tuple[tuple[float, ...], ...]:
    """Measure how far quantising the keys of a layer alone would move its attention logits, on a few lines of text.

    Args:
        model: does not compress its cache itself.
        precisions: of the keys.

    Returns:
        For each precision, for each layer: root mean square of the change, see `edge_vl.kv_error`. 0 where the context
        is too short for two blocks.

    Raises:
        EngineFault: the backend failed.
    """
    num_tokens = min(_PROBE_TOKENS, model.spec.context_length)
    ids = model.tokenizer.encode_text(_TEXT) or [0]
    run = [TextChunk(tuple(islice(cycle(ids), num_tokens)), 0)]
    cache = model.new_cache()
    try:
        with _watching(model) as layers:
            model.prefill(cache, run, want_logits=False)
    finally:
        cache.close()
    scale = model.kernels.scale
    return tuple(
        tuple(_logit_error(seen, _rounding(np.concatenate(seen.keys), precision), scale, NUM_SINKS) for seen in layers)
        for precision in precisions
    )


@contextmanager
def _watching(model: CutLanguageModel) -> Iterator[list[_Seen]]:
    """Collect what each layer is given, from the first row of a sequence on."""
    layers = [_Seen() for _ in range(model.kernels.cache_format.geometry.num_layers)]
    rope = model.kernels.rope

    def observe(
        layer: int, queries: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32]
    ) -> None:
        seen = layers[layer]
        first, count = seen.num_rows, len(keys)
        if rope is not None:
            queries, keys = rotate(queries, rope, first), rotate(keys, rope, first)
        rows = np.arange(first, first + count)
        chosen = rows % (BLOCK_ENTRIES // _QUERIES_OF_A_BLOCK) == 0
        seen.queries.append(queries[chosen])
        seen.rows.append(rows[chosen])
        seen.keys.append(np.array(keys))
        seen.values.append(np.array(values))
        seen.num_rows = first + count

    before, model.observer = model.observer, observe
    try:
        yield layers
    finally:
        model.observer = before


def _logit_error(seen: _Seen, errors: NDArray[np.float32], scale: float, num_sinks: int) -> float:
    """Return what errors of keys change; a row sees its own block, and what is behind the last full one, as it came."""
    rows = np.concatenate(seen.rows)
    blocks = np.maximum(rows - num_sinks, 0) // BLOCK_ENTRIES
    num_compressed = np.where(blocks > 0, num_sinks + BLOCK_ENTRIES * blocks, 0)
    return attention_logit_error(np.concatenate(seen.queries), rows, num_compressed, errors, scale)


def _rounding(keys: NDArray[np.float32], precision: Precision) -> NDArray[np.float32]:
    """Return what is lost of keys (rows, num_kv_heads, head_dim) in full blocks; nothing of others."""
    lost = np.zeros_like(keys)
    for block in range((len(keys) - NUM_SINKS) // BLOCK_ENTRIES):
        part = slice(NUM_SINKS + BLOCK_ENTRIES * block, NUM_SINKS + BLOCK_ENTRIES * (block + 1))
        channels = _as_stored(keys[part]).transpose(1, 2, 0)
        if precision == "int4":
            restored = dequantize(*quantize_int4(channels))
        elif precision == "int8":
            restored = dequantize(*quantize_int8(channels), None)
        else:
            restored = channels
        lost[part] = keys[part] - restored.transpose(2, 0, 1)
    return lost


def _coverage(
    rows: NDArray[np.float32], precisions: Sequence[Precision], shared_axis: int, cache_format: CacheFormat
) -> float:
    """Return the share of elements within the range that their codes can express.

    Args:
        rows: keys or values, float32 (num_tokens, num_kv_heads, head_dim).
        precisions: of the closed blocks.
        shared_axis: along which a scale is shared: 0, all entries of a block; or 2, channels of an entry.
        cache_format: how they are stored.
    """
    num_outside = 0
    for block, precision in enumerate(precisions):
        if precision not in ("int8", "int4"):
            continue
        start = cache_format.num_sinks + BLOCK_ENTRIES * block
        values = rows[start : start + BLOCK_ENTRIES]
        if cache_format.open_precision == "f16":
            values = _as_stored(values)
        if shared_axis == 0:
            values = values.transpose(1, 2, 0)
        else:
            values = values.reshape(*values.shape[:2], cache_format.geometry.num_value_groups, -1)
        if precision == "int8":
            _, scales = quantize_int8(values)
            high = 127 * scales.astype(np.float64)
            low = -high
        else:
            _, scales, zeros = quantize_int4(values)
            low = zeros.astype(np.float64)
            high = low + 15 * scales.astype(np.float64)
        num_outside += int(np.count_nonzero((values < low) | (values > high)))
    return 1 - num_outside / rows.size


def _as_stored(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what a float16 block keeps of rows before it is compressed."""
    return np.clip(rows, -FLOAT16_MAX, FLOAT16_MAX).astype(np.float16).astype(np.float32)
