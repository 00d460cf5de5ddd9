"""Paged caches over real kernels, with rows that are known by their number."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_vl_kernels.kv import KVKernels, Page, Rope, aligned_page
from edge_vl_kernels.kv_format import CacheFormat
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.paged_cache import PagedKVCache
from tests.engines.naive_kv_cache import Floats, NaiveCache

__all__ = ["CONTEXT_LENGTH", "Memory", "Model", "content", "holds", "is_same", "pages"]

CONTEXT_LENGTH = 500


class Model:
    """Kernels and pool of one language model; caches with rows that are known by their number."""

    def __init__(self, cache_format: CacheFormat, rope: Rope | None = None) -> None:
        self.format = cache_format
        self.kernels = KVKernels(cache_format, scale=0.2, rope=rope)
        self.pool = PagePool()
        geometry = cache_format.geometry
        shape = (CONTEXT_LENGTH, geometry.num_layers, 2, geometry.num_kv_heads, geometry.head_dim)
        self.rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32)

    def cache(self, num_tokens: int = 0, *, is_image: bool = False) -> PagedKVCache:
        cache = PagedKVCache(self.pool, self.kernels, self.format, self, CONTEXT_LENGTH)
        if num_tokens:
            self.append(cache, num_tokens, is_image=is_image)
        return cache

    def append(self, cache: PagedKVCache, count: int, *, is_image: Any = False, first: int | None = None) -> None:
        """Append the rows from number `first`, the cache's next position, on."""
        self.run(cache, count, is_image=is_image, first=first)
        cache.commit()

    def run(
        self,
        cache: PagedKVCache,
        count: int,
        *,
        is_image: Any = False,
        first: int | None = None,
        num_layers: int | None = None,
    ) -> None:
        """Begin a step and run it through the first layers."""
        first = cache.num_tokens if first is None else first
        step = self.kernels.step([cache.begin(count, is_image)])
        for layer in range(self.format.geometry.num_layers if num_layers is None else num_layers):
            keys, values = (self.rows[first : first + count, layer, place] for place in (0, 1))
            step.run(layer, self.kernels.rows(None, keys, values, None))

    def twin(self, num_tokens: int, *, is_image: bool = False) -> NaiveCache:
        twin = NaiveCache(self.format)
        twin.extend(self.rows[:num_tokens], [is_image] * num_tokens)
        return twin

    def close(self) -> None:
        self.kernels.close()


class Memory:
    """Allocates pages until it is told that there are only so many left."""

    def __init__(self, num_left: int | None = None) -> None:
        self.num_left = num_left

    def page(self, nbytes: int) -> Page:
        if self.num_left is not None:
            if not self.num_left:
                raise OSError(12, "Cannot allocate memory")
            self.num_left -= 1
        return aligned_page(nbytes)


def content(cache: PagedKVCache) -> Floats:
    """Return the entries, float32 (num_tokens, num_layers, key and value, num_kv_heads, head_dim)."""
    num_layers = cache._table.cache_format.geometry.num_layers
    return np.stack([np.stack(cache.read(layer), axis=1) for layer in range(num_layers)], axis=1)


def holds(cache: PagedKVCache, twin: NaiveCache) -> None:
    assert cache.num_tokens == cache.next_position == twin.num_tokens
    if twin.num_tokens:
        np.testing.assert_array_equal(content(cache), twin.entries)


def pages(cache: PagedKVCache) -> list[Page]:
    return list(cache._table.pages())


def is_same(one: list[Page], other: list[Page]) -> bool:
    return [id(page) for page in one] == [id(page) for page in other]
