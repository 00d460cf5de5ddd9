"""Made-up keys and values that fill the caches of every system alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edge_vl_kernels.kv import KVKernels, Rope
    from edge_vl_onnxruntime.paged_cache import PagedKVCache

__all__ = ["KVRowsSource", "append_rows"]

_STEP_ROWS = 1024
_SHIFT = 37  # entries between the rows of one layer and those of the next


class KVRowsSource:
    """Normally distributed keys and values of all layers, cut from one array, so that even 32k entries take no time.

    How long attention takes does not depend on the values.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, *, max_entries: int, seed: int = 0) -> None:
        """Make the array.

        Args:
            num_layers: decoder layers.
            num_kv_heads: key/value heads.
            head_dim: channels of a head.
            max_entries: that are ever asked for at once.
            seed: equal seeds give equal rows.
        """
        self.num_layers = num_layers
        self.head_dim = head_dim
        self.max_entries = max_entries
        shape = (num_kv_heads, max_entries + 2 * num_layers * _SHIFT, head_dim)
        self._entries = np.random.default_rng(seed).standard_normal(shape, np.float32)

    def entries(self, layer: int, is_value: bool, num_entries: int) -> NDArray[np.float32]:
        """Return the first keys or values of a layer, float32 (num_kv_heads, num_entries, head_dim), a view."""
        if num_entries > self.max_entries:
            raise ValueError(f"there are {self.max_entries} entries, not {num_entries}")
        start = (2 * layer + is_value) * _SHIFT
        return self._entries[:, start : start + num_entries]


def append_rows(cache: PagedKVCache, kernels: KVKernels, source: KVRowsSource, num_entries: int) -> None:
    """Append entries to a paged cache without attending to anything.

    Args:
        cache: at most `source.max_entries` less `num_entries` are in it.
        kernels: those of the cache. Where they turn keys by their positions, the rows are turned back before, so that
            what is stored is what the source has.
        source: its entry `i` becomes the cache's.
        num_entries: how many.
    """
    end = cache.num_tokens + num_entries
    while cache.num_tokens < end:
        start = cache.num_tokens
        stop = min(end, start + _STEP_ROWS)
        step = kernels.step([cache.begin(stop - start)])
        for layer in range(source.num_layers):
            keys, values = (
                source.entries(layer, is_value, stop)[:, start:].swapaxes(0, 1) for is_value in (False, True)
            )
            if kernels.rope is not None:
                keys = _turned_back(keys, kernels.rope, start)
            step.run(layer, kernels.rows(None, keys, values, None))
        cache.commit()


def _turned_back(keys: NDArray[np.float32], rope: Rope, first_position: int) -> NDArray[np.float32]:
    """Turn keys, float32 (rows, heads, head_dim), against their positions."""
    rows, half = len(keys), rope.rotary_dim // 2
    cosines, sines = (table[first_position : first_position + rows, None] for table in (rope.cosines, rope.sines))
    turned = keys.copy()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if rope.is_interleaved else (
        slice(0, half), slice(half, 2 * half)
    )  # fmt: skip
    turned[..., first] = keys[..., first] * cosines + keys[..., second] * sines
    turned[..., second] = keys[..., second] * cosines - keys[..., first] * sines
    return turned
