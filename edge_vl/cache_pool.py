"""The KV caches that are kept, so that equal beginnings are computed once."""

from __future__ import annotations

import weakref

from edge_vl.engine import BlockwiseCache, Graftable, KVCache, LanguageModel
from edge_vl.entries import Entries
from edge_vl.plan import ImageChunk, Plan
from edge_vl.plan_check import may_cut_image
from edge_vl.resident import Resident

__all__ = ["CachePool"]

_WORTH_A_FORK = 8
"""Entries that another cache must have more than one's own, or the pinned one, to be used instead."""


class CachePool:
    """Finds for a prompt the cache that holds most of its beginning. Belongs to the language lane."""

    def __init__(self, language: LanguageModel, *, max_idle: int, max_idle_bytes: int) -> None:
        """Begin without caches.

        Args:
            language: whose caches.
            max_idle: caches that are kept although nobody uses them.
            max_idle_bytes: memory that these may hold together.
        """
        self._language = language
        self._max_idle = max_idle
        self._max_idle_bytes = max_idle_bytes
        self._idle: list[Resident] = []
        self._known: weakref.WeakSet[Resident] = weakref.WeakSet()
        self._pinned: list[Resident] = []
        self._num_uses = 0

    @property
    def idle_bytes(self) -> int:
        """Memory of the caches that nobody uses."""
        return sum(resident.cache.nbytes for resident in self._idle)

    def take(
        self, plan: Plan, entries: Entries, own: Resident | None, *, allows_grafts: bool = False
    ) -> tuple[Resident, int]:
        """Find or make a cache that holds as much of a prompt's beginning as possible, and nothing else.

        Whole images are kept or forgotten, but for one that the border of a compressed block tears and that prefill may
        stop in. At least the prompt's last entry is left: somebody has to compute the logits after it. The caller gives
        the cache back.

        Args:
            plan: the prompt.
            entries: its entries.
            own: the cache of the conversation that asks; it is the one returned.
            allows_grafts: whether entries that were grafted may be among them.

        Returns:
            The cache and the number of its entries.

        Raises:
            CacheFull: there is no room for one more.
        """
        if own is not None and not own.belongs_to(self._language):
            own.forget()  # it was of a lane that is lost
        best, kept = self._best(plan, entries, own, allows_grafts=allows_grafts)
        resident = self._adopt(best, kept, own)
        self._use(resident)
        return resident, resident.num_tokens

    def donor(self, plan: Plan, entries: Entries, kept: int) -> Resident | None:
        """Return the cache that has most of a prompt's entries behind the first `kept`, each at its place.

        The caller gives it back.
        """
        best, most = None, 0
        for resident in self._usable():
            if not isinstance(resident.cache, Graftable):
                return None
            length = min(resident.num_tokens, len(entries))
            count = int((resident.entries[kept:length] == entries[kept:length]).all(axis=1).sum())
            if count > most:
                best, most = resident, count
        if best is not None:
            self._use(best)
        return best

    def give_back(self, resident: Resident) -> None:
        """Keep a cache for whoever needs its beginning next; the oldest ones make room for it."""
        resident.num_users -= 1
        if resident.is_unsound:
            self._drop_unsound(resident)
            return
        if resident.num_users or resident.is_owned or resident.is_pinned or not resident.has_cache:
            return
        if resident not in self._idle:
            self._idle.append(resident)
        while len(self._idle) > self._max_idle or self.idle_bytes > self._max_idle_bytes:
            oldest = min(self._idle, key=lambda one: one.last_use)
            self._idle.remove(oldest)
            oldest.drop()

    def pin(self, resident: Resident) -> None:
        """Keep a cache that somebody made for good; it is not changed any more."""
        resident.is_pinned = True
        self._known.add(resident)
        self._pinned.append(resident)

    def know(self, resident: Resident) -> None:
        """Let others fork a cache that somebody made."""
        self._known.add(resident)

    def discard(self, resident: Resident) -> None:
        """Drop a cache that was taken and must not be used again."""
        resident.num_users -= 1
        resident.is_unsound = True
        self._drop_unsound(resident)

    def _drop_unsound(self, resident: Resident) -> None:
        if not resident.num_users:
            resident.drop()
            resident.is_unsound = False

    def drop_oldest(self) -> bool:
        """Give back the cache that was not used for longest, never one in use, and one that is pinned at last.

        Whoever it belongs to computes it again when it is needed.

        Returns:
            Whether there was one.
        """
        unused = [one for one in self._usable() if not one.num_users]
        if not unused:
            return False
        oldest = min(unused, key=lambda one: (one.is_pinned, one.last_use))
        if oldest in self._idle:
            self._idle.remove(oldest)
        if oldest.is_pinned:
            oldest.is_pinned = False
            self._pinned.remove(oldest)
        oldest.drop()
        return True

    def give_up(self) -> list[KVCache]:
        """Let go of every cache, because the model's lane is lost, and return them: only that lane may close them."""
        residents = list(self._usable())
        caches = [resident.cache for resident in residents]
        for resident in residents:
            resident.forget()
        self._idle.clear()
        self._pinned.clear()
        return caches

    def close(self) -> None:
        """Give everything back."""
        for resident in list(self._usable()):
            resident.drop()
        self._idle.clear()
        self._pinned.clear()

    def _usable(self) -> list[Resident]:
        """Return the caches that can be used, the last used first, so that of equal ones it is always the same."""
        usable = (one for one in list(self._known) if one.belongs_to(self._language))
        return sorted(usable, key=lambda one: one.last_use, reverse=True)

    def _best(
        self, plan: Plan, entries: Entries, own: Resident | None, *, allows_grafts: bool
    ) -> tuple[Resident | None, int]:
        """Return the cache with the longest usable beginning; where several have it, the cheapest to use."""
        best: Resident | None = None
        best_rank = (0, False)
        best_kept = 0
        for resident in self._usable():
            if not resident.num_tokens or resident.entries[0, 1] != entries[0, 1]:  # most differ at once
                continue
            kept = _usable_tokens(plan, entries, resident, allows_grafts=allows_grafts)
            if kept:
                is_cheap = resident is own or resident.is_pinned
                rank = (kept + _WORTH_A_FORK * is_cheap, resident is own)
                if rank > best_rank:
                    best, best_rank, best_kept = resident, rank, kept
        return best, best_kept

    def _adopt(self, best: Resident | None, kept: int, own: Resident | None) -> Resident:
        """Bring the beginning into a cache that the caller may change."""
        if best is None:
            fresh = own or Resident()
            fresh.drop()
            fresh.begin(self._language)
            self._known.add(fresh)
            return fresh
        if best is own:
            best.trim(kept)
            return best
        is_free = best in self._idle and own is None
        if is_free and 2 * kept >= best.num_tokens:
            self._idle.remove(best)
            best.trim(kept)
            return best
        fork = own or Resident()
        fork.drop()
        best.num_users += 1  # making room must not drop it
        try:
            fork.begin_like(best, kept)
        finally:
            best.num_users -= 1
        self._known.add(fork)
        return fork

    def _use(self, resident: Resident) -> None:
        self._num_uses += 1
        resident.last_use = self._num_uses
        resident.num_users += 1


