"""Cache and arithmetic of the fake language model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import KVCache, Tokenizer
from edge_vl.errors import EngineFault

__all__ = ["FakeKVCache", "FakeWeights"]


class FakeWeights:
    """Random weights with a fixed seed, in float64 so that how a prompt is split never shows in float32."""

    def __init__(self, vocab_size: int, hidden_size: int, tokenizer: Tokenizer) -> None:
        """Draw them."""
        random = np.random.default_rng(11)
        self._table = random.standard_normal((vocab_size, hidden_size)).astype(np.float32)
        self._head = random.standard_normal((vocab_size, hidden_size)).astype(np.float32)
        self._key = random.standard_normal((hidden_size, hidden_size)) / np.sqrt(hidden_size)
        self._value = random.standard_normal((hidden_size, hidden_size)) / np.sqrt(hidden_size)
        self._frequency = random.uniform(0.1, 2.0, hidden_size)
        markers = set(tokenizer.special_tokens.values()) - tokenizer.eos_token_ids
        self._markers = np.array(sorted(token for token in markers if token < vocab_size), dtype=np.int64)

    def embed(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Return float64 (num_tokens, hidden_size)."""
        return self._table[np.asarray(token_ids, dtype=np.int64)].astype(np.float64)

    def project(
        self, rows: NDArray[np.float64], first_position: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return keys and values, each float64 (num_tokens, hidden_size), of rows at consecutive positions."""
        positions = np.arange(first_position, first_position + len(rows))[:, None]
        turned = rows + np.sin(positions * self._frequency)
        return turned @ self._key, turned @ self._value

    def logits(self, cache: FakeKVCache) -> NDArray[np.float32]:
        """Return float32 (vocab_size,) after the last entry. The sum is not normalised, so each entry counts."""
        keys, values = cache.keys, cache.values
        weights = 1.0 + 0.5 * np.tanh(keys @ keys[-1] / np.sqrt(keys.shape[1]))
        state = np.cos(weights @ values).astype(np.float32)
        logits: NDArray[np.float32] = self._head @ state
        logits[self._markers] = -30.0  # no answer of its own accord is a marker
        return logits


class FakeKVCache:
    """Keys and values of one sequence."""

    def __init__(
        self,
        hidden_size: int,
        count_open: Callable[[int], None],
        siblings: weakref.WeakSet[FakeKVCache] | None = None,
        *,
        block_entries: int = 1,
    ) -> None:
        """Begin empty.

        Args:
            hidden_size: width of an entry.
            count_open: told 1 now and -1 when it is closed.
            siblings: all caches that share one memory; it and its forks join them.
            block_entries: entries of a block, of which all but the last one can be forgotten only as a whole.
        """
        self.keys: NDArray[np.float64] = np.empty((0, hidden_size))
        self.values: NDArray[np.float64] = np.empty((0, hidden_size))
        self.is_open = True
        self._answer_start = 0
        self._count_open = count_open
        self._block_entries = block_entries
        self._siblings = weakref.WeakSet() if siblings is None else siblings
        self._siblings.add(self)
        count_open(1)

    @property
    def num_tokens(self) -> int:
        """Entries stored."""
        return len(self.keys)

    @property
    def next_position(self) -> int:
        """Position of the next token."""
        return len(self.keys)

    @property
    def num_answer_tokens(self) -> int:
        """Entries appended since the last prefill."""
        return len(self.keys) - self._answer_start

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.keys.nbytes + self.values.nbytes

    def append(self, rows: NDArray[np.float64], weights: FakeWeights) -> None:
        """Append embeddings, float64 (num_tokens, hidden_size)."""
        keys, values = weights.project(rows, self.next_position)
        self.keys = np.concatenate([self.keys, keys])
        self.values = np.concatenate([self.values, values])

    def begin_answer(self) -> None:
        """Count answer tokens from here."""
        self._answer_start = len(self.keys)

    def fork(self) -> Self:
        """Return an independent cache with the same entries."""
        copy = type(self)(self.keys.shape[1], self._count_open, self._siblings, block_entries=self._block_entries)
        copy.keys, copy.values = self.keys.copy(), self.values.copy()
        copy._answer_start = self._answer_start
        return copy

    def keepable(self, num_tokens: int) -> int:
        """Return how many entries `trim(num_tokens)` would keep; see `edge_vl.engine.BlockwiseCache`."""
        border = max(0, len(self.keys) - 1) // self._block_entries * self._block_entries
        return num_tokens if num_tokens >= border else num_tokens // self._block_entries * self._block_entries

    def trim(self, num_tokens: int) -> None:
        """Forget all but the first entries."""
        if not 0 <= num_tokens <= len(self.keys):
            raise ValueError(f"cannot keep {num_tokens} of {len(self.keys)} entries")
        num_tokens = self.keepable(num_tokens)
        self.keys, self.values = self.keys[:num_tokens].copy(), self.values[:num_tokens].copy()
        self._answer_start = min(self._answer_start, num_tokens)

    def graft(self, donor: KVCache, start: int, stop: int) -> None:
        """Append a donor's entries; see `edge_vl.engine.Graftable`."""
        if not isinstance(donor, FakeKVCache) or donor._count_open != self._count_open:
            raise ValueError("cannot graft: the donor belongs to another language model")
        if not self.is_open or not donor.is_open:
            raise EngineFault("fake", "graft", "a cache is closed")
        if start != len(self.keys) or not start <= stop <= len(donor.keys):
            raise ValueError(f"cannot graft entries {start} to {stop} of {len(donor.keys)} behind {len(self.keys)}")
        self.keys = np.concatenate([self.keys, donor.keys[start:stop]])
        self.values = np.concatenate([self.values, donor.values[start:stop]])

    def close(self) -> None:
        """Give the memory back."""
        if self.is_open:
            self.is_open = False
            self._count_open(-1)
            self.keys, self.values = self.keys[:0].copy(), self.values[:0].copy()
