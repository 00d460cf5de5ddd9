"""How keys and values lie in memory: version 1 of the format that every implementation shares.

A sequence's entries are `num_sinks` *sinks*, then *blocks* of 64 entries, the last of which is *open*: it holds 1 to 64
entries that are not compressed yet. A block is closed, that is, compressed, when an entry is appended behind its last
one, so each entry is attended to uncompressed by those of its own block and compressed by all later ones, however they
came in. A *page* holds one block of all layers.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = [
    "BLOCK_ENTRIES",
    "FORMAT_VERSION",
    "MAX_GROUP_CHANNELS",
    "PAGE_ALIGNMENT",
    "PRECISIONS",
    "CacheFormat",
    "KVGeometry",
    "LayerPrecision",
    "PageFormat",
    "Precision",
    "SliceLayout",
]

FORMAT_VERSION = 1
BLOCK_ENTRIES = 64
MAX_GROUP_CHANNELS = 128
"""Channels of a value that share a scale, at most."""

PAGE_ALIGNMENT = 4096
_ARRAY_ALIGNMENT = 64
_MAX_HEAD_DIM = 256

Precision = Literal["f32", "f16", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""In the order of their numbers in the C ABI, from 0."""

_BITS = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}
_SCALE_BYTES = 2  # float16


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Sizes of a model's attention.

    Attributes:
        num_layers: decoder layers.
        num_query_heads: a multiple of `num_kv_heads`.
        num_kv_heads: key/value heads.
        head_dim: channels of a head: a multiple of 32, at most 256.
    """

    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: the format does not cover them.
            TypeError: one is no integer.
        """
        for name in ("num_layers", "num_query_heads", "num_kv_heads", "head_dim"):
            # A plain int: NumPy's wrap around.
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if min(self.num_layers, self.num_query_heads, self.num_kv_heads) < 1:
            raise ValueError(f"layers and heads must be at least 1, not {self}")
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_query_heads} query heads are no multiple of {self.num_kv_heads} KV heads")
        if self.head_dim % 32 or not 32 <= self.head_dim <= _MAX_HEAD_DIM:
            raise ValueError(f"head_dim must be a multiple of 32 from 32 to {_MAX_HEAD_DIM}, not {self.head_dim}")

    @property
    def group_size(self) -> int:
        """Query heads of one KV head."""
        return self.num_query_heads // self.num_kv_heads

    @property
    def num_value_groups(self) -> int:
        """Groups of channels of a value that have scales of their own: 1 up to 128 channels, else 2."""
        return -(-self.head_dim // MAX_GROUP_CHANNELS)


@dataclass(frozen=True, slots=True)
class LayerPrecision:
    """Precision of one layer's keys and values."""

    keys: Precision
    values: Precision


@dataclass(frozen=True, slots=True)
class SliceLayout:
    """Where a layer's part of a page is, in bytes. Heads follow each other; arrays begin at multiples of 64.

    The arrays of a head, in this order, with c = head_dim, g = num_value_groups, n = 64:

    - keys, channel-major (c, n): float32, float16 or int8; 4 bit: (c, n / 2), entry i < 32 in the low and entry i + 32
      in the high half of byte i;
    - key scales float16 (c), 8 and 4 bit only; key zeros float16 (c), 4 bit only;
    - values, entry-major (n, c); 4 bit: (n, c / 2), channel i < c / 2 in the low and i + c / 2 in the high half of
      byte i;
    - value scales float16 (n, g), 8 and 4 bit only; value zeros float16 (n, g), 4 bit only.

    An element is its scale times its code, plus its zero at 4 bit, where codes are 0 to 15; at 8 bit -127 to 127.

    Attributes:
        precision: of the layer.
        offset: of the layer's first head in the page.
        head_bytes: from one head to the next.
        key_scales: offset in the head; keys have offset 0. An array that is not there has the offset of the next one.
        key_zeros: likewise.
        values: likewise.
        value_scales: likewise.
        value_zeros: likewise.
    """

    precision: LayerPrecision
    offset: int
    head_bytes: int
    key_scales: int
    key_zeros: int
    values: int
    value_scales: int
    value_zeros: int


@dataclass(frozen=True)
class PageFormat:
    """A page: 64 entries of all layers.

    Attributes:
        geometry: of the model.
        layers: precision of each layer.
    """

    geometry: KVGeometry
    layers: tuple[LayerPrecision, ...]

    def __post_init__(self) -> None:
        """Check that every layer has a known precision.

        Raises:
            ValueError: it does not.
        """
        if len(self.layers) != self.geometry.num_layers:
            raise ValueError(f"{len(self.layers)} precisions for {self.geometry.num_layers} layers")
        for layer in self.layers:
            for precision in (layer.keys, layer.values):
                if precision not in PRECISIONS:
                    raise ValueError(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")

    @functools.cached_property
    def slices(self) -> tuple[SliceLayout, ...]:
        """Where each layer lies."""
        slices, offset = [], 0
        for precision in self.layers:
            layout = _slice(self.geometry, precision, offset)
            slices.append(layout)
            offset += layout.head_bytes * self.geometry.num_kv_heads
        return tuple(slices)

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of a page, a multiple of 4096."""
        last = self.slices[-1]
        return _round_up(last.offset + last.head_bytes * self.geometry.num_kv_heads, PAGE_ALIGNMENT)


@dataclass(frozen=True)
class CacheFormat:
    """Everything about how the caches of a model are stored.

    Attributes:
        pages: formats of closed blocks; a block names one by its place: 0 text, 1 image where it differs.
        open: format of open blocks: `f16`, or `f32` where a layer is to be kept in that.
        num_sinks: first entries of a sequence that are never compressed, in the precision of `open`: (head, key before
            value, entry, channel) for each layer, without gaps; 0 where nothing is compressed.
    """

    pages: tuple[PageFormat, ...]
    open: PageFormat
    num_sinks: int

    def __post_init__(self) -> None:
        """Check that `num_sinks` is an integer.

        Raises:
            TypeError: it is not.
        """
        object.__setattr__(self, "num_sinks", operator.index(self.num_sinks))

    @property
    def geometry(self) -> KVGeometry:
        """Sizes of the model's attention."""
        return self.open.geometry

    @property
    def open_precision(self) -> Precision:
        """Precision of open blocks and sinks."""
        return self.open.layers[0].keys

    @property
    def sinks_nbytes(self) -> int:
        """Bytes of a sequence's sinks, a multiple of 4096; 0 if there are none."""
        geometry = self.geometry
        row_bytes = geometry.head_dim * _BITS[self.open_precision] // 8
        rows = 2 * geometry.num_layers * geometry.num_kv_heads * self.num_sinks
        return _round_up(rows * row_bytes, PAGE_ALIGNMENT)

    def num_closed(self, num_entries: int) -> int:
        """Return how many closed blocks a sequence of so many entries has."""
        return max(0, num_entries - self.num_sinks - 1) // BLOCK_ENTRIES

    def num_open(self, num_entries: int) -> int:
        """Return how many entries its open block has: 1 to 64, or 0 while all entries are sinks."""
        body = max(0, num_entries - self.num_sinks)
        return body - BLOCK_ENTRIES * self.num_closed(num_entries)


def _slice(geometry: KVGeometry, precision: LayerPrecision, offset: int) -> SliceLayout:
    codes = BLOCK_ENTRIES * geometry.head_dim
    sizes = [
        codes * _BITS[precision.keys] // 8,
        geometry.head_dim * _SCALE_BYTES * (precision.keys in ("int8", "int4")),
        geometry.head_dim * _SCALE_BYTES * (precision.keys == "int4"),
        codes * _BITS[precision.values] // 8,
        BLOCK_ENTRIES * geometry.num_value_groups * _SCALE_BYTES * (precision.values in ("int8", "int4")),
        BLOCK_ENTRIES * geometry.num_value_groups * _SCALE_BYTES * (precision.values == "int4"),
    ]
    ends = []
    at = 0
    for size in sizes:
        at += _round_up(size, _ARRAY_ALIGNMENT)
        ends.append(at)
    return SliceLayout(precision, offset, at, *ends[:5])


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
