"""The naive twin of a paged cache: it keeps the rows themselves, shares nothing, and copies everything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels.kv_codes import dequantize, quantize_int4, quantize_int8
from edge_vl_kernels.kv_format import (
    BLOCK_ENTRIES,
    CacheFormat,
    KVGeometry,
    LayerPrecision,
    PageFormat,
    Precision,
)

__all__ = ["FORMATS", "Floats", "NaiveCache", "tiny_format"]

Floats = NDArray[np.float32]
"""Rows are float32 (num_layers, key and value, num_kv_heads, head_dim)."""


def tiny_format(*pages: tuple[str, ...], opened: Precision = "f16", num_sinks: int = 4) -> CacheFormat:
    """Return a format from the precisions of each page's layers, keys before values: `int8/int4`."""
    geometry = KVGeometry(num_layers=len(pages[0]), num_query_heads=2, num_kv_heads=1, head_dim=32)

    def page(layers: tuple[str, ...]) -> PageFormat:
        pairs: list[Any] = [layer.split("/") for layer in layers]
        return PageFormat(geometry, tuple(LayerPrecision(keys, values) for keys, values in pairs))

    return CacheFormat(tuple(map(page, pages)), page((f"{opened}/{opened}",) * len(pages[0])), num_sinks)


FORMATS = {
    "f32": tiny_format(("f32/f32",), opened="f32", num_sinks=0),
    "f16": tiny_format(("f16/f16",), num_sinks=0),
    "int8": tiny_format(("int8/int8",)),
    "int8 text, int4 images": tiny_format(("int8/int8",) * 2, ("int8/int4", "int4/int4")),
    "f16 text, int4 images": tiny_format(("f16/f16",), ("int4/int4",)),
    "f32 first layer": tiny_format(("f32/f32", "int4/int4"), opened="f32", num_sinks=3),
}
"""Pure ones, compressed ones, and mixtures of both in a sequence and in a page."""


@dataclass
class _Block:
    """Up to 64 entries.

    Attributes:
        rows: as they came, rounded to how they are kept while the block is open.
        is_image: of each.
        closed: all of them as they are kept since the block was closed.
    """

    rows: list[Floats] = field(default_factory=list)
    is_image: list[bool] = field(default_factory=list)
    closed: Floats | None = None

    def copy(self) -> _Block:
        return _Block(list(self.rows), list(self.is_image), self.closed)

    @property
    def entries(self) -> Floats:
        return np.stack(self.rows) if self.closed is None else self.closed


class NaiveCache:
    """Entries one by one, by the sentences that define the cache."""

    def __init__(self, cache_format: CacheFormat) -> None:
        self.format = cache_format
        self.sinks: list[Floats] = []
        self.blocks: list[_Block] = []

    @property
    def num_tokens(self) -> int:
        return len(self.sinks) + sum(len(block.rows) for block in self.blocks)

    @property
    def entries(self) -> Floats:
        """All of at least one, with their number as the first axis."""
        sinks = [np.stack(self.sinks)] if self.sinks else []
        return np.concatenate(sinks + [block.entries for block in self.blocks])

    def extend(self, rows: Floats, is_image: list[bool]) -> None:
        kept = rows if self.format.open_precision == "f32" else rows.astype(np.float16).astype(np.float32)
        for row, one_is_image in zip(kept, is_image, strict=True):
            self._append(row, one_is_image)

    def _append(self, kept: Floats, is_image: bool) -> None:
        if len(self.sinks) < self.format.num_sinks:
            self.sinks.append(kept)
            return
        if not self.blocks or len(self.blocks[-1].rows) == BLOCK_ENTRIES:
            if self.blocks:
                self._close(self.blocks[-1])
            self.blocks.append(_Block())
        self.blocks[-1].rows.append(kept)
        self.blocks[-1].is_image.append(is_image)

    def copy(self) -> NaiveCache:
        copy = NaiveCache(self.format)
        copy.sinks, copy.blocks = list(self.sinks), [block.copy() for block in self.blocks]
        return copy

    def trim(self, num_tokens: int) -> None:
        body = num_tokens - self.format.num_sinks
        del self.sinks[num_tokens:]
        whole, rest = divmod(max(0, body), BLOCK_ENTRIES)
        if not rest:
            del self.blocks[whole:]
            return
        last = self.blocks[whole]
        if last.closed is not None and self._page_format(last) != self.format.open:
            del self.blocks[whole:]
            return
        del self.blocks[whole + 1 :], last.rows[rest:], last.is_image[rest:]
        last.closed = None

    def graft(self, donor: NaiveCache, stop: int) -> None:
        while (entry := self.num_tokens) < stop:
            body = entry - self.format.num_sinks
            block = donor.blocks[body // BLOCK_ENTRIES] if body >= 0 else None
            if block is None:
                self.extend(donor.sinks[entry][None], [False])
            elif block.closed is not None and body % BLOCK_ENTRIES == 0 and stop - entry >= BLOCK_ENTRIES:
                if self.blocks:
                    self._close(self.blocks[-1])
                self.blocks.append(block.copy())
            else:
                place = body % BLOCK_ENTRIES
                self.extend(self._within_range(block, block.entries[place])[None], [block.is_image[place]])

    def _close(self, block: _Block) -> None:
        if block.closed is None:
            page_format = self._page_format(block)
            rows = np.stack(block.rows)
            layers = [
                np.stack(
                    [
                        _through(rows[:, layer, 0].transpose(1, 2, 0), precision.keys).transpose(2, 0, 1),
                        _through(rows[:, layer, 1], precision.values),
                    ],
                    axis=1,
                )
                for layer, precision in enumerate(page_format.layers)
            ]
            block.closed = np.stack(layers, axis=1)

    def _page_format(self, block: _Block) -> PageFormat:
        is_image = 4 * sum(block.is_image) >= 3 * BLOCK_ENTRIES
        return self.format.pages[-1 if is_image else 0]

    def _within_range(self, block: _Block, row: Floats) -> Floats:
        """Cut off what a scale that was rounded up adds to the largest numbers of float16."""
        kept = np.clip(row, -65504, 65504)
        if block.closed is None:
            return row
        for layer, precision in enumerate(self._page_format(block).layers):
            for place, kind in enumerate((precision.keys, precision.values)):
                if kind == "f32":
                    kept[layer, place] = row[layer, place]
        return kept


def _through(values: Floats, precision: Precision) -> Floats:
    """Return what is left of values (..., those that share a scale)."""
    if precision == "f32":
        return values
    if precision == "f16":
        return values.astype(np.float16).astype(np.float32)
    if precision == "int8":
        return dequantize(*quantize_int8(values), None)
    return dequantize(*quantize_int4(values))
