"""Memory that the KV caches of one model share: pages with several holders, and freed ones to be used again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from edge_vl_kernels.kv import Page, aligned_page

__all__ = ["MAX_FREE_BYTES", "PagePool"]

MAX_FREE_BYTES = 32 << 20
"""Of freed pages that are kept, so that those that come and go while an answer grows are not new ones every time."""


@dataclass(slots=True)
class _Holding:
    """A page in use.

    Attributes:
        page: the page.
        count: its holders.
    """

    page: Page
    count: int


class PagePool:
    """Counts the holders of pages. Belongs to the language lane's thread.

    Each page is memory of its own from the system and goes back there when it is neither in use nor kept.
    """

    def __init__(self, *, max_free_bytes: int = MAX_FREE_BYTES) -> None:
        """Begin without pages.

        Args:
            max_free_bytes: freed pages that are kept for the next `take` of their size, all sizes together; 0 or more.
        """
        self._max_free_bytes = max_free_bytes
        self._held: dict[int, _Holding] = {}  # by the address of the array object, which lives as long as its holding
        self._free: dict[int, list[Page]] = {}  # by size, the last freed last
        self._free_bytes = 0
        self._bytes_in_use = 0
        self._deferred: list[Callable[[], None]] = []
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Not closed yet."""
        return self._is_open

    @property
    def num_pages_in_use(self) -> int:
        """Pages that have a holder, each counted once."""
        self._run_deferred()
        return len(self._held)

    @property
    def nbytes_in_use(self) -> int:
        """Memory of the pages that have a holder, each counted once."""
        self._run_deferred()
        return self._bytes_in_use

    @property
    def nbytes_free(self) -> int:
        """Memory of freed pages that are kept."""
        return self._free_bytes

    def take(self, nbytes: int) -> Page:
        """Return a page with one holder. What is in it is not defined.

        Args:
            nbytes: its size, a multiple of 4096.

        Returns:
            uint8 (nbytes,), on a border of 4096 bytes.

        Raises:
            MemoryError: the system has no more.
        """
        self._run_deferred()
        free = self._free.get(nbytes)
        if free:
            page = free.pop()
            self._free_bytes -= nbytes
        else:
            page = self._new(nbytes)
        self._held[id(page)] = _Holding(page, 1)
        self._bytes_in_use += nbytes
        return page

    def share(self, pages: Iterable[Page]) -> None:
        """Add a holder to each page."""
        for page in pages:
            self._held[id(page)].count += 1

    def release(self, pages: Iterable[Page]) -> None:
        """Take a holder from each page; one that has no other is free."""
        for page in pages:
            holding = self._held[id(page)]
            holding.count -= 1
            if not holding.count:
                del self._held[id(page)]
                self._bytes_in_use -= page.nbytes
                self._keep(page)

    def is_shared(self, page: Page) -> bool:
        """Say whether a page has more than one holder, so that none of them may write to it."""
        return self._held[id(page)].count > 1

    def own(self, page: Page) -> Page:
        """Return a page with the same content that its holder may write to, in exchange for that one.

        Raises:
            MemoryError: as for `take`; the page is held as before.
        """
        if not self.is_shared(page):
            return page
        copy = self.take(page.nbytes)
        np.copyto(copy, page)
        self.release((page,))
        return copy

    def defer(self, release: Callable[[], None]) -> None:
        """Call a function on the lane's thread, before the next page is taken. May be called from any thread."""
        self._deferred.append(release)

    def close(self) -> None:
        """Give freed pages back, those that are still in use as soon as they are not. May be called twice."""
        self._is_open = False
        self._max_free_bytes = 0
        self._run_deferred()
        self._shrink(0)

    def _run_deferred(self) -> None:
        while self._deferred:
            self._deferred.pop()()

    def _keep(self, page: Page) -> None:
        if page.nbytes <= self._max_free_bytes:
            self._shrink(self._max_free_bytes - page.nbytes)
            self._free.setdefault(page.nbytes, []).append(page)
            self._free_bytes += page.nbytes

    def _shrink(self, max_bytes: int) -> None:
        """Give freed pages back, of the size that has most, the oldest first, until what is kept is small enough."""
        while self._free_bytes > max_bytes:
            nbytes = max(self._free, key=lambda size: size * len(self._free[size]))
            del self._free[nbytes][0]
            self._free_bytes -= nbytes

    def _new(self, nbytes: int) -> Page:
        """Take memory from the system; what is kept makes room if it has no more."""
        try:
            return aligned_page(nbytes)
        except (OSError, MemoryError):
            self._shrink(0)
        try:
            return aligned_page(nbytes)
        except (OSError, MemoryError) as error:
            raise MemoryError(f"the system has no {nbytes} bytes for a page of the KV cache: {error}") from error
