"""Random operations on paged caches, each held against a naive twin that keeps every row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.errors import CacheFull, EngineFault
from edge_vl_kernels.kv import KVKernels, KVRows
from edge_vl_kernels.kv_format import KVGeometry
from edge_vl_onnxruntime import page_pool
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.paged_cache import PagedKVCache
from tests.engines.naive_kv_cache import FORMATS, Floats, NaiveCache
from tests.engines.paged_caches import Memory

NUM_OPERATIONS = 100_000
CONTEXT_LENGTH = 420  # six closed blocks and more
MAX_CACHES = 8
COMPARE_EVERY = 5
AUDIT_EVERY = 25


def bank(geometry: KVGeometry) -> Floats:
    """Return rows to choose from: ordinary ones, loud channels, constant channels, zeros, both ends of float16."""
    numbers = np.random.default_rng(3)
    rows = numbers.standard_normal((256, geometry.num_layers, 2, geometry.num_kv_heads, geometry.head_dim))
    rows[..., 3] *= 50
    rows[..., 5] = 1.7
    rows[200:210] = 0
    rows[210:230] *= 1e-7
    rows[230:240] *= 500
    rows[240:243], rows[243:245] = 65504, -65504
    return rows.astype(np.float32)


@dataclass
class Pair:
    """A paged cache and its twin."""

    cache: PagedKVCache
    twin: NaiveCache


class Play:
    """A few caches of one model, and what is done to them."""

    def __init__(self, kernels: KVKernels, memory: Memory, seed: int) -> None:
        self.kernels = kernels
        self.memory = memory
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.pool = PagePool(max_free_bytes=1 << 17)
        geometry = kernels.cache_format.geometry
        self.num_layers = geometry.num_layers
        self.bank = bank(geometry)
        self.pairs: list[Pair] = []
        self.done: Counter[str] = Counter()
        shape = (3 * CONTEXT_LENGTH, geometry.num_kv_heads, geometry.head_dim)
        self._buffers = [np.zeros((2, *shape), np.float32) for _ in range(self.num_layers)]
        self._rows: dict[int, list[KVRows]] = {}

    def operate(self) -> None:
        """Do something at random."""
        kinds: list[Callable[[], None]] = [
            self.append, self.abort, self.fork, self.trim, self.graft, self.close, self.starve, self.refuse, self.open,
        ]  # fmt: skip
        weights = (0.42, 0.1, 0.1, 0.1, 0.1, 0.08, 0.04, 0.02, 0.04)
        kind = self.random.choices(kinds, weights)[0] if self.pairs else self.open
        kind()
        self.done[kind.__name__] += 1

    def open(self) -> None:
        if len(self.pairs) == MAX_CACHES:
            self.close()
        cache_format = self.kernels.cache_format
        cache = PagedKVCache(self.pool, self.kernels, cache_format, self, CONTEXT_LENGTH)
        self.pairs.append(Pair(cache, NaiveCache(cache_format)))

    def append(self) -> None:
        """Append rows to one to three caches in one step."""
        (count,) = self.random.choices((1, 2, 3), (0.85, 0.1, 0.05))
        pairs = self.random.sample(self.pairs, min(len(self.pairs), count))
        pairs = [pair for pair in pairs if pair.cache.num_tokens < CONTEXT_LENGTH]
        taken = [self._new_rows(pair) for pair in pairs]
        if pairs:
            self._run(pairs, taken, self.num_layers)
        for pair, (rows, is_image) in zip(pairs, taken, strict=True):
            pair.cache.commit()
            pair.twin.extend(rows, is_image.tolist())
        self._check(pairs)

    def abort(self) -> None:
        """Run a part of a step, at times one with a number that is refused, and forget it."""
        pair = self._pick()
        if pair.cache.num_tokens == CONTEXT_LENGTH:
            return
        rows, is_image = self._new_rows(pair)
        nbytes = pair.cache.nbytes
        if self.random.random() < 0.3:
            rows[-1, -1, self.random.randrange(2), 0, 7] = np.nan
            with pytest.raises(ValueError, match="NaN"):
                self._run([pair], [(rows, is_image)], self.num_layers)
        else:
            self._run([pair], [(rows, is_image)], self.random.randrange(self.num_layers + 1))
        pair.cache.abort()
        assert pair.cache.nbytes == nbytes
        self._check([pair])

    def fork(self) -> None:
        if len(self.pairs) == MAX_CACHES:
            self.close()
        pair = self._pick()
        self.pairs.append(Pair(pair.cache.fork(), pair.twin.copy()))

    def trim(self) -> None:
        pair = self._pick()
        num_tokens = self._place_up_to(pair.cache.num_tokens)
        pair.cache.trim(num_tokens)
        pair.twin.trim(num_tokens)
        assert num_tokens - 63 <= pair.cache.num_tokens <= num_tokens
        self._check([pair])

    def graft(self) -> None:
        """Take entries from a cache that has more."""
        pair, donor = self._pick(), self._pick()
        if pair is donor or donor.cache.num_tokens < pair.cache.num_tokens:
            return
        start = pair.cache.num_tokens
        stop = start + self._place_up_to(donor.cache.num_tokens - start)
        pair.cache.graft(donor.cache, start, stop)
        pair.twin.graft(donor.twin, stop)
        self._check([pair, donor])

    def close(self) -> None:
        """Close a cache, or let go of it without."""
        pair = self.pairs.pop(self.random.randrange(len(self.pairs)))
        self.compare(pair)
        if self.random.random() < 0.8:
            pair.cache.close()

    def starve(self) -> None:
        """Need a page when there are none left."""
        pair, donor = self._pick(), self._pick()
        start, stop = pair.cache.num_tokens, donor.cache.num_tokens
        room = CONTEXT_LENGTH - start
        held = (self.pool.num_pages_in_use, pair.cache.nbytes)
        self.pool._shrink(0)
        self.memory.num_left = self.random.randrange(3)
        try:
            if self.random.random() < 0.5 and pair is not donor and start < stop:
                pair.cache.graft(donor.cache, start, stop)
                pair.twin.graft(donor.twin, stop)
            elif room:
                pair.cache.begin(self.random.randint(1, room), is_image=self.random.random() < 0.5)
                pair.cache.abort()
        except CacheFull:
            assert self.pool.num_pages_in_use <= held[0] + 1  # its own copy of an open page, or none
            assert pair.cache.nbytes == held[1]
            self.done["CacheFull"] += 1
        self.memory.num_left = None
        self._check([pair, donor])

    def refuse(self) -> None:
        """Ask for what is not possible."""
        pair = self._pick()
        count = pair.cache.num_tokens
        with pytest.raises(EngineFault, match="there is room for"):
            pair.cache.begin(CONTEXT_LENGTH - count + 1)
        with pytest.raises(ValueError, match="cannot keep"):
            pair.cache.trim(count + 1)
        with pytest.raises(ValueError, match="cannot graft"):
            pair.cache.graft(self._pick().cache, count, CONTEXT_LENGTH + 1)
        self._check([pair])

    def compare(self, pair: Pair) -> None:
        """Hold every entry against the twin's."""
        assert pair.cache.num_tokens == pair.cache.next_position == pair.twin.num_tokens
        if not pair.twin.num_tokens:
            return
        expected = pair.twin.entries
        for layer in range(self.num_layers):
            keys, values = pair.cache.read(layer)
            assert np.array_equal(keys, expected[:, layer, 0])
            assert np.array_equal(values, expected[:, layer, 1])

    def audit(self) -> None:
        """Count the holders of every page."""
        held = Counter(id(page) for pair in self.pairs for page in pair.cache._table.pages())
        assert self.pool.num_pages_in_use == len(held)
        assert {key: holding.count for key, holding in self.pool._held.items()} == held
        assert self.pool.nbytes_in_use == sum(holding.page.nbytes for holding in self.pool._held.values())
        assert self.pool.nbytes_free <= 1 << 17

    def _pick(self) -> Pair:
        return self.random.choice(self.pairs)

    def _place_up_to(self, count: int) -> int:
        """Return a number from 0 to `count`, often a border of blocks or the end itself."""
        border = self.kernels.cache_format.num_sinks + 64 * self.random.randrange(8)
        choice = self.random.random()
        if choice < 0.3 and border <= count:
            return border
        return count if choice < 0.5 else self.random.randint(0, count)

    def _new_rows(self, pair: Pair) -> tuple[Floats, NDArray[np.bool_]]:
        sizes = (1, self.random.randint(1, 20), self.random.randint(60, 70), 150)
        (size,) = self.random.choices(sizes, (0.5, 0.3, 0.15, 0.05))
        count = min(size, CONTEXT_LENGTH - pair.cache.num_tokens)
        is_image = self.numbers.random(count) < self.random.choice((0, 0.7, 0.8, 1))
        return self.bank[self.numbers.integers(len(self.bank), size=count)], is_image

    def _run(self, pairs: list[Pair], taken: list[tuple[Floats, NDArray[np.bool_]]], num_layers: int) -> None:
        """Begin a step of each pair and run the first layers of it."""
        sequences = []
        for pair, (rows, is_image) in zip(pairs, taken, strict=True):
            kind = bool(is_image[0]) if (is_image == is_image[0]).all() else is_image
            sequences.append(pair.cache.begin(len(rows), kind))
        rows = np.concatenate([rows for rows, _ in taken])
        prepared = self._prepared(len(rows))
        step = self.kernels.step(sequences)
        for layer in range(num_layers):
            self._buffers[layer][:, : len(rows)] = rows[:, layer].swapaxes(0, 1)
            step.run(layer, prepared[layer])

    def _prepared(self, count: int) -> list[KVRows]:
        if count not in self._rows:
            buffers = [buffer[:, :count] for buffer in self._buffers]
            self._rows[count] = [self.kernels.rows(None, keys, values, None) for keys, values in buffers]
        return self._rows[count]

    def _check(self, pairs: list[Pair]) -> None:
        """Compare every few operations in full, else the counts."""
        for pair in pairs:
            if self.random.randrange(COMPARE_EVERY) == 0:
                self.compare(pair)
            assert pair.cache.num_tokens == pair.twin.num_tokens


@pytest.mark.parametrize("name", FORMATS)
def test_100_000_random_operations_in_all_leave_each_cache_as_its_twin(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are compared after each, all entries after each fifth and before a cache goes."""
    memory = Memory()
    monkeypatch.setattr(page_pool, "aligned_page", memory.page)
    kernels = KVKernels(FORMATS[name], scale=0.2)
    play = Play(kernels, memory, seed=len(name))
    for number in range(-(-NUM_OPERATIONS // len(FORMATS))):
        play.operate()
        if number % AUDIT_EVERY == 0:
            play.audit()
    for pair in play.pairs:
        play.compare(pair)
        pair.cache.close()
    kernels.close()
    assert (play.pool.num_pages_in_use, play.pool.nbytes_in_use) == (0, 0)
    assert len(play.done) == 10, play.done
    assert min(play.done.values()) >= 100, play.done
