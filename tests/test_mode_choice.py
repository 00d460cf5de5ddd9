"""Tests of the choice of mode, from made-up costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.costs import CostBook, Costs, UnitCost
from edge_vl.mode_choice import MIN_GAIN, NUM_LEARNED_UNITS, choose_mode

SHAPE = "512x512/64"
SECONDS = st.floats(1e-4, 100.0)


def costs(
    encode_s: float, prefill_s: float, corun: tuple[float | None, float | None] | None = None, num: int = 3
) -> Costs:
    pair = corun or (None, None)
    return Costs({SHAPE: UnitCost(encode_s, prefill_s, *pair, num, num, 3 if corun else 0)})


@pytest.mark.parametrize("num_units", [0, 1])
def test_one_unit_runs_serially_whatever_it_costs(num_units: int) -> None:
    choice = choose_mode(costs(1.0, 1.0, (1.0, 1.0)), SHAPE, num_units)

    assert (choice.mode, choice.is_probe) == ("serial", False)
    assert "nothing can overlap" in choice.reason


@pytest.mark.parametrize("known", [Costs(), costs(1.0, 1.0, num=2), Costs({SHAPE: UnitCost(1.0, None, num_encodes=9)})])
def test_costs_are_learned_serially_first(known: Costs) -> None:
    choice = choose_mode(known, SHAPE, 5)

    assert (choice.mode, choice.is_probe) == ("serial", False)
    assert "being learned" in choice.reason


def test_another_shape_is_learned_anew() -> None:
    assert "384x384/81 are being learned" in choose_mode(costs(1.0, 1.0, (1.0, 1.0)), "384x384/81", 5).reason


def test_where_even_ideal_overlap_gains_little_it_is_never_tried() -> None:
    """Five units: 4/5 * P / (E + P) is below 3 % for P = 0.03 E."""
    choice = choose_mode(costs(1.0, 0.03), SHAPE, 5)

    assert (choice.mode, choice.is_probe) == ("serial", False)
    assert choice.reason == "even ideal overlap of 5 units would save only 2.3%, so it is never tried"
    assert choice.numbers["ideal_gain"] == pytest.approx(0.8 * 0.03 / 1.03)


def test_where_overlap_may_pay_it_is_tried() -> None:
    choice = choose_mode(costs(1.0, 1.0), SHAPE, 5)

    assert (choice.mode, choice.is_probe) == ("overlapped", True)
    assert "0 of 3 units" in choice.reason


def test_lanes_on_separate_devices_are_overlapped() -> None:
    choice = choose_mode(costs(1.0, 1.0, (1.0, 1.0)), SHAPE, 5)

    assert (choice.mode, choice.is_probe) == ("overlapped", False)
    assert choice.numbers["serial_s"] == 10.0
    assert choice.numbers["overlapped_s"] == 6.0
    assert choice.reason == "overlap saves 40.0% of 10 s"


def test_lanes_that_share_two_cores_take_turns() -> None:
    """Each lane with half the cores takes twice as long: n |E - P| + 2 min(E, P) is lost."""
    choice = choose_mode(costs(1.0, 1.0, (2.0, 2.0)), SHAPE, 5)

    assert (choice.mode, choice.is_probe) == ("serial", False)
    assert choice.numbers["overlapped_s"] == 10.0
    choice = choose_mode(costs(1.0, 0.5, (2.0, 1.0)), SHAPE, 5)
    assert choice.mode == "serial"
    assert choice.reason == "overlap takes 26.7% longer; one lane at a time takes 7.5 s"


def test_a_gain_within_the_hysteresis_is_left_to_serial() -> None:
    just_less = choose_mode(costs(1.0, 1.0, (1.96, 1.0)), SHAPE, 5)
    assert just_less.numbers["gain"] == pytest.approx(0.016)
    assert just_less.mode == "serial"
    assert just_less.reason.startswith("overlap saves only 1.6%;")
    assert choose_mode(costs(1.0, 1.0, (1.92, 1.0)), SHAPE, 5).mode == "overlapped"


def test_a_lane_that_was_not_measured_at_work_with_the_other_is_slowed_down_as_the_other() -> None:
    assert choose_mode(costs(1.0, 0.8, (2.5, None)), SHAPE, 3).numbers["corun_prefill_s"] == pytest.approx(2.0)
    assert choose_mode(costs(1.0, 0.8, (None, 1.6)), SHAPE, 3).numbers["corun_encode_s"] == pytest.approx(2.0)


def test_learning_ends_after_three_units_alone_and_three_together() -> None:
    book, modes = CostBook(), []
    for _ in range(8):
        choice = choose_mode(book.snapshot(), SHAPE, 4)
        modes.append((choice.mode, choice.is_probe))
        together = choice.mode == "overlapped"
        book.note_encode(SHAPE, 2.0 if together else 1.0, is_corun=together)
        book.note_prefill(70, 2.0 if together else 1.0, shape=SHAPE, is_corun=together)

    assert modes == [("serial", False)] * 3 + [("overlapped", True)] * 3 + [("serial", False)] * 2


@given(SECONDS, SECONDS, st.tuples(SECONDS, SECONDS), st.integers(2, 40))
def test_the_choice_is_never_worse_than_serial_and_numbers_say_so(
    encode_s: float, prefill_s: float, corun: tuple[float, float], num_units: int
) -> None:
    choice = choose_mode(costs(encode_s, prefill_s, corun), SHAPE, num_units)

    assert not choice.is_probe
    serial_s = num_units * (encode_s + prefill_s)
    overlapped_s = encode_s + (num_units - 1) * max(corun) + prefill_s
    if choice.mode == "overlapped":
        assert overlapped_s <= serial_s * (1 - MIN_GAIN) * (1 + 1e-9)
    elif choice.numbers["ideal_gain"] >= MIN_GAIN:
        assert overlapped_s >= serial_s * (1 - MIN_GAIN) * (1 - 1e-9)
    assert choice.numbers["serial_s"] == pytest.approx(serial_s)
    assert choice.numbers["num_coruns"] == NUM_LEARNED_UNITS
