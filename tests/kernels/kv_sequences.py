"""Sequences whose pages are kept the plain way: a fresh open page for every block, all raw pages kept to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels import (
    BLOCK_ENTRIES,
    CacheFormat,
    KVGeometry,
    KVKernels,
    KVSequence,
    LayerPrecision,
    Page,
    PageFormat,
    Precision,
    Rope,
    aligned_page,
)

Pair = tuple[Precision, Precision]
"""Of keys, and of values."""

Rows = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
"""Queries, keys and values of some rows: float32 (rows, heads, head_dim)."""

FILL = 0xA5
"""What pages are full of at first: whatever is not written stays that."""


def make_format(
    geometry: KVGeometry, *pages: Pair | list[Pair], open_precision: Precision = "f16", num_sinks: int = 4
) -> CacheFormat:
    """Return a format of a model; each of `pages` is the precision of keys and values, of all layers or of each."""
    formats = []
    for page in pages:
        layers = page if isinstance(page, list) else [page] * geometry.num_layers
        formats.append(PageFormat(geometry, tuple(LayerPrecision(keys, values) for keys, values in layers)))
    raw = LayerPrecision(open_precision, open_precision)
    return CacheFormat(tuple(formats), PageFormat(geometry, (raw,) * geometry.num_layers), num_sinks)


def make_rope(num_positions: int, rotary_dim: int, is_interleaved: bool = False, base: float = 10_000.0) -> Rope:
    """Return tables of angles as language models have them."""
    frequencies = base ** (-np.arange(rotary_dim // 2) * 2.0 / rotary_dim)
    angles = np.arange(num_positions)[:, None] * frequencies
    return Rope(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), is_interleaved)


def make_rows(geometry: KVGeometry, num_rows: int, rng: np.random.Generator, spread: float = 1.0) -> Rows:
    """Return rows of noise, with some channels of the keys far off zero, as the biases of real models put them."""
    shape = (num_rows, geometry.num_kv_heads, geometry.head_dim)
    queries = rng.normal(size=(num_rows, geometry.num_query_heads, geometry.head_dim))
    biases = rng.normal(size=shape[1:]) * rng.choice([0.0, 1.0, 8.0], shape[1:], p=[0.8, 0.15, 0.05])
    keys = rng.normal(size=shape) * spread + biases
    values = rng.normal(size=shape) * spread
    return queries.astype(np.float32), keys.astype(np.float32), values.astype(np.float32)


class GrowingSequence:
    """One sequence. `begin` a step, run it, then `commit`; without that nothing has happened.

    Attributes:
        num_entries: stored.
        first_position: of entry 0.
        sinks: its page, or None.
        blocks: pages of closed blocks.
        formats: and which format each has.
        raw_pages: the open page of each block, full or not.
    """

    def __init__(
        self, cache_format: CacheFormat, choose: Callable[[int], int] = lambda _: 0, first_position: int = 0
    ) -> None:
        """Begin empty.

        Args:
            cache_format: of all its pages.
            choose: the format of a block that is closed, by its number.
            first_position: of entry 0.
        """
        self.cache_format = cache_format
        self.num_entries = 0
        self.first_position = first_position
        self.sinks = _page(cache_format.sinks_nbytes) if cache_format.num_sinks else None
        self.blocks: list[Page] = []
        self.formats: list[int] = []
        self.raw_pages: list[Page] = []
        self._choose = choose

    def begin(self, num_rows: int) -> KVSequence:
        """Return its part of a step that appends so many rows."""
        cache_format, end = self.cache_format, self.num_entries + num_rows
        num_closed = cache_format.num_closed(end)
        first = len(self.blocks)
        while len(self.raw_pages) * BLOCK_ENTRIES < end - cache_format.num_sinks:
            self.raw_pages.append(_page(cache_format.open.nbytes))
        blocks, formats = list(self.blocks), list(self.formats)
        for block in range(first, num_closed):
            page_format = cache_format.pages[self._choose(block)]
            is_raw = page_format.layers == cache_format.open.layers
            formats.append(self._choose(block))
            blocks.append(self.raw_pages[block] if is_raw else _page(page_format.nbytes))
        open_pages = self.raw_pages[first : num_closed + 1] if end > cache_format.num_sinks else []
        position = self.first_position + self.num_entries
        return KVSequence(self.num_entries, num_rows, position, self.sinks, blocks, formats, open_pages)

    def commit(self, part: KVSequence) -> None:
        """Take what a step did."""
        self.num_entries += part.num_rows
        self.blocks, self.formats = list(part.blocks), list(part.block_formats)


def append(kernels: KVKernels, sequence: GrowingSequence, layers: Sequence[Rows]) -> NDArray[np.float32]:
    """Append rows to one sequence, one `Rows` for each layer; return the context (layers, rows, query heads, dim)."""
    (context,) = append_all(kernels, [sequence], [layers])
    return context


def append_all(
    kernels: KVKernels, sequences: Sequence[GrowingSequence], layers: Sequence[Sequence[Rows]]
) -> list[NDArray[np.float32]]:
    """Append rows to several sequences in one step, `layers` for each; return the context of each."""
    parts = [s.begin(len(rows[0][1])) for s, rows in zip(sequences, layers, strict=True)]
    step = kernels.step(parts)
    contexts = []
    for layer in range(kernels.cache_format.geometry.num_layers):
        queries, keys, values = (np.concatenate([rows[layer][i] for rows in layers]) for i in range(3))
        context = np.full_like(queries, np.nan)
        step.run(layer, kernels.rows(queries, keys, values, context))
        contexts.append(context)
    ends = np.cumsum([part.num_rows for part in parts])
    for sequence, part in zip(sequences, parts, strict=True):
        sequence.commit(part)
    return np.split(np.stack(contexts), ends[:-1], axis=1)


def split_rows(layers: Sequence[Rows], sizes: Sequence[int]) -> list[list[Rows]]:
    """Cut the rows of all layers into runs of these sizes."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    return [
        [(queries[a:b], keys[a:b], values[a:b]) for queries, keys, values in layers]
        for a, b in zip(starts, ends, strict=True)
    ]


def _page(nbytes: int) -> Page:
    page = aligned_page(nbytes)
    page[:] = FILL
    return page
