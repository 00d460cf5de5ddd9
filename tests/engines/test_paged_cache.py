"""Paged caches: what they hold after steps, whole and failed ones, and what they give back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.engine import Graftable, KVCache
from edge_vl.errors import CacheFull, EngineFault
from edge_vl_onnxruntime import page_pool
from tests.engines.naive_kv_cache import FORMATS, NaiveCache
from tests.engines.paged_caches import CONTEXT_LENGTH, Memory, Model, content, holds, is_same, pages

SINKS = 4


@pytest.fixture
def int8() -> Iterator[Model]:
    model = Model(FORMATS["int8"])
    yield model
    model.close()


@pytest.fixture(params=["f16", "int8", "f16 text, int4 images", "f32 first layer"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    model = Model(FORMATS[request.param])
    yield model
    model.close()


def test_it_is_a_cache_that_takes_grafts(int8: Model) -> None:
    cache: KVCache = int8.cache()
    assert isinstance(cache, Graftable)


def test_a_full_block_is_closed_when_the_next_entry_comes(int8: Model) -> None:
    cache = int8.cache(SINKS + 64)
    assert not cache._table.blocks
    holds(cache, int8.twin(SINKS + 64))
    int8.append(cache, 1)
    assert len(cache._table.blocks) == 1
    holds(cache, int8.twin(SINKS + 65))
    int8.append(cache, 63)
    assert len(cache._table.blocks) == 1
    int8.append(cache, 1)
    holds(cache, int8.twin(SINKS + 129))


def test_a_step_may_be_split_anywhere(model: Model) -> None:
    whole = model.cache(300)
    holds(whole, model.twin(300))
    for sizes in ([1] * 300, [3, 1, 64, 200, 32], [4, 64, 64, 64, 64, 40]):
        cache = model.cache()
        for size in sizes:
            model.append(cache, size)
        np.testing.assert_array_equal(content(cache), content(whole))
        assert cache.nbytes == whole.nbytes


@pytest.mark.parametrize("num_image", [47, 48])
def test_three_quarters_of_image_tokens_make_a_block_one_of_images(num_image: int) -> None:
    model = Model(FORMATS["int8 text, int4 images"])
    is_image = np.zeros(SINKS + 65, np.bool_)
    is_image[:SINKS] = True  # sinks do not count
    is_image[SINKS + 10 : SINKS + 10 + num_image] = True
    whole, split = model.cache(), model.cache()
    model.append(whole, len(is_image), is_image=is_image)
    for start in range(0, len(is_image), 23):
        part = is_image[start : start + 23]
        model.append(split, len(part), is_image=part)
    expected = [int(num_image >= 48)]
    assert whole._table.formats == split._table.formats == expected
    twin = NaiveCache(model.format)
    twin.extend(model.rows[: len(is_image)], is_image.tolist())
    holds(whole, twin)
    holds(split, twin)


def test_kinds_are_forgotten_with_their_entries() -> None:
    model = Model(FORMATS["int8 text, int4 images"])
    cache = model.cache(SINKS + 60, is_image=True)
    cache.trim(SINKS + 5)
    model.append(cache, 60)
    assert cache._table.formats == [0]


def test_each_block_of_a_step_has_the_format_of_its_own_entries() -> None:
    model = Model(FORMATS["int8 text, int4 images"])
    cache = model.cache()
    model.append(cache, SINKS + 257, is_image=np.arange(SINKS + 257) // 64 % 2 == 1)
    assert cache._table.formats == [0, 1, 0, 1]


def test_one_kind_needs_no_kinds(int8: Model) -> None:
    assert int8.cache(SINKS + 65, is_image=True)._table.formats == [0]


def test_a_compressing_step_of_many_blocks_needs_one_page_for_all_that_is_open(int8: Model) -> None:
    cache = int8.cache(SINKS + 10)
    before = int8.pool.num_pages_in_use
    sequence = cache.begin(300)
    kept, *others = sequence.open_pages
    assert len(sequence.blocks) == len(others) == 4
    assert is_same(others, others[:1] * 4)  # what the first block had already stays as it is
    assert kept is not others[0]
    assert int8.pool.num_pages_in_use == before + 4 + 1
    cache.abort()
    assert int8.pool.num_pages_in_use == before


def test_a_block_that_is_not_compressed_is_not_copied() -> None:
    model = Model(FORMATS["f16"])
    cache = model.cache(10)
    first = cache._table.open_page
    sequence = cache.begin(200)
    assert sequence.open_pages[0] is first
    assert is_same(list(sequence.blocks), list(sequence.open_pages[:-1]))
    cache.commit()
    assert cache._table.blocks[0] is first
    assert model.pool.num_pages_in_use == 4


@pytest.mark.parametrize("num_tokens", [0, 1, SINKS, SINKS + 1, SINKS + 64, SINKS + 65, SINKS + 130, SINKS + 192])
def test_it_says_beforehand_what_a_trim_keeps(model: Model, num_tokens: int) -> None:
    for kept in range(num_tokens + 1):
        cache = model.cache(num_tokens)
        keepable = cache.keepable(kept)
        assert cache.num_tokens == num_tokens  # saying so changes nothing
        cache.trim(kept)
        assert cache.num_tokens == keepable <= kept
        assert cache.keepable(keepable) == keepable
        cache.close()


def test_what_is_not_there_cannot_be_kept(int8: Model) -> None:
    cache = int8.cache(10)
    for wrong in (-1, 11):
        with pytest.raises(ValueError, match="cannot keep"):
            cache.keepable(wrong)


def test_memory_does_not_shrink_while_entries_come(model: Model) -> None:
    cache = model.cache()
    assert cache.nbytes == 0
    nbytes = 0
    for _ in range(200):
        model.append(cache, 1)
        assert cache.nbytes >= nbytes > -1
        nbytes = cache.nbytes
    assert nbytes == sum(page.nbytes for page in pages(cache)) == model.pool.nbytes_in_use


def test_there_is_room_for_the_context_and_no_more(int8: Model) -> None:
    cache = int8.cache(CONTEXT_LENGTH - 1)
    for count in (0, -1, 2):
        with pytest.raises(EngineFault, match=f"{count} tokens where there is room for 1"):
            cache.begin(count)
    int8.append(cache, 1)
    with pytest.raises(EngineFault, match="1 tokens where there is room for 0"):
        cache.begin(1)
    holds(cache, int8.twin(CONTEXT_LENGTH))


def test_counts_may_be_numbers_of_numpy() -> None:
    model = Model(FORMATS["int8 text, int4 images"])
    donor, cache = model.cache(250, is_image=True), model.cache(1)
    cache.graft(donor, np.int64(1), np.int64(SINKS + 63))  # type: ignore[arg-type]
    cache.trim(np.int64(SINKS + 63))  # type: ignore[arg-type]
    model.append(cache, np.int64(130), is_image=True)  # type: ignore[arg-type]
    cache.trim(np.int64(SINKS + 130))  # type: ignore[arg-type]
    model.append(cache, 120, is_image=True)
    assert cache._table.formats == [1, 1, 1]
    assert cache.num_tokens == SINKS + 128 + 120
    twin = model.twin(cache.num_tokens, is_image=True)
    np.testing.assert_array_equal(content(cache)[SINKS + 64 :], twin.entries[SINKS + 64 :])


@pytest.mark.parametrize("is_image", [np.zeros(4, np.bool_), np.zeros(3, np.int64), np.zeros((3, 1), np.bool_)])
def test_kinds_that_do_not_fit_the_rows_are_refused(int8: Model, is_image: NDArray[Any]) -> None:
    cache = int8.cache()
    with pytest.raises(ValueError, match=r"is_image must be bool \(3,\)"):
        cache.begin(3, is_image)
    assert int8.pool.num_pages_in_use == 0
    int8.append(cache, 3)


@pytest.mark.parametrize("start", [0, 2, SINKS, 40, SINKS + 64, SINKS + 65, 150])
def test_an_aborted_step_costs_nothing(model: Model, start: int) -> None:
    cache = model.cache(start)
    held = (cache.nbytes, model.pool.num_pages_in_use, model.pool.nbytes_in_use)
    for count in (1, 30, 64, 65, 300):
        for num_layers in (0, 1, model.format.geometry.num_layers):
            model.run(cache, count, first=100, num_layers=num_layers)
            cache.abort()
            assert (cache.nbytes, model.pool.num_pages_in_use, model.pool.nbytes_in_use) == held
            holds(cache, model.twin(start))
    model.append(cache, 300)
    holds(cache, model.twin(start + 300))


def test_an_aborted_step_behind_a_trimmed_block_costs_nothing(int8: Model) -> None:
    cache = int8.cache(SINKS + 150)
    cache.trim(SINKS + 100)
    held = (cache.nbytes, int8.pool.num_pages_in_use)
    int8.run(cache, 200, first=7)
    cache.abort()
    assert (cache.nbytes, int8.pool.num_pages_in_use) == held
    int8.append(cache, 86)
    holds(cache, int8.twin(SINKS + 150))


def test_rows_that_the_kernels_refuse_are_forgotten_by_abort(int8: Model) -> None:
    cache = int8.cache(100)
    int8.rows[150] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        int8.run(cache, 60)
    cache.abort()
    holds(cache, int8.twin(100))


def test_a_step_that_is_under_way_forbids_all_but_its_end(int8: Model) -> None:
    cache, other = int8.cache(10), int8.cache(20)
    for end in (cache.commit, cache.abort):
        with pytest.raises(EngineFault, match="begin one first"):
            end()
    cache.begin(1)
    for call in (
        lambda: cache.begin(1),
        cache.fork,
        lambda: cache.trim(0),
        lambda: cache.read(0),
        lambda: cache.graft(other, 10, 20),
        lambda: int8.cache(5).graft(cache, 5, 10),
    ):
        with pytest.raises(EngineFault, match="under way"):
            call()
    cache.abort()
    holds(cache, int8.twin(10))


@pytest.mark.parametrize("num_tokens", [0, 2, 50, SINKS + 64, 200])
@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_closed_cache_gives_everything_back(model: Model, num_tokens: int, is_in_step: bool) -> None:
    cache = model.cache(num_tokens)
    if is_in_step:
        model.run(cache, 100)
    for _ in range(2):
        cache.close()
        assert not cache.is_open
        assert (cache.num_tokens, cache.next_position, cache.nbytes) == (0, 0, 0)
        assert (model.pool.num_pages_in_use, model.pool.nbytes_in_use) == (0, 0)


def test_a_closed_cache_refuses_to_work(int8: Model) -> None:
    cache, other = int8.cache(10), int8.cache(20)
    cache.close()
    for call in (
        lambda: cache.begin(1),
        cache.fork,
        lambda: cache.trim(0),
        lambda: cache.read(0),
        lambda: cache.graft(other, 0, 1),
    ):
        with pytest.raises(EngineFault, match="the cache is closed"):
            call()
    for end in (cache.commit, cache.abort):
        with pytest.raises(EngineFault, match="begin one first"):
            end()


def test_a_cache_of_a_closed_model_refuses_to_work_and_can_be_closed(int8: Model) -> None:
    cache, other = int8.cache(10), int8.cache(20)
    int8.pool.close()
    for call in (lambda: cache.begin(1), lambda: cache.graft(other, 10, 11)):
        with pytest.raises(EngineFault, match="the language model is closed"):
            call()
    cache.close()
    other.close()
    assert (int8.pool.num_pages_in_use, int8.pool.nbytes_free) == (0, 0)


@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_cache_that_nobody_closed_gives_everything_back(int8: Model, is_in_step: bool) -> None:
    cache = int8.cache(200)
    if is_in_step:
        int8.run(cache, 100)
    fork = None if is_in_step else cache.fork()
    del cache
    gc.collect()
    if fork is not None:
        assert int8.pool.num_pages_in_use == 5
        holds(fork, int8.twin(200))
        del fork
    gc.collect()
    assert int8.pool.num_pages_in_use == 0


@pytest.mark.parametrize("start", [0, 2, SINKS, 40, SINKS + 64, 150])
def test_without_memory_a_step_does_not_begin(model: Model, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = model.cache(start)
    model.pool._shrink(0)
    held = (cache.nbytes, model.pool.num_pages_in_use, model.pool.nbytes_in_use)
    num_refused = 0
    for num_left in range(10):
        monkeypatch.setattr(page_pool, "aligned_page", Memory(num_left).page)
        try:
            cache.begin(300)
        except CacheFull:
            num_refused += 1
            assert (cache.nbytes, model.pool.num_pages_in_use, model.pool.nbytes_in_use) == held
            holds(cache, model.twin(start))
            model.pool._shrink(0)
        else:
            break
    assert num_refused == model.pool.num_pages_in_use - held[1] > 3
    cache.abort()
    monkeypatch.undo()
    model.append(cache, 300)
    holds(cache, model.twin(start + 300))


def test_without_memory_a_graft_changes_nothing(int8: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    donor, cache = int8.cache(250), int8.cache(100)
    int8.pool._shrink(0)
    held = int8.pool.num_pages_in_use
    for num_left in (0, 1):
        monkeypatch.setattr(page_pool, "aligned_page", Memory(num_left).page)
        with pytest.raises(CacheFull, match=r"130 more entries.*fewer bits"):
            cache.graft(donor, 100, 230)
        int8.pool._shrink(0)
        assert int8.pool.num_pages_in_use == held
        holds(cache, int8.twin(100))
        holds(donor, int8.twin(250))
    monkeypatch.undo()
    cache.graft(donor, 100, 230)
    assert cache.num_tokens == 230
