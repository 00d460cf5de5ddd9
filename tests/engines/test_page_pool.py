"""Pages: counted, used again, and given back to the system."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from pathlib import Path

import pytest

from edge_vl_kernels.kv import Page, aligned_page
from edge_vl_onnxruntime import page_pool
from edge_vl_onnxruntime.page_pool import PagePool

MIB = 1 << 20


def test_a_page_is_aligned_writable_and_counted() -> None:
    pool = PagePool()
    page = pool.take(8192)
    page[:] = 7
    assert page.shape == (8192,)
    assert page.ctypes.data % 4096 == 0
    assert (pool.num_pages_in_use, pool.nbytes_in_use, pool.nbytes_free) == (1, 8192, 0)


def test_a_freed_page_is_the_next_one_of_its_size() -> None:
    pool = PagePool()
    page = pool.take(8192)
    pool.release([page])
    assert (pool.num_pages_in_use, pool.nbytes_in_use, pool.nbytes_free) == (0, 0, 8192)
    assert pool.take(4096) is not page
    assert pool.take(8192) is page
    assert pool.take(8192) is not page
    assert pool.nbytes_free == 0


def test_a_page_is_free_when_its_last_holder_releases_it() -> None:
    pool = PagePool()
    page = pool.take(4096)
    assert not pool.is_shared(page)
    pool.share([page, page])
    for _ in range(2):
        assert pool.is_shared(page)
        pool.release([page])
        assert pool.num_pages_in_use == 1
    assert not pool.is_shared(page)
    pool.release([page])
    assert pool.num_pages_in_use == 0


def test_a_page_that_nobody_holds_cannot_be_released() -> None:
    pool = PagePool()
    page = pool.take(4096)
    pool.release([page])
    with pytest.raises(KeyError):
        pool.release([page])


def test_a_sole_holder_owns_the_page_and_one_of_several_gets_a_copy() -> None:
    pool = PagePool()
    page = pool.take(4096)
    page[:] = 3
    assert pool.own(page) is page
    pool.share([page])
    copy = pool.own(page)
    copy[0] = 9
    assert copy is not page
    assert (page == 3).all()
    assert (copy[1:] == 3).all()
    assert not pool.is_shared(page)
    assert not pool.is_shared(copy)


def test_no_more_than_the_bound_is_kept() -> None:
    pool = PagePool(max_free_bytes=3 * 4096)
    pages = [pool.take(4096) for _ in range(5)]
    gone = [weakref.ref(page) for page in pages]
    pool.release(pages)
    del pages
    assert pool.nbytes_free == 3 * 4096
    assert [reference() is None for reference in gone] == [True, True, False, False, False]  # the oldest ones


def test_a_page_beyond_the_bound_is_not_kept() -> None:
    pool = PagePool(max_free_bytes=4096)
    pool.release([pool.take(4096)])
    pool.release([pool.take(8192)])
    assert pool.nbytes_free == 4096


def test_the_size_that_has_most_makes_room_for_others() -> None:
    pool = PagePool(max_free_bytes=5 * 4096)
    small = [pool.take(4096) for _ in range(4)]
    large = pool.take(8192)
    pool.release(small)
    pool.release([large])
    assert pool.nbytes_free == 5 * 4096
    assert pool.take(8192) is large


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_is_not_kept_goes_back_to_the_system() -> None:
    pool = PagePool(max_free_bytes=MIB)
    before = resident_bytes()
    pages = [pool.take(MIB) for _ in range(64)]
    for page in pages:
        page[::4096] = 1
    assert resident_bytes() > before + 60 * MIB
    pool.release(pages)
    del page, pages
    assert pool.nbytes_free == MIB
    assert resident_bytes() < before + 8 * MIB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_was_deferred_from_another_thread_is_done_before_the_next_page_is_taken() -> None:
    pool = PagePool()
    page = pool.take(4096)
    thread = threading.Thread(target=pool.defer, args=(lambda: pool.release([page]),))
    thread.start()
    thread.join()
    assert pool.is_shared(page) is False
    assert pool.take(4096) is page


def test_what_was_deferred_is_done_before_pages_are_counted() -> None:
    pool = PagePool()
    pages = [pool.take(4096), pool.take(4096)]
    pool.defer(functools.partial(pool.release, pages[:1]))
    assert pool.num_pages_in_use == 1
    pool.defer(functools.partial(pool.release, pages[1:]))
    assert pool.nbytes_in_use == 0


def test_what_is_kept_makes_room_when_the_system_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PagePool()
    pool.release([pool.take(8192)])

    def allocate(nbytes: int) -> Page:
        if pool.nbytes_free:
            raise OSError(12, "Cannot allocate memory")
        return aligned_page(nbytes)

    monkeypatch.setattr(page_pool, "aligned_page", allocate)
    assert pool.take(4096).nbytes == 4096


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), MemoryError("none left")])
def test_no_memory_is_said_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def allocate(nbytes: int) -> Page:
        raise error

    pool = PagePool()
    page = pool.take(4096)
    pool.share([page])
    monkeypatch.setattr(page_pool, "aligned_page", allocate)
    with pytest.raises(MemoryError, match="no 8192 bytes for a page of the KV cache"):
        pool.take(8192)
    with pytest.raises(MemoryError, match="no 4096 bytes"):
        pool.own(page)
    assert (pool.num_pages_in_use, pool.nbytes_in_use) == (1, 4096)
    assert pool.is_shared(page)


def test_after_the_end_nothing_is_kept() -> None:
    pool = PagePool()
    held, freed = pool.take(4096), pool.take(4096)
    deferred = pool.take(4096)
    pool.release([freed])
    pool.defer(lambda: pool.release([deferred]))
    for _ in range(2):
        pool.close()
        assert not pool.is_open
        assert (pool.num_pages_in_use, pool.nbytes_free) == (1, 0)
    pool.release([held])
    assert (pool.num_pages_in_use, pool.nbytes_free) == (0, 0)
