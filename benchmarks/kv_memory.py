"""Memory of compressed KV caches against float16, everything included.

Ours is counted in pages as they are held, with sinks, open block and the rounding of pages; float16 without any of
that: entries times layers, heads and channels, two bytes each. That the pool counts right is checked with the growth of
this process's resident memory while several caches are filled.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.kv_rows import KVRowsSource, append_rows
from benchmarks.process_memory import anonymous_kib
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl_kernels.kv import KVKernels
from edge_vl_kernels.kv_format import CacheFormat, KVGeometry, LayerPrecision, PageFormat, Precision
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.paged_cache import PagedKVCache

__all__ = ["Scheme", "cache_format", "float16_bytes"]

NUM_ENTRIES = 4096
NUM_SINKS = 4
MAX_OFF = 0.05

GEOMETRIES = (KVGeometry(30, 9, 3, 64), KVGeometry(28, 16, 4, 128))


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to compress.

    Attributes:
        name: in tables.
        keys: precision of keys.
        values: of values.
        guarded_layers: first and last layers, so many each, that have 8 bits.
        min_saved: bar for what it saves of float16's memory.
    """

    name: str
    keys: Precision
    values: Precision
    guarded_layers: int = 0
    min_saved: float = 0.0


SCHEMES = (
    Scheme("K8V8", "int8", "int8", min_saved=0.465),
    Scheme("K8V4", "int8", "int4", min_saved=0.57),
    Scheme("K4V4, K8V8 first and last", "int4", "int4", guarded_layers=1, min_saved=0.66),
)


def cache_format(geometry: KVGeometry, scheme: Scheme) -> CacheFormat:
    """Return how a model's caches are stored under a scheme; uncompressed entries are float16."""
    inner = LayerPrecision(scheme.keys, scheme.values)
    guard = (LayerPrecision("int8", "int8"),) * scheme.guarded_layers
    layers = (*guard, *(inner,) * (geometry.num_layers - 2 * scheme.guarded_layers), *guard)
    raw = PageFormat(geometry, (LayerPrecision("f16", "f16"),) * geometry.num_layers)
    return CacheFormat((PageFormat(geometry, layers),), raw, NUM_SINKS)


def float16_bytes(geometry: KVGeometry, num_entries: int) -> int:
    """Return what keys and values alone take in float16."""
    return 2 * 2 * num_entries * geometry.num_layers * geometry.num_kv_heads * geometry.head_dim


def run(quick: bool) -> Result:
    """Fill caches of every geometry and scheme, or of the first geometry."""
    geometries, num_caches = (GEOMETRIES[:1], 1) if quick else (GEOMETRIES, 4)
    bars: dict[str, Bar] = {}
    table: list[dict[str, Cell]] = []
    for geometry in geometries:
        layers, heads, head_dim = geometry.num_layers, geometry.num_kv_heads, geometry.head_dim
        size = f"{layers} x {heads} x {head_dim}"
        source = KVRowsSource(layers, heads, head_dim, max_entries=NUM_ENTRIES)
        for scheme in SCHEMES:
            report(f"{size}, {scheme.name}")
            held, grew = _measure(cache_format(geometry, scheme), source, num_caches)
            float16 = float16_bytes(geometry, NUM_ENTRIES)
            saved = 1 - held / float16
            bars[f"saved of float16, {size}, {scheme.name}"] = Bar(saved, scheme.min_saved, at_least=True)
            off = abs(grew / (num_caches * held) - 1)
            bars[f"pages against resident growth, off by, {size}, {scheme.name}"] = Bar(off, MAX_OFF)
            elements = float16 // 2
            table.append(
                {
                    "layers x heads x channels": size,
                    "scheme": scheme.name,
                    "held_mib": round(held / 2**20, 3),
                    "float16_mib": round(float16 / 2**20, 3),
                    "bits_per_element": round(8 * held / elements, 3),
                    "saved_of_f16": round(saved, 4),
                    "saved_of_f32": round(1 - held / float16 / 2, 4),
                    "resident_mib": round(grew / num_caches / 2**20, 3),
                }
            )
    return Result(bars, table)


def _measure(layout: CacheFormat, source: KVRowsSource, num_caches: int) -> tuple[int, int]:
    """Return the bytes that the pages of one full cache have, and by how much memory grew with all of them."""
    kernels = KVKernels(layout, scale=layout.geometry.head_dim**-0.5)
    pool = PagePool(max_free_bytes=0)
    try:
        _filled(pool, kernels, layout, source).close()  # whatever is taken once, scratch memory above all
        before_kib = anonymous_kib()
        caches = [_filled(pool, kernels, layout, source) for _ in range(num_caches)]
        grew = (anonymous_kib() - before_kib) * 1024
        held = pool.nbytes_in_use
        if held != sum(cache.nbytes for cache in caches):
            raise RuntimeError(f"the pool holds {held} bytes and its caches {[cache.nbytes for cache in caches]}")
        for cache in caches:
            cache.close()
    finally:
        pool.close()
        kernels.close()
    return held // num_caches, grew


def _filled(pool: PagePool, kernels: KVKernels, layout: CacheFormat, source: KVRowsSource) -> PagedKVCache:
    cache = PagedKVCache(pool, kernels, layout, pool, NUM_ENTRIES)
    append_rows(cache, kernels, source, NUM_ENTRIES)
    return cache
