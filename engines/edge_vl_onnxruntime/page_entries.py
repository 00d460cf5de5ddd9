"""What is in pages: read, and taken over by another sequence, shared by the page where possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels.kv_format import BLOCK_ENTRIES, Precision
from edge_vl_kernels.kv_reference import FLOAT16_MAX, layer_arrays, sink_arrays
from edge_vl_onnxruntime.page_table import PageTable

if TYPE_CHECKING:
    from edge_vl_kernels.kv import KVKernels, Page

__all__ = ["graft_pages", "read_entries"]

_OPEN = -1
"""Format of an open page, as `KVKernels.read` has it."""


def read_entries(
    kernels: KVKernels, table: PageTable, layer: int, num_entries: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Restore one layer of a sequence's entries.

    Args:
        kernels: of the model.
        table: the sequence's pages.
        layer: of the model.
        num_entries: of the sequence.

    Returns:
        Keys and values, each float32 (num_entries, num_kv_heads, head_dim), newly allocated.
    """
    cache_format = table.cache_format
    geometry = cache_format.geometry
    keys = np.empty((num_entries, geometry.num_kv_heads, geometry.head_dim), np.float32)
    values = np.empty_like(keys)
    if table.sinks is not None:
        count = min(cache_format.num_sinks, num_entries)
        keys[:count], values[:count] = kernels.read_sinks(layer, table.sinks, 0, count)
    entry = cache_format.num_sinks
    closed = zip(table.formats, table.blocks, strict=True)
    for page_format, page in (*closed, (_OPEN, table.open_page)):
        count = min(BLOCK_ENTRIES, num_entries - entry)
        if page is not None:
            part = slice(entry, entry + count)
            keys[part], values[part] = kernels.read(page_format, layer, page, 0, count)
        entry += count
    return keys, values


def graft_pages(kernels: KVKernels, table: PageTable, donor: PageTable, start: int, stop: int) -> None:
    """Give a table the entries `start` to `stop` of another one, behind `start` entries of its own.

    They are at the same places of the same blocks in both. A block that is all the donor's is shared as it is; what
    comes from a compressed block to the middle of one is restored, and compressed again with its neighbours.

    Args:
        kernels: of the model.
        table: changed in place; after an error it is of no use any more.
        donor: not changed. Has at least `stop` entries.
        start: entries of `table`.
        stop: more than `start`.

    Raises:
        MemoryError: the system has no more.
    """
    num_sinks = table.cache_format.num_sinks
    if start < num_sinks:
        _graft_sinks(table, donor, start, min(stop, num_sinks))
    entry = max(start, num_sinks)
    while entry < stop:
        block, first = divmod(entry - num_sinks, BLOCK_ENTRIES)
        last = min(BLOCK_ENTRIES, stop - num_sinks - BLOCK_ENTRIES * block)
        if block > len(table.blocks):
            _close_open(kernels, table)
        _graft_block(kernels, table, donor, block, first, last)
        entry += last - first


def _graft_sinks(table: PageTable, donor: PageTable, first: int, last: int) -> None:
    assert donor.sinks is not None
    if not first:
        table.pool.share((donor.sinks,))
        table.sinks = donor.sinks
        return
    sinks = table.own_sinks()
    for layer in range(table.cache_format.geometry.num_layers):
        source = sink_arrays(table.cache_format, layer, donor.sinks)
        sink_arrays(table.cache_format, layer, sinks)[:, :, first:last] = source[:, :, first:last]


def _graft_block(kernels: KVKernels, table: PageTable, donor: PageTable, block: int, first: int, last: int) -> None:
    """Take over the entries `first` to `last` of a block, of which the table has those before `first`."""
    is_closed = block < len(donor.blocks)
    page = donor.blocks[block] if is_closed else donor.open_page
    kinds = donor.kinds[block] if is_closed else donor.open_kinds
    assert page is not None
    is_raw = not is_closed or donor.is_raw_format(donor.formats[block])
    if not first and is_closed and last == BLOCK_ENTRIES:
        table.pool.share((page,))
        table.close_block(page, kinds)
    elif not first and is_raw:
        table.pool.share((page,))
        table.open_page, table.open_kinds = page, kinds
    else:
        page_format = donor.formats[block] if is_closed else _OPEN
        _copy_entries(kernels, table, page_format, page, first, last)
        table.open_kinds &= (1 << first) - 1
        table.open_kinds |= kinds >> first << first


def _copy_entries(kernels: KVKernels, table: PageTable, page_format: int, page: Page, first: int, last: int) -> None:
    """Write the entries `first` to `last` of a page to the same places of the open block."""
    cache_format = table.cache_format
    open_page = table.own_open_page()
    for layer in range(cache_format.geometry.num_layers):
        keys, values = kernels.read(page_format, layer, page, first, last - first)
        if page_format != _OPEN:
            precision = cache_format.pages[page_format].layers[layer]
            keys, values = _storable(keys, precision.keys), _storable(values, precision.values)
        arrays = layer_arrays(cache_format.open, layer, open_page)
        arrays.keys[:, :, first:last] = keys.transpose(1, 2, 0)
        arrays.values[:, first:last] = values.transpose(1, 0, 2)


def _storable(rows: NDArray[np.float32], precision: Precision) -> NDArray[np.float32]:
    """Bring what was restored back into the range of what was stored: a scale is rounded up, so it may be beyond it."""
    return rows if precision == "f32" else np.clip(rows, -FLOAT16_MAX, FLOAT16_MAX)


def _close_open(kernels: KVKernels, table: PageTable) -> None:
    """Close the open block, which is full, because an entry comes behind it."""
    open_page, kinds = table.open_page, table.open_kinds
    assert open_page is not None
    page_format = table.format_of(kinds)
    if table.is_raw_format(page_format):
        table.pool.share((open_page,))
        table.close_block(open_page, kinds)
    else:
        page = table.pool.take(table.cache_format.pages[page_format].nbytes)
        table.close_block(page, kinds)
        for layer in range(table.cache_format.geometry.num_layers):
            kernels.close_block(page_format, layer, open_page, page)
    table.drop_open()
