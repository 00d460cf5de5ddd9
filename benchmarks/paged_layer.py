"""Our attention over the pages of one layer, as the benchmark of the kernels runs it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.kv_rows import KVRowsSource, append_rows
from edge_vl_kernels.kv import KVKernels
from edge_vl_kernels.kv_format import (
    BLOCK_ENTRIES,
    CacheFormat,
    KVGeometry,
    LayerPrecision,
    PageFormat,
    Precision,
)
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.paged_cache import PagedKVCache

__all__ = ["NUM_SINKS", "PagedLayer", "Row", "uniform_format"]

NUM_SINKS = 4

Row = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
"""Query, key and value, float32 (heads, head_dim)."""


class PagedLayer:
    """Our kernels over the pages of one layer."""

    def __init__(
        self, geometry: KVGeometry, source: KVRowsSource, num_entries: int, precision: Precision, row: Row
    ) -> None:
        """Fill a cache and prepare the step that appends the row."""
        self._format = uniform_format(geometry, precision)
        self._kernels = KVKernels(self._format, scale=geometry.head_dim**-0.5)
        self._pool = PagePool(max_free_bytes=0)
        self._cache = PagedKVCache(self._pool, self._kernels, self._format, self, num_entries + 1)
        append_rows(self._cache, self._kernels, source, num_entries)
        query, key, value = (part[None] for part in row)
        self.context: NDArray[np.float32] = np.zeros_like(query)
        self._step = self._kernels.step([self._cache.begin(1)])
        self._rows = self._kernels.rows(query, key, value, self.context)

    @property
    def nbytes(self) -> int:
        """Codes, scales and zeros of all blocks."""
        return _layer_bytes(self._format, self._cache.num_tokens)

    def run(self) -> None:
        """Append the row and attend."""
        self._step.run(0, self._rows)

    def close(self) -> None:
        """Give the memory back."""
        self._cache.close()
        self._pool.close()
        self._kernels.close()


def uniform_format(geometry: KVGeometry, precision: Precision) -> CacheFormat:
    """Return a format with one precision for everything, and float16 where that is compressed and not full yet."""
    is_raw = precision in ("f32", "f16")
    open_precision: Precision = precision if is_raw else "f16"
    pages, raw = (
        PageFormat(geometry, (LayerPrecision(kind, kind),) * geometry.num_layers)
        for kind in (precision, open_precision)
    )
    return CacheFormat((pages,), raw, 0 if is_raw else NUM_SINKS)


def _layer_bytes(layout: CacheFormat, num_entries: int) -> int:
    """Return the bytes of all entries of the only layer, closed blocks and the open one."""
    heads = layout.geometry.num_kv_heads
    closed, raw = (page.slices[0].head_bytes * heads for page in (layout.pages[0], layout.open))
    num_raw = layout.num_open(num_entries) + layout.num_sinks
    return layout.num_closed(num_entries) * closed + raw * num_raw // BLOCK_ENTRIES
