"""Made-up entries: what is stored is what the source has, whatever the kernels do to keys."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.kv_rows import KVRowsSource, append_rows
from benchmarks.paged_layer import uniform_format
from edge_vl_kernels.kv import KVKernels, Rope
from edge_vl_kernels.kv_format import KVGeometry
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.paged_cache import PagedKVCache

GEOMETRY = KVGeometry(2, 4, 2, 32)
SOURCE = KVRowsSource(2, 2, 32, max_entries=1300)


def rope(is_interleaved: bool) -> Rope:
    angles = np.arange(1300)[:, None] * 0.7 ** np.arange(12)
    return Rope(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), is_interleaved)


@pytest.mark.parametrize("turns", [None, rope(False), rope(True)])
def test_the_cache_holds_the_entries_of_the_source(turns: Rope | None) -> None:
    layout = uniform_format(GEOMETRY, "f32")
    kernels = KVKernels(layout, scale=1.0, rope=turns)
    pool = PagePool()
    cache = PagedKVCache(pool, kernels, layout, pool, 1300)

    append_rows(cache, kernels, SOURCE, 70)
    append_rows(cache, kernels, SOURCE, 1200)

    assert cache.num_tokens == 1270
    pages = cache.begin(1).blocks
    for layer in range(2):
        for number in (0, 1, 18):
            keys, values = kernels.read(0, layer, pages[number], 0, 64)
            place = slice(64 * number, 64 * number + 64)
            assert np.allclose(keys, SOURCE.entries(layer, False, 1270)[:, place].swapaxes(0, 1), atol=1e-5)
            assert np.array_equal(values, SOURCE.entries(layer, True, 1270)[:, place].swapaxes(0, 1))
    cache.abort()
    cache.close()
    pool.close()
    kernels.close()


def test_layers_keys_and_values_differ_and_begin_alike_whatever_their_number() -> None:
    few, many = SOURCE.entries(1, True, 10), SOURCE.entries(1, True, 1300)

    assert np.array_equal(few, many[:, :10])
    assert few.shape == (2, 10, 32)
    assert not np.array_equal(few, SOURCE.entries(1, False, 10))
    assert not np.array_equal(few, SOURCE.entries(0, True, 10))


def test_more_entries_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="there are 1300 entries, not 1301"):
        SOURCE.entries(0, False, 1301)
