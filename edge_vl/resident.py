"""A KV cache and what its entries are."""

from __future__ import annotations

import numpy as np

from edge_vl.engine import KVCache, LanguageModel
from edge_vl.entries import Entries, num_common

__all__ = ["Resident"]

_FIRST_ROOM = 256


class Resident:
    """A cache with notes of what is in it. Belongs to the language lane.

    Entries are noted after the engine has taken them, so that after an error or a cancel the notes are still true.

    Attributes:
        is_owned: a conversation keeps it; nobody else changes it.
        is_pinned: it is a beginning that many prompts share; nobody changes it.
        is_unsound: what is in it is not known for sure; it is dropped when nobody uses it any more.
        num_users: requests that use it now.
        last_use: larger is later.
    """

    def __init__(self, *, is_owned: bool = False) -> None:
        """Start without a cache."""
        self.is_owned = is_owned
        self.is_pinned = False
        self.is_unsound = False
        self.num_users = 0
        self.last_use = 0
        self._cache: KVCache | None = None
        self._language: LanguageModel | None = None
        self._first_graft: int | None = None
        self._notes: Entries = np.empty((_FIRST_ROOM, 2), np.int64)
        self._num_tokens = 0

    @property
    def has_cache(self) -> bool:
        """Whether it holds memory."""
        return self._cache is not None

    @property
    def cache(self) -> KVCache:
        """The cache; only when there is one."""
        assert self._cache is not None
        return self._cache

    @property
    def num_tokens(self) -> int:
        """Entries in the cache."""
        return self._num_tokens

    @property
    def num_exact(self) -> int:
        """Entries before the first one that was grafted: those behind it are not what would have been computed."""
        return self._num_tokens if self._first_graft is None else min(self._first_graft, self._num_tokens)

    @property
    def entries(self) -> Entries:
        """What is in the cache, int64 (num_tokens, 2); a view."""
        return self._notes[: self._num_tokens]

    def belongs_to(self, language: LanguageModel) -> bool:
        """Say whether its cache is one of this model."""
        return self._cache is not None and self._language is language

    def num_common(self, entries: Entries) -> int:
        """Return how many entries it begins with that these begin with, too."""
        return num_common(self.entries, entries)

    def begin(self, language: LanguageModel) -> None:
        """Take an empty cache."""
        self._take(language, language.new_cache())

    def begin_like(self, other: Resident, num_tokens: int) -> None:
        """Take a fork of another's cache, with its first entries only."""
        assert other._language is not None
        fork = other.cache.fork()
        try:
            fork.trim(num_tokens)
        except BaseException:
            fork.close()
            raise
        self._take(other._language, fork)
        self.note(other.entries[:num_tokens])
        if other.num_exact < num_tokens:
            self._first_graft = other.num_exact

    def trim(self, num_tokens: int) -> None:
        """Forget all but the first entries."""
        if num_tokens < self._num_tokens:
            self.cache.trim(num_tokens)
            self._num_tokens = num_tokens
            if self._first_graft is not None and num_tokens <= self._first_graft:
                self._first_graft = None

    def note(self, entries: Entries) -> None:
        """Note that these entries are in the cache now, too."""
        needed = self._num_tokens + len(entries)
        if needed > len(self._notes):
            grown = np.empty((max(needed, 2 * len(self._notes)), 2), np.int64)
            grown[: self._num_tokens] = self.entries
            self._notes = grown
        self._notes[self._num_tokens : needed] = entries
        self._num_tokens = needed

    def note_graft(self) -> None:
        """Note that what is noted from here on was grafted, or computed behind something grafted."""
        if self._first_graft is None:
            self._first_graft = self._num_tokens

    def drop(self) -> None:
        """Give the cache back."""
        if self._cache is not None:
            self._cache.close()
        self.forget()

    def forget(self) -> None:
        """Let go of a cache that cannot be closed, because its model is lost."""
        self._cache = self._language = self._first_graft = None
        self._num_tokens = 0

    def _take(self, language: LanguageModel, cache: KVCache) -> None:
        self._cache, self._language, self._num_tokens = cache, language, 0
        self._first_graft = None
