"""What a cache holds, entry by entry, so that equal beginnings are computed once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from edge_vl.engine import KVCache, LanguageModel
from edge_vl.plan import Chunk, ImageChunk, Plan, TextChunk

__all__ = ["Resident", "Residents"]

Entry = int | tuple[str, int]
"""A text token's id, or an image unit's content key with the row of the image token."""


class Resident:
    """A cache and what its entries are. Belongs to the language lane.

    Entries are noted after the engine has taken them, so that after an error or a cancel the notes are still true.
    """

    def __init__(self) -> None:
        """Start without a cache; the first `rewind` makes one."""
        self._cache: KVCache | None = None
        self._entries: list[Entry] = []

    @property
    def has_cache(self) -> bool:
        """Whether it holds memory."""
        return self._cache is not None

    @property
    def cache(self) -> KVCache:
        """The cache; only after `rewind`."""
        assert self._cache is not None
        return self._cache

    def rewind(self, language: LanguageModel, plan: Plan) -> list[Chunk]:
        """Keep as much of the cache as the plan begins with and forget the rest.

        Whole images are kept or forgotten, and at least the plan's last entry is forgotten: somebody has to compute
        the logits after it.

        Returns:
            The chunks that are still to be prefilled; a text chunk may be the rest of one.
        """
        if self._cache is None:
            self._cache = language.new_cache()
            return list(plan.chunks)
        kept, rest = self._split(plan.chunks)
        if kept < len(self._entries):
            if plan.rules.rollback == "any":
                self._cache.trim(kept)
                del self._entries[kept:]
            else:  # this family can only forget everything
                self.drop()
                self._cache = language.new_cache()
                rest = list(plan.chunks)
        return rest

    def _split(self, chunks: Sequence[Chunk]) -> tuple[int, list[Chunk]]:
        """Return the number of entries to keep and the chunks that they do not cover."""
        kept = 0
        for place, chunk in enumerate(chunks):
            entries = list(_entries(chunk))
            is_last = place == len(chunks) - 1
            common = _common(self._entries[kept : kept + len(entries)], entries)
            if common == len(entries) and not is_last:
                kept += common
                continue
            if isinstance(chunk, ImageChunk):
                return kept, list(chunks[place:])
            common = min(common, len(entries) - 1) if is_last else common
            rest = TextChunk(chunk.token_ids[common:], chunk.position + common)
            return kept + common, [rest, *chunks[place + 1 :]]
        return kept, []

    def note(self, chunks: Sequence[Chunk]) -> None:
        """Note that these chunks are in the cache now."""
        for chunk in chunks:
            self._entries.extend(_entries(chunk))

    def drop(self) -> None:
        """Give the cache back."""
        if self._cache is not None:
            self._cache.close()
        self._cache = None
        self._entries.clear()


class Residents:
    """Which caches were used when, so that the one that nobody used for longest makes room. On the language lane."""

    def __init__(self) -> None:
        """Know of none."""
        self._last_use: weakref.WeakKeyDictionary[Resident, int] = weakref.WeakKeyDictionary()
        self._num_uses = 0

    def note_use(self, resident: Resident) -> None:
        """Note that a cache is in use now."""
        self._num_uses += 1
        self._last_use[resident] = self._num_uses

    def drop_oldest(self) -> bool:
        """Give back the cache that was not used for longest, never the one in use now.

        Whoever it belongs to computes it again when it is needed.

        Returns:
            Whether there was one.
        """
        idle = [one for one, use in self._last_use.items() if one.has_cache and use != self._num_uses]
        if not idle:
            return False
        min(idle, key=self._last_use.__getitem__).drop()
        return True


def _entries(chunk: Chunk) -> Iterable[Entry]:
    if isinstance(chunk, TextChunk):
        return chunk.token_ids
    return ((chunk.unit.key, row) for row in range(chunk.num_tokens))


def _common(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    """Return the length of the longest common beginning."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
