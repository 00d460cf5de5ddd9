"""Paged caches that share pages: forks, trims and grafts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edge_vl.errors import EngineFault
from edge_vl_kernels.kv import Rope
from tests.engines.naive_kv_cache import FORMATS, NaiveCache
from tests.engines.paged_caches import CONTEXT_LENGTH, Model, content, holds, is_same, pages

SINKS = 4
PLACES = (0, 2, SINKS, 30, SINKS + 64, SINKS + 65, 140, SINKS + 128, 200, 250)


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


def test_a_fork_shares_every_page_until_one_writes(model: Model) -> None:
    trunk = model.cache(150)
    before, count = pages(trunk), model.pool.num_pages_in_use
    fork = trunk.fork()
    assert is_same(pages(fork), before)
    assert model.pool.num_pages_in_use == count
    assert fork.nbytes == trunk.nbytes
    model.append(fork, 1, first=300)
    assert model.pool.num_pages_in_use == count + 1  # the open page
    assert fork._table.open_page is not trunk._table.open_page
    assert is_same(pages(trunk), before)
    holds(trunk, model.twin(150))
    model.append(trunk, 1)
    assert is_same(pages(trunk), before)  # nobody else has it any more
    holds(trunk, model.twin(151))
    np.testing.assert_array_equal(content(fork)[:150], content(trunk)[:150])
    trunk.close()
    assert len(content(fork)) == 151
    fork.close()
    assert model.pool.num_pages_in_use == 0


def test_a_fork_of_a_fork_is_as_independent(model: Model) -> None:
    one = model.cache(100)
    two = one.fork()
    three = two.fork()
    two.close()
    model.append(three, 70)
    one.trim(50)
    model.append(one, 1, first=400)
    holds(three, model.twin(170))
    one.close()
    holds(three, model.twin(170))


def test_sinks_are_copied_when_a_fork_writes_to_them(int8: Model) -> None:
    trunk = int8.cache(2)
    fork = trunk.fork()
    int8.append(fork, 1, first=9)
    assert fork._table.sinks is not trunk._table.sinks
    int8.append(trunk, 1)
    holds(trunk, int8.twin(3))
    sibling = trunk.fork()
    int8.append(trunk, 3)
    int8.append(sibling, 3)
    assert sibling._table.sinks is not trunk._table.sinks
    holds(sibling, int8.twin(6))
    third = trunk.fork()
    int8.append(third, 1)
    assert third._table.sinks is trunk._table.sinks  # full: nobody writes to them any more


def test_a_shared_full_block_is_closed_without_a_copy(model: Model) -> None:
    full = model.format.num_sinks + 64
    trunk = model.cache(full)
    fork = trunk.fork()
    before = model.pool.num_pages_in_use
    model.append(fork, 1)
    is_raw = fork._table.blocks[0] is trunk._table.open_page
    assert is_raw == (model.format.pages[0] == model.format.open)
    assert model.pool.num_pages_in_use == before + 1 + (not is_raw)
    holds(fork, model.twin(full + 1))
    holds(trunk, model.twin(full))
    trunk.trim(full - 10)
    model.append(trunk, 5, first=200)
    holds(fork, model.twin(full + 1))


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 5, 63, 64, 67, 68, 69, 131, 132, 133, 195, 196, 197, 249, 250])
def test_a_trim_keeps_what_was_asked_for_or_ends_at_the_border_before(model: Model, kept: int) -> None:
    cache, twin = model.cache(250), model.twin(250)
    cache.trim(kept)
    twin.trim(kept)
    holds(cache, twin)
    left = cache.num_tokens
    is_exact = model.format.pages[0] == model.format.open
    body = kept - model.format.num_sinks
    is_inside_closed = body > 0 and body % 64 and kept < 250 - model.format.num_open(250)
    assert left == (kept - body % 64 if is_inside_closed and not is_exact else kept)
    model.append(cache, 260 - left)
    holds(cache, model.twin(260))


def test_a_trim_gives_pages_back(int8: Model) -> None:
    cache = int8.cache(250)
    counts = []
    for kept in (250, 249, 200, 150, 100, SINKS + 64, SINKS, 1, 0):
        cache.trim(kept)
        counts.append(int8.pool.num_pages_in_use)
    # Three blocks, the open one and the sinks; a block less, and behind a block's border there is no open one.
    assert counts == [5, 5, 5, 3, 2, 2, 1, 1, 0]
    assert cache.nbytes == 0


def test_a_trim_beyond_the_entries_is_refused(int8: Model) -> None:
    cache = int8.cache(10)
    for kept in (-1, 11):
        with pytest.raises(ValueError, match=f"cannot keep {kept} of 10 entries"):
            cache.trim(kept)
    holds(cache, int8.twin(10))


def test_an_uncompressed_block_that_is_open_again_is_copied_before_it_is_written_to() -> None:
    model = Model(FORMATS["f16"])
    trunk = model.cache(150)
    fork = trunk.fork()
    fork.trim(30)
    assert fork._table.open_page is trunk._table.blocks[0]
    model.append(fork, 50, first=300)
    holds(trunk, model.twin(150))
    twin = model.twin(30)
    twin.extend(model.rows[300:350], [False] * 50)
    holds(fork, twin)
    fork.trim(10)  # inside the block that it has alone
    before = fork._table.open_page
    model.append(fork, 1)
    assert fork._table.open_page is before


@pytest.mark.parametrize("name", FORMATS)
def test_rows_behind_a_trimmed_block_attend_to_all_that_is_left(name: str) -> None:
    model = Model(FORMATS[name])
    geometry = model.format.geometry
    cache = model.cache(230, is_image=True)
    cache.trim(170)
    cache.trim(model.format.num_sinks + 128)
    first = cache.num_tokens
    assert first == model.format.num_sinks + 128
    shape = (100, geometry.num_query_heads, geometry.head_dim)
    queries = np.random.default_rng(5).standard_normal(shape, np.float32)
    for start, count in ((0, 1), (1, 99)):
        step = model.kernels.step([cache.begin(count, is_image=True)])
        for layer in range(geometry.num_layers):
            rows = model.rows[first + start : first + start + count, layer]
            context = np.zeros((count, geometry.num_query_heads, geometry.head_dim), np.float32)
            part = queries[start : start + count]
            step.run(layer, model.kernels.rows(part, rows[:, 0], rows[:, 1], context))
            fresh = model.cache(first + start, is_image=True)
            other = np.zeros_like(context)
            again = model.kernels.step([fresh.begin(count, is_image=True)])
            again.run(layer, model.kernels.rows(part, rows[:, 0], rows[:, 1], other))
            np.testing.assert_allclose(context, other, atol=1e-5)
        cache.commit()
    holds(cache, model.twin(first + 100, is_image=True))


@pytest.mark.parametrize("start", PLACES[:-1])
def test_a_graft_holds_the_donors_entries_behind_its_own(model: Model, start: int) -> None:
    for stop in (place for place in PLACES if place > start):
        donor, cache, twin = model.cache(250), model.cache(), NaiveCache(model.format)
        if start:
            model.append(cache, start, first=260)
            twin.extend(model.rows[260 : 260 + start], [False] * start)
        cache.graft(donor, start, stop)
        twin.graft(model.twin(250), stop)
        holds(cache, twin)
        holds(donor, model.twin(250))
        model.append(cache, 100, first=0)
        twin.extend(model.rows[:100], [False] * 100)
        model.append(donor, 100)
        holds(donor, model.twin(350))
        donor.close()
        holds(cache, twin)
        cache.close()
        assert model.pool.num_pages_in_use == 0


def test_a_graft_of_whole_blocks_shares_them(model: Model) -> None:
    donor = model.cache(250)
    border = model.format.num_sinks + 64
    cache = model.cache(border, is_image=False)
    count = model.pool.num_pages_in_use
    cache.graft(donor, border, 250)
    shared = {id(page) for page in pages(cache)} & {id(page) for page in pages(donor)}
    assert len(shared) == 3  # two closed blocks and the open one
    is_raw = model.format.pages[0] == model.format.open
    assert (
        model.pool.num_pages_in_use == count + 0 if is_raw else count
    )  # its own first block was closed, the rest shared


def test_a_graft_from_the_first_entry_on_is_a_fork(model: Model) -> None:
    donor, cache = model.cache(250), model.cache()
    cache.graft(donor, 0, 250)
    assert is_same(pages(cache), pages(donor))


@pytest.mark.parametrize("start", [2, 30])
def test_a_graft_into_a_fork_does_not_show_in_its_trunk(model: Model, start: int) -> None:
    donor, trunk = model.cache(60), model.cache()
    model.append(trunk, start + 20, first=300)
    before = content(trunk)
    fork = trunk.fork()
    fork.trim(start)
    fork.graft(donor, start, 60)
    np.testing.assert_array_equal(content(trunk), before)
    np.testing.assert_array_equal(content(fork)[:start], before[:start])
    np.testing.assert_array_equal(content(fork)[start:], content(donor)[start:])


def test_a_graft_keeps_the_kinds_of_entries() -> None:
    model = Model(FORMATS["int8 text, int4 images"])
    donor = model.cache(SINKS + 100, is_image=True)
    cache = model.cache(SINKS + 15)
    cache.graft(donor, SINKS + 15, SINKS + 90)
    model.append(cache, 100)
    assert cache._table.formats == [1, 0]  # 49 and 26 image tokens
    assert donor._table.formats == [1]


def test_grafted_keys_are_not_turned_again() -> None:
    angles = np.random.default_rng(0).uniform(0, 6, (CONTEXT_LENGTH, 16))
    rope = Rope((1.1 * np.cos(angles)).astype(np.float32), (1.1 * np.sin(angles)).astype(np.float32))
    model = Model(FORMATS["int8"], rope)
    donor, cache = model.cache(250), model.cache(30)
    assert np.abs(content(donor) - model.rows[:250]).max() > 0.5
    before = content(donor)
    cache.graft(donor, 30, 60)
    np.testing.assert_array_equal(content(cache)[30:], before[30:60].astype(np.float16))


@pytest.mark.parametrize("name", ["int8", "int8 text, int4 images", "f32 first layer"])
def test_the_ends_of_float16_can_be_grafted_out_of_a_compressed_block(name: str) -> None:
    model = Model(FORMATS[name])
    model.rows[::2], model.rows[1::2] = 65504, -65504
    donor, cache = model.cache(200, is_image=True), model.cache(30, is_image=True)
    cache.graft(donor, 30, 60)
    np.testing.assert_array_equal(np.abs(content(cache)[30:]), 65504)
    model.append(cache, 60, is_image=True)
    assert np.isfinite(content(cache)).all()


def test_numbers_beyond_float16_can_be_grafted_where_they_are_kept() -> None:
    model = Model(FORMATS["f32"])
    model.rows[:] *= 1e9
    donor, cache = model.cache(100), model.cache(30)
    cache.graft(donor, 30, 90)
    holds(cache, model.twin(90))


def test_a_graft_that_fails_half_way_changes_nothing(int8: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    donor, cache = int8.cache(250), int8.cache(100)
    held = int8.pool.num_pages_in_use
    monkeypatch.setattr(int8.kernels, "_is_open", False)
    with pytest.raises(RuntimeError, match="closed"):
        cache.graft(donor, 100, 230)
    monkeypatch.undo()
    assert int8.pool.num_pages_in_use == held
    holds(cache, int8.twin(100))


def test_what_cannot_be_grafted_is_refused_and_changes_nothing(int8: Model) -> None:
    donor, cache = int8.cache(150), int8.cache(100)
    stranger = Model(FORMATS["int8"]).cache(150)
    for place, stop in ((99, 150), (101, 150), (0, 150), (100, 151), (100, 99)):
        with pytest.raises(ValueError, match="cannot graft entries"):
            cache.graft(donor, place, stop)
    with pytest.raises(ValueError, match="cannot graft entries"):
        cache.graft(cache, 100, 101)
    with pytest.raises(ValueError, match="belongs to another language model"):
        cache.graft(stranger, 100, 150)
    before = pages(cache)
    cache.graft(donor, 100, 100)
    assert is_same(pages(cache), before)
    holds(cache, int8.twin(100))
    donor.close()
    with pytest.raises(EngineFault, match="the donor is closed"):
        cache.graft(donor, 100, 150)
    holds(cache, int8.twin(100))
