"""Tests of how costs are learned. Durations are made up; nothing is timed."""

from __future__ import annotations

import math
import random
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.chunk_policy import ChunkCost
from edge_vl.costs import UNKNOWN_RELATIVE_ERROR, CostBook, Costs, UnitCost, unit_shape
from edge_vl.plan import ImageChunk, ImageUnit

SHAPE = "512x512/64"
SECONDS = st.floats(1e-6, 1e3)


def test_a_shape_names_rows_columns_and_image_tokens() -> None:
    chunk = ImageChunk(ImageUnit.of(np.zeros((4, 6, 3), np.uint8), "tile", 1, 1), 0, 9, 0, 9)

    assert unit_shape(chunk) == "4x6/9"


def test_a_new_book_knows_nothing() -> None:
    costs = CostBook().snapshot()

    assert costs == Costs()
    assert costs.encode_s(SHAPE) is None
    assert costs.prefill_s(64) is None
    assert costs.request_s(SHAPE, 1, 64, 1) is None
    assert costs.max_relative_error == UNKNOWN_RELATIVE_ERROR


def test_a_snapshot_is_the_same_object_until_something_is_noted() -> None:
    book = CostBook()
    book.note_encode(SHAPE, 1.0)
    before = book.snapshot()

    assert book.snapshot() is before
    book.note_answer(5)
    assert book.snapshot() is not before
    assert before.answer_tokens is None


def test_alone_and_corun_are_kept_apart() -> None:
    book = CostBook()
    book.note_encode(SHAPE, 1.0)
    book.note_encode(SHAPE, 3.0, is_corun=True)
    book.note_prefill(70, 0.5, shape=SHAPE)
    book.note_prefill(70, 0.9, shape=SHAPE, is_corun=True)
    book.note_prefill(70, 0.9, shape=SHAPE, is_corun=True)

    assert book.snapshot().units[SHAPE] == UnitCost(1.0, 0.5, 3.0, 0.9, 1, 1, 2)
    assert book.snapshot().prefill_s(70) == pytest.approx(0.5), (
        "a pass beside the vision lane says nothing of one alone"
    )


def test_the_first_measure_is_replaced_by_a_faster_second_one() -> None:
    book = CostBook()
    for duration_s in (9.0, 1.0):
        book.note_encode(SHAPE, duration_s)
        book.note_prefill(64, duration_s)

    assert book.snapshot().encode_s(SHAPE) == 1.0
    assert book.snapshot().prefill_s(64) == pytest.approx(1.0)


def test_one_hiccup_of_a_minute_changes_a_mean_by_less_than_its_own_size() -> None:
    book = CostBook()
    for _ in range(10):
        book.note_decode(0.01)
    book.note_decode(60.0)

    assert book.snapshot().decode_s == pytest.approx(0.016)


def test_a_lasting_change_of_speed_is_learned() -> None:
    book = CostBook()
    for duration_s in [0.01] * 20 + [0.1] * 30:
        book.note_decode(duration_s)
        book.note_prefill(64, duration_s * 10)

    assert book.snapshot().decode_s == pytest.approx(0.1, rel=0.01)
    assert book.snapshot().prefill_s(64) == pytest.approx(1.0, rel=0.01)


@given(
    base_s=st.floats(1e-4, 0.1),
    token_s=st.floats(1e-5, 0.01),
    sizes=st.lists(st.integers(1, 300), min_size=2, max_size=30).filter(
        lambda sizes: len({size.bit_length() for size in sizes}) > 1
    ),
)
def test_base_and_token_of_passes_are_found(base_s: float, token_s: float, sizes: list[int]) -> None:
    book = CostBook()
    for size in sizes:
        book.note_prefill(size, base_s + token_s * size)
    costs = book.snapshot()

    for size in sizes:
        assert costs.prefill_s(size) == pytest.approx(base_s + token_s * size, rel=0.25)
    if len(sizes) == len({size.bit_length() for size in sizes}):  # no two sizes in one mean: the line is exact
        assert costs.prefill_s(500) == pytest.approx(base_s + token_s * 500, rel=1e-3)


@given(st.lists(st.tuples(st.integers(1, 5000), SECONDS), min_size=1, max_size=30))
def test_no_measures_give_a_pass_that_takes_negative_time(passes: list[tuple[int, float]]) -> None:
    book = CostBook()
    for num_tokens, duration_s in passes:
        book.note_prefill(num_tokens, duration_s)
    costs = book.snapshot()

    assert costs.prefill_base_s is not None
    assert costs.prefill_token_s is not None
    assert costs.prefill_base_s >= 0
    assert costs.prefill_token_s >= 0
    assert costs.prefill_base_s + costs.prefill_token_s > 0
    slowest_s = max(duration_s for _, duration_s in passes)
    largest = max(num_tokens for num_tokens, _ in passes)
    assert (costs.prefill_s(largest) or 0) < 10 * slowest_s * largest


def test_passes_of_one_size_only_are_taken_as_proportional() -> None:
    book = CostBook()
    book.note_prefill(64, 0.64)

    assert book.snapshot().prefill_base_s == 0.0
    assert book.snapshot().prefill_token_s == pytest.approx(0.01)


def test_the_error_is_that_of_95_in_100_predictions() -> None:
    book = CostBook()
    book.note_decode(0.01)
    for _ in range(60):
        book.note_decode(0.01)
    assert book.snapshot().max_relative_error == pytest.approx(0.0)
    for _ in range(3):
        book.note_decode(0.02)
    assert book.snapshot().max_relative_error < 0.5, "3 of 64 are fewer than 5 in 100"
    for _ in range(2):
        book.note_decode(0.1)
    assert book.snapshot().max_relative_error > 0.5


