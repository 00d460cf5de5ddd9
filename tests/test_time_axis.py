"""Tests of the time axis."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.time_axis import TimeAxis, clock_text, time_axis

SECONDS = st.floats(0, 1e5)


def axis_of(total_s: float, work_s: float, first_s: float | None) -> TimeAxis:
    return time_axis(total_s, work_s=work_s, first_token_s=first_s, left=100, right=1100)


@given(SECONDS, SECONDS, st.none() | SECONDS, st.lists(SECONDS))
def test_later_is_never_further_left_and_all_is_inside(
    total_s: float, work_s: float, first_s: float | None, moments: list[float]
) -> None:
    axis = axis_of(total_s, work_s, first_s)
    places = [axis.place(at_s) for at_s in sorted(moments)]
    assert all(one <= other + 1e-6 for one, other in pairwise(places))
    assert all(100 - 1e-6 <= place <= 1100 + 1e-6 for place in places)


@given(SECONDS, SECONDS, st.none() | SECONDS)
def test_pieces_join_without_a_gap(total_s: float, work_s: float, first_s: float | None) -> None:
    axis = axis_of(total_s, work_s, first_s)
    assert (axis.pieces[0].left, axis.pieces[-1].right) == pytest.approx((100, 1100))
    assert all(piece.right > piece.left and piece.stop_s > piece.start_s for piece in axis.pieces)
    for one, other in pairwise(axis.pieces):
        assert (one.stop_s, one.right) == pytest.approx((other.start_s, other.left))


@given(SECONDS, SECONDS, st.none() | SECONDS)
def test_ticks_are_apart_and_in_their_piece(total_s: float, work_s: float, first_s: float | None) -> None:
    axis = axis_of(total_s, work_s, first_s)
    for index, piece in enumerate(axis.pieces):
        ticks = axis.ticks(index, spacing=60)
        assert len(ticks) <= 1 + (piece.right - piece.left) / 60
        places = [axis.place(at_s) for at_s, _ in ticks]
        assert all(other - one >= 59.9 for one, other in pairwise(places))
        assert len({text for _, text in ticks}) == len(ticks)


def test_one_scale_where_the_work_is_a_large_part() -> None:
    axis = axis_of(2.0, 0.0, 1.0)
    assert len(axis.pieces) == 1
    assert axis.place(1.0) == pytest.approx(600)


def test_long_waiting_and_answering_are_drawn_tighter_than_the_work() -> None:
    axis = axis_of(100.0, 20.0, 21.0)
    assert len(axis.pieces) == 3
    assert axis.place(21.0) - axis.place(20.0) > 500
    assert axis.tightness(axis.work) == 1
    assert axis.tightness(0) > 10
    assert axis.tightness(2) > 10


@pytest.mark.parametrize(("total_s", "work_s", "first_s"), [(1e5, 10.0, 11.0), (1e5, 99_980.0, 99_990.0)])
def test_a_side_that_is_short_beside_the_other_stays_readable(total_s: float, work_s: float, first_s: float) -> None:
    axis = axis_of(total_s, work_s, first_s)
    assert len(axis.pieces) == 3
    assert all(piece.right - piece.left > 120 for piece in axis.pieces)
    assert axis.pieces[2].right == pytest.approx(1100)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (0.00085, "850 µs"),
        (0.0009999, "1.00 ms"),
        (0.0125, "12.5 ms"),
        (0.9999, "1.00 s"),
        (1.2, "1.20 s"),
        (65, "65.0 s"),
        (119.97, "2 min 00 s"),
        (125, "2 min 05 s"),
        (3600, "1 h"),
        (3900, "1 h 05 min"),
        (3912, "1 h 05 min"),
    ],
)
def test_times_read_as_people_write_them(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_ticks_of_a_scale_have_one_unit_and_only_the_digits_they_need() -> None:
    assert [text for _, text in axis_of(1.4, 0, 1.4).ticks(0, spacing=120)] == [
        "0", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1.0 s", "1.2 s", "1.4 s",
    ]  # fmt: skip
    assert [text for _, text in axis_of(300, 0, 300).ticks(0, spacing=150)] == [
        "0",
        "60 s",
        "2 min",
        "3 min",
        "4 min",
        "5 min",
    ]
    far = time_axis(8998.0, work_s=8988.0, first_token_s=None, left=100, right=1100)
    assert far.ticks(1, spacing=200)[0][1] == "2 h 29 min 50 s"
