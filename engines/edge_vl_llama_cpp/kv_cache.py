"""KV caches: sequences in the memory of one llama.cpp context."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Self

from edge_vl.engine import KVCache
from edge_vl.errors import CacheFull, EngineFault
from edge_vl_llama_cpp.library import ENGINE

__all__ = ["LlamaKVCache", "Sequences"]


@dataclass(slots=True)
class _Span:
    """A run of entries.

    Attributes:
        num_tokens: entries.
        num_positions: positions that they span.
        is_block: they can only be forgotten together.
    """

    num_tokens: int
    num_positions: int
    is_block: bool


class Sequences:
    """The sequence numbers of a context, and its memory. Belongs to the language lane.

    Where layers have a sliding window, llama.cpp may overwrite an entry that only one sequence has, once the next token
    of that sequence does not see it any more; after a trim it would be missed. So each sequence has its entries under a
    second number, too: the one behind its own.

    Source:
        llama_kv_cache::find_slot of llama.cpp, src/llama-kv-cache.cpp.
    """

    def __init__(
        self,
        llama: Any,
        memory: Any,
        count: int,
        entry_bytes: int,
        *,
        keeps_states: bool,
        has_window: bool = False,
    ) -> None:
        """Begin with all numbers free.

        Args:
            llama: the module `llama_cpp.llama_cpp`.
            memory: the context's `llama_memory_t`.
            count: sequences that the context was made for.
            entry_bytes: memory of one entry in all layers.
            keeps_states: the model has recurrent states: only whole sequences can be forgotten.
            has_window: some of its layers have a sliding window, and sequences can be forgotten in part.
        """
        self._llama = llama
        self._memory: Any = memory
        self._numbers = 2 if has_window else 1  # of one sequence
        self._free = list(range(0, count - self._numbers + 1, self._numbers))[::-1]
        self._lost: list[int] = []  # of caches that nobody closed; filled from any thread
        self.entry_bytes = entry_bytes
        self.keeps_states = keeps_states

    @property
    def is_open(self) -> bool:
        """Whether the context is still there."""
        return self._memory is not None

    def take(self) -> int:
        """Return a free number.

        Raises:
            CacheFull: there is none.
        """
        self.reclaim()
        if not self._free or (self.keeps_states and len(self._free) == 1):
            raise CacheFull(ENGINE, 0)
        return self._free.pop()

    def watch(self, cache: LlamaKVCache) -> weakref.finalize[[int], LlamaKVCache]:
        """Take a cache's number back when nobody has the cache any more; on the lane's thread, with its next call."""
        finalizer = weakref.finalize(cache, self._lost.append, cache.sequence)
        finalizer.atexit = False
        return finalizer

    def reclaim(self) -> None:
        """Forget the sequences of caches that were dropped without being closed."""
        while self._lost:
            self.give_back(self._lost.pop())

    def save(self, sequence: int) -> int:
        """Copy a sequence to a number that is kept free for it, and return that number.

        For models with recurrent states only; `restore` or `give_back` follows.
        """
        saved = self._free.pop()
        self.copy(sequence, saved)
        return saved

    def restore(self, sequence: int, saved: int) -> None:
        """Let a sequence be what it was when it was saved."""
        self.forget_from(sequence, -1)
        self.copy(saved, sequence)

    def give_back(self, sequence: int) -> None:
        """Forget a sequence and free its number."""
        if self._memory is not None:
            self.forget_from(sequence, -1)
            self._free.append(sequence)

    def copy(self, source: int, target: int, start: int = -1, stop: int = -1) -> None:
        """Let a sequence have the entries of another; they are shared, not copied.

        Args:
            source: whose.
            target: has none at these positions.
            start: first position; -1 for all.
            stop: behind the last one; a part is possible because all sequences of the context have one memory.
        """
        for number in range(target, target + self._numbers):
            self._llama.llama_memory_seq_cp(self._memory, source, number, start, stop)

    def hold(self, sequence: int, start: int, stop: int) -> None:
        """Keep what a sequence just got at the positions `start` to `stop` until it is forgotten."""
        if self._numbers > 1:
            self._llama.llama_memory_seq_cp(self._memory, sequence, sequence + 1, start, stop)

    def forget_from(self, sequence: int, position: int) -> bool:
        """Forget the entries at a position and behind it; return whether that went well."""
        done = [
            self._llama.llama_memory_seq_rm(self._memory, number, position, -1)
            for number in range(sequence, sequence + self._numbers)
        ]
        return all(done)

    def close(self) -> None:
        """Note that the context is gone."""
        self._memory = None


class LlamaKVCache:
    """Keys and values of one sequence."""

    def __init__(self, sequences: Sequences) -> None:
        """Begin empty.

        Raises:
            CacheFull: there are too many caches.
        """
        self._sequences = sequences
        self.sequence = sequences.take()
        self._spans: list[_Span] = []
        self._num_tokens = 0
        self._next_position = 0
        self._is_open = True
        self._broken = ""
        self._finalizer = sequences.watch(self)

    @property
    def owner(self) -> Sequences:
        """The context's sequences."""
        return self._sequences

    @property
    def num_tokens(self) -> int:
        """Entries stored."""
        return self._num_tokens

    @property
    def next_position(self) -> int:
        """Position of the next token: not `num_tokens` where a picture's tokens share positions."""
        return self._next_position

    @property
    def nbytes(self) -> int:
        """Memory of its entries; forks share theirs until they differ."""
        return self._num_tokens * self._sequences.entry_bytes

    def check(self, stage: str) -> None:
        """Refuse to be used when closed, or after an error that could not be undone.

        Raises:
            EngineFault: it is.
        """
        if not self._is_open:
            raise EngineFault(ENGINE, stage, "the cache is closed")
        if self._broken:
            raise EngineFault(ENGINE, stage, f"the cache was lost: {self._broken}")

    def append(self, num_tokens: int, num_positions: int, *, is_block: bool) -> None:
        """Note entries that the context has taken."""
        last = self._spans[-1] if self._spans else None
        if last is not None and not last.is_block and not is_block:
            last.num_tokens += num_tokens
            last.num_positions += num_positions
        else:
            self._spans.append(_Span(num_tokens, num_positions, is_block))
        self._num_tokens += num_tokens
        self._next_position += num_positions

    def undo(self, why: str, saved: int | None = None) -> None:
        """Forget what the context took behind the noted entries.

        Args:
            why: what went wrong.
            saved: the number that the sequence was saved under, for models that cannot forget a part.
        """
        if saved is not None:
            self._sequences.restore(self.sequence, saved)
        elif not self._sequences.forget_from(self.sequence, self._next_position):
            self._broken = why

    def fork(self) -> Self:
        """Return an independent cache with the same entries; nothing is copied until they differ.

        Raises:
            CacheFull: there are too many caches.
            EngineFault: this one is closed.
        """
        self.check("fork")
        copy = type(self)(self._sequences)
        self._sequences.copy(self.sequence, copy.sequence)
        copy._spans = [_Span(span.num_tokens, span.num_positions, span.is_block) for span in self._spans]
        copy._num_tokens, copy._next_position = self._num_tokens, self._next_position
        return copy

    def trim(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` entries.

        Raises:
            ValueError: there are fewer, or a picture's tokens that belong together would be torn apart, or the model
                can only forget a whole sequence.
            EngineFault: the cache is closed.
        """
        self.check("trim")
        if not 0 <= num_tokens <= self._num_tokens:
            raise ValueError(f"cannot keep {num_tokens} of {self._num_tokens} entries")
        if num_tokens == self._num_tokens:
            return
        if num_tokens and self._sequences.keeps_states:
            raise ValueError(
                f"cannot keep {num_tokens} of {self._num_tokens} entries: only all of them can be forgotten"
            )
        spans = self._spans_between(0, num_tokens)
        position = sum(span.num_positions for span in spans)
        if not self._sequences.forget_from(self.sequence, position if num_tokens else -1):
            self._broken = "it could not be trimmed"
            raise EngineFault(ENGINE, "trim", self._broken)
        self._spans, self._num_tokens, self._next_position = spans, num_tokens, position

    def graft(self, donor: KVCache, start: int, stop: int) -> None:
        """Append a donor's entries, shared and not copied; see `edge_vl.engine.Graftable`."""
        self.check("graft")
        if not isinstance(donor, LlamaKVCache) or donor.owner is not self._sequences:
            raise ValueError("cannot graft: the donor belongs to another language model")
        donor.check("graft")
        if not self._sequences.is_open:
            raise EngineFault(ENGINE, "graft", "the language model is closed")
        if self._sequences.keeps_states:
            raise ValueError("cannot graft: the model keeps a state, and what a token did to it cannot be taken out")
        if start != self._num_tokens or not start <= stop <= donor.num_tokens:
            raise ValueError(
                f"cannot graft entries {start} to {stop} of {donor.num_tokens} behind {self._num_tokens} entries"
            )
        position = sum(span.num_positions for span in donor._spans_between(0, start))
        if position != self._next_position:
            raise ValueError(
                f"cannot graft: entry {start} is at position {position} in the donor and would be at "
                f"{self._next_position} here"
            )
        spans = donor._spans_between(start, stop)
        if not spans:
            return
        end = position + sum(span.num_positions for span in spans)
        self._sequences.copy(donor.sequence, self.sequence, position, end)
        for span in spans:
            self.append(span.num_tokens, span.num_positions, is_block=span.is_block)

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        if self._is_open:
            self._is_open = False
            if self._finalizer.detach() is not None:  # or the collector came first, and the number is lost already
                self._sequences.give_back(self.sequence)
            self._spans, self._num_tokens, self._next_position = [], 0, 0

    def _spans_between(self, start: int, stop: int) -> list[_Span]:
        """Return the entries `start` to `stop` as spans.

        Raises:
            ValueError: a picture's tokens that belong together would be torn apart.
        """
        spans: list[_Span] = []
        first = 0
        for span in self._spans:
            count = min(stop, first + span.num_tokens) - max(start, first)
            first += span.num_tokens
            if count <= 0:
                continue
            if span.is_block and count < span.num_tokens:
                raise ValueError(f"entries {start} to {stop} of {self._num_tokens} would tear a picture apart")
            spans.append(_Span(count, span.num_positions if span.is_block else count, span.is_block))
        return spans