def test_errors_of_passes_count_once_there_is_a_prediction() -> None:
    book = CostBook()
    book.note_prefill(64, 0.1)
    for _ in range(10):
        book.snapshot()
        book.note_prefill(64, 0.13)

    assert 0.0 < book.snapshot().max_relative_error <= 0.31


def test_a_request_is_the_sum_of_its_units() -> None:
    costs = Costs(
        units={SHAPE: UnitCost(encode_s=2.0)},
        prefill_base_s=0.1,
        prefill_token_s=0.01,
        decode_s=0.5,
        answer_tokens=11,
    )

    assert costs.request_s(SHAPE, 3, 200, 5) == pytest.approx(3 * 2.0 + 4 * 0.1 + 200 * 0.01 + 4 * 0.5)
    assert costs.request_s(SHAPE, 3, 200, None) == pytest.approx(6.0 + 0.4 + 2.0 + 10 * 0.5)
    assert costs.request_s("other", 0, 20, 1) == pytest.approx(0.1 + 0.2), "nothing of the shape is to be encoded"


@pytest.mark.parametrize("gap", ["units", "prefill_base_s", "decode_s", "answer_tokens"])
def test_a_request_with_an_unknown_part_is_not_predicted(gap: str) -> None:
    costs = Costs({SHAPE: UnitCost(encode_s=2.0)}, 0.1, 0.01, 0.5, 11)
    assert costs.request_s(SHAPE, 1, 64) is not None

    assert replace(costs, **{gap: {} if gap == "units" else None}).request_s(SHAPE, 1, 64) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("duration_s", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_what_no_clock_can_have_given_is_passed_over(duration_s: float) -> None:
    book = CostBook()
    book.note_encode(SHAPE, duration_s)
    book.note_prefill(64, duration_s, shape=SHAPE)
    book.note_decode(duration_s)
    book.note_prefill(0, 1.0)

    assert book.snapshot() == Costs()


@given(
    st.lists(st.tuples(st.sampled_from(["encode", "prefill", "decode", "answer"]), SECONDS, st.booleans()), max_size=40)
)
def test_a_loaded_book_knows_what_was_kept(notes: list[tuple[str, float, bool]]) -> None:
    book = CostBook()
    for kind, duration_s, is_corun in notes:
        if kind == "encode":
            book.note_encode(SHAPE, duration_s, is_corun=is_corun)
        elif kind == "prefill":
            book.note_prefill(1 + int(duration_s), duration_s, shape=SHAPE if is_corun else None, is_corun=is_corun)
        elif kind == "decode":
            book.note_decode(duration_s)
        else:
            book.note_answer(int(duration_s))
    kept = book.snapshot()
    other = CostBook()
    other.load(kept)
    again = other.snapshot()

    assert again.units == kept.units
    for name in ("prefill_base_s", "prefill_token_s", "decode_s", "answer_tokens", "max_relative_error"):
        if getattr(kept, name) is None:
            assert getattr(again, name) is None
        elif name != "prefill_base_s":
            assert getattr(again, name) == pytest.approx(getattr(kept, name), rel=1e-3, abs=1e-12)
    if kept.prefill_s(64) is not None:
        assert again.prefill_s(64) == pytest.approx(kept.prefill_s(64), rel=1e-3)


def test_loading_forgets_what_was_noted_and_keeps_the_chunk_table() -> None:
    table = (ChunkCost(64, 0.01, 1.0, 10.0, 1e-6),)
    book = CostBook()
    book.note_encode("other", 1.0)
    book.load(Costs(chunk_table=table))

    assert book.snapshot().units == {}
    assert book.snapshot().chunk_table == table


def test_real_passes_soon_count_more_than_a_loaded_fit() -> None:
    book = CostBook()
    book.load(Costs(prefill_base_s=0.1, prefill_token_s=0.01))
    for _ in range(40):
        book.note_prefill(64, 0.2)

    assert book.snapshot().prefill_s(64) == pytest.approx(0.2, rel=0.05)


def test_sizes_that_are_not_seen_any_more_are_forgotten() -> None:
    """The device became four times slower, and only one size of pass came since."""
    book = CostBook()
    for _ in range(20):
        for size in (20, 40, 80, 160):
            book.note_prefill(size, 0.1 + 0.01 * size)
    for _ in range(40):
        book.note_prefill(80, 4 * (0.1 + 0.01 * 80))

    assert book.snapshot().prefill_s(80) == pytest.approx(3.6, rel=0.05)


def test_a_loaded_error_counts_until_enough_predictions_were_compared() -> None:
    book = CostBook()
    book.load(Costs(decode_s=0.1, max_relative_error=0.125))
    for _ in range(7):
        book.note_decode(0.1)
    assert book.snapshot().max_relative_error == 0.125
    book.note_decode(0.1)
    assert book.snapshot().max_relative_error == pytest.approx(0.0)


def test_shapes_are_bounded_and_the_oldest_go_first() -> None:
    book = CostBook()
    for number in range(1000):
        book.note_encode(f"{number}x1/1", 1.0)

    assert len(book.snapshot().units) <= 64
    assert "999x1/1" in book.snapshot().units


def test_threads_lose_no_notes() -> None:
    book = CostBook()

    def note(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(500):
            book.note_encode(SHAPE, 0.5 + rng.random())
            book.note_prefill(64, 0.1, shape=SHAPE)
            book.snapshot()

    threads = [threading.Thread(target=note, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unit = book.snapshot().units[SHAPE]

    assert (unit.num_encodes, unit.num_prefills) == (2000, 2000)
