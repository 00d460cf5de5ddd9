"""Pages: memory for 64 entries of all layers, and where it is."""

from __future__ import annotations

import mmap
import operator
import sys
import weakref
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels.kv_format import PAGE_ALIGNMENT

__all__ = ["Page", "PageAddresses", "aligned_page"]

Page = NDArray[np.uint8]
"""uint8 (nbytes,), contiguous, writable, its first byte at a multiple of 4096 bytes; it stays that once it was used."""


def aligned_page(nbytes: int) -> Page:
    """Allocate a page of zeros, without a byte of slack.

    Args:
        nbytes: a multiple of 4096, at least 4096.

    Raises:
        ValueError: `nbytes` is not that, or more than an address can count.
        TypeError: it is no integer.
        OSError: there is no memory.
    """
    nbytes = operator.index(nbytes)
    if nbytes > sys.maxsize:
        raise ValueError(f"a page has at most {sys.maxsize} bytes, not {nbytes}")
    if nbytes < PAGE_ALIGNMENT or nbytes % PAGE_ALIGNMENT:
        raise ValueError(f"a page has a multiple of {PAGE_ALIGNMENT} bytes, not {nbytes}")
    if sys.platform == "win32":
        memory = mmap.mmap(-1, nbytes)
    else:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8)


class PageAddresses:
    """The addresses of pages of one size, each page checked when it is seen first and forgotten with it.

    Asking NumPy for an address costs a microsecond, and a long sequence has hundreds of pages.

    Attributes:
        nbytes: of each page.
        num_forgotten: pages that are no more. Until it changes, a page that was seen is known by its `id`.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.num_forgotten = 0
        self._known: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[Page]] = {}

    def find(self, pages: Iterable[Page], what: str) -> list[int]:
        """Return the address of each page.

        Args:
            pages: iterated twice.
            what: the pages are, for the error.

        Raises:
            ValueError: one is no page of this size.
        """
        try:
            return list(map(self._known.__getitem__, map(id, pages)))
        except KeyError:
            for page in pages:
                if id(page) not in self._known:
                    self._add(page, what)
            return [self._known[id(page)] for page in pages]

    def check(self, pages: Iterable[Page], what: str) -> None:
        """Check that pages are what they were when they were seen first: for those that are about to be written.

        Args:
            pages: that `find` has found.
            what: the pages are, for the error.

        Raises:
            ValueError: one has another type, shape or strides by now, or is read-only.
        """
        for page in pages:
            if page.dtype != np.uint8 or page.shape != (self.nbytes,):
                raise ValueError(f"{what} must be uint8 ({self.nbytes},), not {page.dtype} {page.shape}")
            if not page.flags.carray:
                raise ValueError(f"{what} must be aligned to {PAGE_ALIGNMENT} bytes and writable; use aligned_page")

    def _add(self, page: Page, what: str) -> None:
        if not isinstance(page, np.ndarray):
            raise ValueError(f"{what} must be NumPy arrays, not {type(page).__name__}; make them with aligned_page")
        self.check((page,), what)
        address = page.ctypes.data
        if address % PAGE_ALIGNMENT:
            raise ValueError(f"{what} must be aligned to {PAGE_ALIGNMENT} bytes and writable; use aligned_page")
        key = id(page)
        self._alive[key] = weakref.ref(page, lambda _: self._forget(key))
        self._known[key] = address

    def _forget(self, key: int) -> None:
        self.num_forgotten += 1
        self._known.pop(key, None)
        self._alive.pop(key, None)