def _usable_tokens(plan: Plan, entries: Entries, resident: Resident, *, allows_grafts: bool) -> int:
    """Return how many of a cache's first entries a prompt can begin with."""
    rules = plan.rules
    if not rules.text_prefix_ok:  # what comes later changes what came before
        return 0
    kept = min(resident.num_common(entries), len(entries) - 1)
    if not allows_grafts:
        kept = min(kept, resident.num_exact)
    whole = _without_torn_image(plan, kept)
    kept = _keepable(resident.cache, whole)
    while kept < whole and not may_cut_image(plan):  # what is left may end in an image, and that in another block
        whole = _without_torn_image(plan, kept)
        kept = _keepable(resident.cache, whole)
    is_all = kept == resident.num_tokens
    return kept if is_all or rules.rollback == "any" else 0


def _keepable(cache: KVCache, num_tokens: int) -> int:
    return cache.keepable(num_tokens) if isinstance(cache, BlockwiseCache) else num_tokens


def _without_torn_image(plan: Plan, num_tokens: int) -> int:
    """Return how many of a prompt's first entries are left without an image of which only a part would stay."""
    start = 0
    for chunk in plan.chunks:
        end = start + chunk.num_tokens
        if end >= num_tokens:
            return start if end > num_tokens and isinstance(chunk, ImageChunk) else num_tokens
        start = end
    return num_tokens
