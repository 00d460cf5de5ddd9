"""The NumPy reference of key/value caches: what `kv_format.py` lays out, in plain steps.

It defines what is right: codes, scales and zeros byte by byte, attention up to the rounding of float32 sums. Without a
compiled library it is also what runs, so it works on whole blocks and heads at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels.kv_codes import dequantize, pack_halves, quantize_int4, quantize_int8, unpack_halves
from edge_vl_kernels.kv_format import BLOCK_ENTRIES, CacheFormat, KVGeometry, PageFormat, Precision

if TYPE_CHECKING:
    from edge_vl_kernels.kv import KVSequence
    from edge_vl_kernels.kv_pages import Page
    from edge_vl_kernels.kv_rope import Rope

__all__ = [
    "FLOAT16_MAX",
    "NOT_FINITE",
    "OK",
    "TOO_LARGE",
    "LayerArrays",
    "close_block",
    "layer_arrays",
    "magnitude_limits",
    "read",
    "rotate",
    "sink_arrays",
    "step",
]

OK = 0
NOT_FINITE = 1
"""A key or value is NaN or infinite."""
TOO_LARGE = 2
"""A key or value is beyond float16 where that is how it is kept."""

FLOAT16_MAX = 65504.0

_DTYPES: dict[Precision, type[np.generic]] = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "int4": np.uint8}


def rotate(rows: NDArray[np.float32], rope: Rope, first_position: int) -> NDArray[np.float32]:
    """Turn queries or keys by their positions.

    Args:
        rows: float32 (rows, heads, head_dim); left as they are.
        rope: the angles. Channels from its `rotary_dim` on stay as they are.
        first_position: of the first row; the others follow.

    Returns:
        float32 (rows, heads, head_dim). A pair (a, b) becomes (a cos - b sin, b cos + a sin); each product and each
        sum is rounded to float32.

    Source:
        RoFormer (arXiv 2104.09864), section 3.4.2; the order of the channels of GPT-J (interleaved) and GPT-NeoX.
    """
    cosines = rope.cosines[first_position : first_position + len(rows), None]
    sines = rope.sines[first_position : first_position + len(rows), None]
    if rope.is_interleaved:
        first, second = slice(0, rope.rotary_dim, 2), slice(1, rope.rotary_dim, 2)
    else:
        first, second = slice(0, rope.rotary_dim // 2), slice(rope.rotary_dim // 2, rope.rotary_dim)
    turned = np.array(rows, np.float32)
    turned[..., first] = rows[..., first] * cosines - rows[..., second] * sines
    turned[..., second] = rows[..., second] * cosines + rows[..., first] * sines
    return turned


@dataclass(frozen=True, slots=True)
class LayerArrays:
    """A layer's arrays in a page, of all heads: views that are written through.

    Attributes:
        keys: (num_kv_heads, head_dim, 64), or uint8 (num_kv_heads, head_dim, 32) at 4 bits.
        key_scales: float16 (num_kv_heads, head_dim, 1); None at 16 and 32 bits.
        key_zeros: float16 (num_kv_heads, head_dim, 1); None but at 4 bits.
        values: (num_kv_heads, 64, head_dim), or uint8 (num_kv_heads, 64, head_dim / 2) at 4 bits.
        value_scales: float16 (num_kv_heads, 64, num_value_groups, 1); None at 16 and 32 bits.
        value_zeros: float16 (num_kv_heads, 64, num_value_groups, 1); None but at 4 bits.
    """

    keys: NDArray[Any]
    key_scales: NDArray[np.float16] | None
    key_zeros: NDArray[np.float16] | None
    values: NDArray[Any]
    value_scales: NDArray[np.float16] | None
    value_zeros: NDArray[np.float16] | None


def layer_arrays(page_format: PageFormat, layer: int, page: Page) -> LayerArrays:
    """Return views of a layer's arrays in a page."""
    geometry, layout = page_format.geometry, page_format.slices[layer]
    num_heads, channels = geometry.num_kv_heads, geometry.head_dim
    end = layout.offset + num_heads * layout.head_bytes
    heads = page[layout.offset : end].reshape(num_heads, layout.head_bytes)

    def view(offset: int, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return heads[:, offset : offset + nbytes].view(dtype).reshape(num_heads, *shape)

    keys, values = layout.precision.keys, layout.precision.values
    groups = (BLOCK_ENTRIES, geometry.num_value_groups, 1)
    return LayerArrays(
        keys=view(0, _DTYPES[keys], channels, BLOCK_ENTRIES // (1 + (keys == "int4"))),
        key_scales=view(layout.key_scales, np.float16, channels, 1) if keys in ("int8", "int4") else None,
        key_zeros=view(layout.key_zeros, np.float16, channels, 1) if keys == "int4" else None,
        values=view(layout.values, _DTYPES[values], BLOCK_ENTRIES, channels // (1 + (values == "int4"))),
        value_scales=view(layout.value_scales, np.float16, *groups) if values in ("int8", "int4") else None,
        value_zeros=view(layout.value_zeros, np.float16, *groups) if values == "int4" else None,
    )


def sink_arrays(cache_format: CacheFormat, layer: int, sinks: Page) -> NDArray[Any]:
    """Return a view of a layer's sinks: float16 or float32 (num_kv_heads, key and value, num_sinks, head_dim)."""
    geometry = cache_format.geometry
    dtype = np.dtype(_DTYPES[cache_format.open_precision])
    shape = (geometry.num_kv_heads, 2, cache_format.num_sinks, geometry.head_dim)
    nbytes = math.prod(shape) * dtype.itemsize
    return sinks[layer * nbytes : (layer + 1) * nbytes].view(dtype).reshape(shape)


def close_block(cache_format: CacheFormat, page_format: int, layer: int, open_page: Page, page: Page) -> None:
    """Compress one layer of an open, full block.

    Args:
        cache_format: how the caches of the model are stored.
        page_format: place of the format to compress to in `cache_format.pages`.
        layer: of the model.
        open_page: holds 64 entries in `cache_format.open`.
        page: uint8 (nbytes of the format,), written to: the layer's part and nothing else.
    """
    raw = layer_arrays(cache_format.open, layer, open_page)
    target = cache_format.pages[page_format]
    into, precision = layer_arrays(target, layer, page), target.layers[layer]
    _compress(precision.keys, raw.keys.astype(np.float32), into.keys, into.key_scales, into.key_zeros)
    values = _grouped(raw.values.astype(np.float32), target.geometry)
    _compress(precision.values, values, into.values, into.value_scales, into.value_zeros)


def read(
    page_format: PageFormat, layer: int, page: Page, first: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Restore entries of one layer of a page.

    Args:
        page_format: of the page.
        layer: of the model.
        page: uint8 (page_format.nbytes,).
        first: of the entries, 0 to 63.
        count: of entries, up to 64 - first.

    Returns:
        Keys and values, each float32 (count, num_kv_heads, head_dim), newly allocated.
    """
    keys, values = _restore(page_format, layer, page)
    entries = slice(first, first + count)
    return (
        np.ascontiguousarray(keys[:, :, entries].transpose(2, 0, 1)),
        np.ascontiguousarray(values[:, entries].transpose(1, 0, 2)),
    )


def _compress(
    precision: Precision,
    values: NDArray[np.float32],
    codes: NDArray[Any],
    scales: NDArray[np.float16] | None,
    zeros: NDArray[np.float16] | None,
) -> None:
    """Write `values` (..., what shares a scale) in a precision into the arrays of a page."""
    if scales is None:
        codes[:] = values.reshape(codes.shape)
    elif zeros is None:
        quantized, scales[:] = quantize_int8(values)
        codes[:] = quantized.reshape(codes.shape)
    else:
        unpacked, scales[:], zeros[:] = quantize_int4(values)
        codes[:] = pack_halves(unpacked.reshape(*codes.shape[:-1], -1))


def _restore(page_format: PageFormat, layer: int, page: Page) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return keys (num_kv_heads, head_dim, 64) and values (num_kv_heads, 64, head_dim)."""
    arrays, precision = layer_arrays(page_format, layer, page), page_format.layers[layer]
    keys, values = arrays.keys, arrays.values
    if precision.keys == "int4":
        keys = unpack_halves(keys)
    if precision.values == "int4":
        values = unpack_halves(values)
    keys = (
        keys.astype(np.float32) if arrays.key_scales is None else dequantize(keys, arrays.key_scales, arrays.key_zeros)
    )
    if arrays.value_scales is None:
        return keys, values.astype(np.float32)
    grouped = _grouped(values, page_format.geometry)
    return keys, dequantize(grouped, arrays.value_scales, arrays.value_zeros).reshape(values.shape)


def _grouped(values: NDArray[Any], geometry: KVGeometry) -> NDArray[Any]:
    """Split the channels, the last axis, into the groups that share a scale: as many equal runs of neighbours."""
    return values.reshape(*values.shape[:-1], geometry.num_value_groups, -1)


def step(
    cache_format: CacheFormat,
    scale: float,
    rope: Rope | None,
    sequences: Sequence[KVSequence],
    layer: int,
    queries: NDArray[np.float32] | None,
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    context: NDArray[np.float32] | None,
) -> int:
    """Append rows to one layer of caches and attend to all entries up to each row's own.

    Args:
        cache_format: how the caches of the model are stored.
        scale: of the scores.
        rope: turns queries and keys; None: they come turned.
        sequences: their part of the step, in the order of the rows.
        layer: of the model.
        queries: float32 (rows, num_query_heads, head_dim); needed with `context` only.
        keys: float32 (rows, num_kv_heads, head_dim).
        values: float32 (rows, num_kv_heads, head_dim).
        context: float32 (rows, num_query_heads, head_dim), written to; None: nothing is attended to.

    Returns:
        `OK`; `NOT_FINITE` if any key, turned, or value is that, else `TOO_LARGE` if any is: then nothing was written.
    """
    ends = np.cumsum([sequence.num_rows for sequence in sequences])
    parts = [slice(end - sequence.num_rows, end) for end, sequence in zip(ends, sequences, strict=True)]
    if rope is not None:
        turned = [rotate(keys[p], rope, s.first_position) for p, s in zip(parts, sequences, strict=True)]
        keys = np.concatenate(turned)
    if not (np.isfinite(keys).all() and np.isfinite(values).all()):
        return NOT_FINITE
    limits = magnitude_limits(cache_format, layer)
    if any((np.abs(rows) > limit).any() for rows, limit in zip((keys, values), limits, strict=True)):
        return TOO_LARGE
    for part, sequence in zip(parts, sequences, strict=True):
        if queries is None or context is None:
            _extend(cache_format, scale, sequence, layer, None, keys[part], values[part], None)
            continue
        turned_queries = queries[part] if rope is None else rotate(queries[part], rope, sequence.first_position)
        _extend(cache_format, scale, sequence, layer, turned_queries, keys[part], values[part], context[part])
    return OK


def magnitude_limits(cache_format: CacheFormat, layer: int) -> tuple[float, float]:
    """Return how large a layer's keys and values may be: as float16, unless all that keeps them is float32."""
    kept = [page_format.layers[layer] for page_format in (cache_format.open, *cache_format.pages)]
    return (
        np.inf if all(precision.keys == "f32" for precision in kept) else FLOAT16_MAX,
        np.inf if all(precision.values == "f32" for precision in kept) else FLOAT16_MAX,
    )


def _extend(
    cache_format: CacheFormat,
    scale: float,
    sequence: KVSequence,
    layer: int,
    queries: NDArray[np.float32] | None,
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    context: NDArray[np.float32] | None,
) -> None:
    """Append a sequence's turned rows and attend: from one block's border to the next."""
    num_sinks, before = cache_format.num_sinks, sequence.num_entries
    end = before + sequence.num_rows
    num_closed = cache_format.num_closed(before)
    history = None if context is None else _history(cache_format, layer, sequence, end)
    entry = before
    while entry < end:
        is_sink = entry < num_sinks
        block = 0 if is_sink else (entry - num_sinks) // BLOCK_ENTRIES
        border = 0 if is_sink else num_sinks + block * BLOCK_ENTRIES
        stop = min(end, num_sinks if is_sink else border + BLOCK_ENTRIES)
        if entry == border and block > 0:
            closed = _close(cache_format, layer, sequence, block - 1, num_closed)
            if history is not None:
                history[:, :, border - BLOCK_ENTRIES : border] = closed
        rows, entries = slice(entry - before, stop - before), slice(entry - border, stop - border)
        if is_sink:
            assert sequence.sinks is not None
            stored = sink_arrays(cache_format, layer, sequence.sinks)[:, :, entries]
            stored_keys, stored_values = stored[:, 0], stored[:, 1]
        else:
            arrays = layer_arrays(cache_format.open, layer, sequence.open_pages[block - num_closed])
            stored_keys, stored_values = arrays.keys[:, :, entries].transpose(0, 2, 1), arrays.values[:, entries]
        stored_keys[:] = keys[rows].transpose(1, 0, 2)
        stored_values[:] = values[rows].transpose(1, 0, 2)
        if history is not None and queries is not None and context is not None:
            history[0, :, entry:stop], history[1, :, entry:stop] = stored_keys, stored_values
            context[rows] = _attend(scale, queries[rows], history[0, :, :stop], history[1, :, :stop])
        entry = stop


def _history(cache_format: CacheFormat, layer: int, sequence: KVSequence, capacity: int) -> NDArray[np.float32]:
    """Return a sequence's entries of a layer with room for new ones: float32 (2, num_kv_heads, capacity, head_dim)."""
    geometry, num_sinks, num_entries = cache_format.geometry, cache_format.num_sinks, sequence.num_entries
    history = np.empty((2, geometry.num_kv_heads, capacity, geometry.head_dim), np.float32)
    if num_sinks and sequence.sinks is not None:
        count = min(num_sinks, num_entries)
        history[:, :, :count] = sink_arrays(cache_format, layer, sequence.sinks)[:, :, :count].swapaxes(0, 1)
    num_closed, num_open = cache_format.num_closed(num_entries), cache_format.num_open(num_entries)
    for block in range(num_closed):
        start = num_sinks + block * BLOCK_ENTRIES
        page_format = cache_format.pages[sequence.block_formats[block]]
        history[:, :, start : start + BLOCK_ENTRIES] = _entries(page_format, layer, sequence.blocks[block])
    if 0 < num_open < BLOCK_ENTRIES:  # a full block is closed before anything attends to it
        open_entries = _entries(cache_format.open, layer, sequence.open_pages[0])
        history[:, :, num_entries - num_open : num_entries] = open_entries[:, :, :num_open]
    return history


def _close(
    cache_format: CacheFormat, layer: int, sequence: KVSequence, block: int, num_closed: int
) -> NDArray[np.float32]:
    """Close a block, unless its page is closed already; return what it holds from now on."""
    open_page, page = sequence.open_pages[block - num_closed], sequence.blocks[block]
    page_format = sequence.block_formats[block]
    if page is not open_page:
        close_block(cache_format, page_format, layer, open_page, page)
    return _entries(cache_format.pages[page_format], layer, page)


def _entries(page_format: PageFormat, layer: int, page: Page) -> NDArray[np.float32]:
    """Return a page's keys and values as float32 (2, num_kv_heads, 64, head_dim)."""
    keys, values = _restore(page_format, layer, page)
    return np.stack([keys.transpose(0, 2, 1), values])


def _attend(
    scale: float, queries: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Attend to all entries up to each row's own, the last of which is that of the last row.

    Args:
        scale: of the scores.
        queries: float32 (rows, num_query_heads, head_dim).
        keys: float32 (num_kv_heads, entries, head_dim).
        values: float32 (num_kv_heads, entries, head_dim).

    Returns:
        float32 (rows, num_query_heads, head_dim).
    """
    num_kv_heads, _, head_dim = keys.shape
    num_rows = len(queries)
    grouped = queries.reshape(num_rows, num_kv_heads, -1, head_dim).transpose(1, 2, 0, 3)
    stacked = grouped.reshape(num_kv_heads, -1, head_dim)  # the rows of a head, then those of the next one
    is_later = np.triu(np.ones((num_rows, num_rows), np.bool_), 1)
    with np.errstate(over="ignore", invalid="ignore"):  # queries that are not finite are the caller's to find
        scores = np.float32(scale) * (stacked @ keys.transpose(0, 2, 1))
        newest = scores.reshape(num_kv_heads, -1, num_rows, scores.shape[-1])[..., -num_rows:]
        newest[..., is_later] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context: NDArray[np.float32] = (weights @ values) / weights.sum(-1, keepdims=True)
    return context.reshape(grouped.shape).transpose(2, 0, 1, 3).reshape(queries.shape)
