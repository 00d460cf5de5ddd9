"""A language model whose full blocks of keys and values are rounded by any rule, to hold rules against each other.

Everything else is as in our own compressed caches: the first four entries and the open block stay as they are, and a
block is rounded when an entry comes behind its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import ImageEmbeds, KVCache, LanguageSpec, Prefillable, Tokenizer
from edge_vl.errors import EngineFault
from edge_vl.plan import TextChunk
from edge_vl_kernels.kv import KVKernels
from edge_vl_kernels.kv_codes import dequantize, quantize_int4, quantize_int8
from edge_vl_kernels.kv_format import BLOCK_ENTRIES
from edge_vl_kernels.kv_reference import rotate
from edge_vl_onnxruntime.cache_formats import NUM_SINKS
from edge_vl_onnxruntime.cut_language import CutLanguageModel
from edge_vl_onnxruntime.paged_cache import PagedKVCache
from edge_vl_onnxruntime.session import ENGINE

__all__ = ["KEY_RULES", "RequantisedModel", "Rule", "values_in_4_bits"]

Rows = NDArray[np.float32]
Rule = Callable[[Rows], Rows]
"""Rounds the keys or values of a block, float32 (64, num_kv_heads, head_dim)."""


def values_in_4_bits(rows: Rows) -> Rows:
    """Round each entry of each head by itself to 4 bits with a zero, as our caches do with values."""
    return dequantize(*quantize_int4(_half(rows)))


def _keys_per_channel_4(rows: Rows) -> Rows:
    return dequantize(*quantize_int4(_half(rows).transpose(1, 2, 0))).transpose(2, 0, 1)


def _keys_per_entry_8(rows: Rows) -> Rows:
    return dequantize(*quantize_int8(_half(rows)), None)


def _rotated(rule: Rule) -> Rule:
    """Apply a rule behind a Hadamard rotation of each head, which spreads large channels over all."""

    def apply(rows: Rows) -> Rows:
        matrix: NDArray[np.float32] = np.ones((1, 1), np.float32)
        while len(matrix) < rows.shape[2]:
            matrix = (np.block([[matrix, matrix], [matrix, -matrix]]) / 2**0.5).astype(np.float32)
        turned: Rows = rule((rows @ matrix).astype(np.float32)) @ matrix.T
        return turned.astype(np.float32)

    return apply


KEY_RULES: dict[str, Rule] = {
    "4 bit per channel and block, by NumPy": _keys_per_channel_4,
    "4 bit per entry": values_in_4_bits,
    "4 bit per entry, rotated": _rotated(values_in_4_bits),
    "8 bit per entry": _keys_per_entry_8,
}
"""Ways to round keys; head by head all of them."""


@dataclass(slots=True)
class _Cache:
    """A cache in two: what is rounded, and a copy of that with the open block behind it.

    Attributes:
        kept: full blocks, rounded.
        live: the same, and the open block as it came.
        open: keys and values of the open block for each layer, in parts.
    """

    kept: PagedKVCache
    live: PagedKVCache
    open: list[list[tuple[Rows, Rows]]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.live.num_tokens

    @property
    def next_position(self) -> int:
        return self.live.next_position

    @property
    def nbytes(self) -> int:
        return self.live.nbytes

    @property
    def num_compressed(self) -> int:
        return max(0, self.kept.num_tokens - NUM_SINKS)

    def fork(self) -> _Cache:
        return _Cache(self.kept.fork(), self.live.fork(), [list(parts) for parts in self.open])

    def trim(self, num_tokens: int) -> None:
        raise EngineFault(ENGINE, "trim", "a requantised cache cannot forget")

    def close(self) -> None:
        self.kept.close()
        self.live.close()


class RequantisedModel:
    """A cut decoder whose caches are uncompressed, and whose full blocks are rounded by rules nevertheless."""

    def __init__(self, model: CutLanguageModel, keys: Rule, values: Rule) -> None:
        """Wrap a model; the caller closes it.

        Args:
            model: does not compress its caches.
            keys: rounds the keys of a block, as they are attended to.
            values: rounds its values.
        """
        self._model, self._keys, self._values = model, keys, values
        kernels = model.kernels
        self._appending = KVKernels(kernels.cache_format, scale=kernels.scale, isa=kernels.isa)
        self._num_layers = kernels.cache_format.geometry.num_layers

    @property
    def spec(self) -> LanguageSpec:
        """The wrapped model's."""
        return self._model.spec

    @property
    def tokenizer(self) -> Tokenizer:
        """The wrapped model's."""
        return self._model.tokenizer

    def new_cache(self) -> _Cache:
        """Return an empty cache."""
        return _Cache(self._model.new_cache(), self._model.new_cache(), [[] for _ in range(self._num_layers)])

    def prefill(self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True) -> Rows | None:
        """Append a run, a part of a block at a time."""
        assert isinstance(cache, _Cache)
        logits = None
        parts = list(_rows(run))
        while parts:
            place = cache.num_tokens - NUM_SINKS
            if place > 0 and place % BLOCK_ENTRIES == 0:
                self._round(cache)
            room = NUM_SINKS - cache.num_tokens if place < 0 else BLOCK_ENTRIES - place % BLOCK_ENTRIES
            taken, parts = parts[:room], parts[room:]
            logits = self._append(cache, taken, want_logits=want_logits and not parts)
            if cache.num_tokens == NUM_SINKS:
                self._keep(cache, lambda rows: rows, lambda rows: rows)
        return logits

    def decode(self, cache: KVCache, token_id: int) -> Rows:
        """Append one token."""
        logits = self.prefill(cache, [TextChunk((token_id,), cache.next_position)])
        assert logits is not None
        return logits

    def close(self) -> None:
        """Give back what is not the wrapped model's."""
        self._appending.close()

    def _append(self, cache: _Cache, run: Sequence[Prefillable], *, want_logits: bool) -> Rows | None:
        rope, first = self._model.kernels.rope, cache.live.next_position

        def observe(layer: int, queries: Rows, keys: Rows, values: Rows) -> None:
            keys = np.array(keys) if rope is None else rotate(keys, rope, first)
            cache.open[layer].append((keys, np.array(values)))

        self._model.observer = observe
        try:
            return self._model.prefill(cache.live, run, want_logits=want_logits)
        finally:
            self._model.observer = None

    def _round(self, cache: _Cache) -> None:
        self._keep(cache, self._keys, self._values)

    def _keep(self, cache: _Cache, key_rule: Rule, value_rule: Rule) -> None:
        """Append the open block, rounded, to what is kept, and go on behind it."""
        blocks = [tuple(np.concatenate(side) for side in zip(*parts, strict=True)) for parts in cache.open]
        step = self._appending.step([cache.kept.begin(len(blocks[0][0]))])
        for layer, (keys, values) in enumerate(blocks):
            kept_keys, kept_values = np.ascontiguousarray(key_rule(keys)), np.ascontiguousarray(value_rule(values))
            step.run(layer, self._appending.rows(None, kept_keys, kept_values, None))
        cache.kept.commit()
        cache.live.close()
        cache.live = cache.kept.fork()
        cache.open = [[] for _ in range(self._num_layers)]


def _rows(run: Iterable[Prefillable]) -> Iterable[Prefillable]:
    """Cut a run into its tokens."""
    for part in run:
        if isinstance(part, ImageEmbeds):
            for row in range(part.num_tokens):
                yield ImageEmbeds(part.values[row : row + 1], part.key)
        else:
            for place, token_id in enumerate(part.token_ids):
                yield TextChunk((token_id,), part.position + place)


def _half(rows: NDArray[Any]) -> Rows:
    """Return rows as a float16 block holds them."""
    return rows.astype(np.float16).astype(np.float32)
