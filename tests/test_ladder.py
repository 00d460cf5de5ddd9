"""Tests of the choice of a smaller setting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.costs import CostBook, Costs, UnitCost, unit_shape
from edge_vl.families.idefics3 import Idefics3
from edge_vl.ladder import Rung, pick_rung
from edge_vl.message import Message
from edge_vl.model_spec import read_model_spec
from edge_vl.pictures import load_picture
from edge_vl.tokenizer import HFTokenizer

BUNDLED = Path(__file__).parent.parent / "edge_vl" / "bundled_model"
TILES = tuple(
    Rung(edge, units, 64 * units, "512x512/64") for edge, units in ((None, 13), (1536, 10), (1024, 5), (512, 1))
)
WHOLE = (
    Rung(None, 1, 400, "480x640/400"),
    Rung(453, 1, 200, "340x453/200"),
    Rung(320, 1, 100, "240x320/100"),
)
COSTS = Costs(
    units={"512x512/64": UnitCost(encode_s=1.0)},
    prefill_base_s=0.01,
    prefill_token_s=0.001,
    decode_s=0.1,
    answer_tokens=11.0,
    max_relative_error=0.1,
)


def seconds(rung: Rung, costs: Costs = COSTS, text_tokens: int = 20, answer_tokens: float | None = None) -> float:
    predicted_s = costs.request_s(rung.shape, rung.num_units, rung.num_image_tokens + text_tokens, answer_tokens)
    assert predicted_s is not None
    return predicted_s


@pytest.mark.parametrize("index", range(4))
def test_the_best_rung_in_time_is_chosen(index: int) -> None:
    needed_s = 1.1 * seconds(TILES[index])
    choice = pick_rung(TILES, COSTS, text_tokens=20, remaining_s=needed_s + 1e-6)
    assert choice.rung is TILES[index]
    assert choice.is_in_time
    assert choice.predicted_s == pytest.approx(needed_s)
    smaller = pick_rung(TILES, COSTS, text_tokens=20, remaining_s=needed_s - 1e-6)
    assert smaller.rung is TILES[min(index + 1, 3)]
    assert smaller.is_in_time == (index < 3)


def test_the_reason_says_what_was_given_up_and_the_numbers() -> None:
    choice = pick_rung(TILES, COSTS, text_tokens=20, remaining_s=8.0)
    assert choice.reason == (
        "5 units with 320 image tokens in 7.04 s instead of 13 units with 832 image tokens in "
        f"{1.1 * seconds(TILES[0]):.3g} s, as 8 s are left"
    )
    assert pick_rung(TILES, COSTS, text_tokens=20, remaining_s=0.5).reason.endswith(
        "as 0.5 s are left; there is nothing smaller"
    )


def test_a_deadline_that_has_passed_gives_the_smallest_rung() -> None:
    choice = pick_rung(TILES, COSTS, text_tokens=20, remaining_s=-3.0)
    assert choice.rung is TILES[-1]
    assert not choice.is_in_time
    assert "as 0 s are left" in choice.reason


def test_without_a_deadline_nothing_is_given_up() -> None:
    choice = pick_rung(TILES, COSTS, text_tokens=20)
    assert choice.rung is TILES[0]
    assert choice.predicted_s is None


@pytest.mark.parametrize(
    "unknown",
    [{"units": {}}, {"prefill_base_s": None}, {"prefill_token_s": None}, {"decode_s": None}, {"answer_tokens": None}],
)
def test_what_is_not_known_is_measured_with_the_best_rung(unknown: dict[str, object]) -> None:
    choice = pick_rung(TILES, replace(COSTS, **unknown), text_tokens=20, remaining_s=0.1)  # type: ignore[arg-type]
    assert choice.rung is TILES[0]
    assert choice.is_in_time
    assert "not known" in choice.reason


def test_costs_begin_unknown_and_are_learned() -> None:
    book = CostBook()
    assert pick_rung(TILES, book.snapshot(), text_tokens=20, remaining_s=3.0).rung is TILES[0]
    for _ in range(3):
        book.note_encode("512x512/64", 1.0)
        book.note_prefill(64, 0.05)
        book.note_decode(0.02)
    book.note_answer(4)
    choice = pick_rung(TILES, book.snapshot(), text_tokens=20, remaining_s=3.0)
    assert choice.rung is TILES[-1]
    assert choice.is_in_time


def test_work_before_it_and_a_longer_answer_count() -> None:
    remaining_s = 1.1 * seconds(TILES[0]) + 1e-6
    assert pick_rung(TILES, COSTS, text_tokens=20, remaining_s=remaining_s).rung is TILES[0]
    assert pick_rung(TILES, COSTS, text_tokens=20, remaining_s=remaining_s, queue_s=0.01).rung is TILES[1]
    queued = pick_rung(TILES, COSTS, text_tokens=20, remaining_s=1e6, queue_s=5.0)
    assert queued.predicted_s == pytest.approx(1.1 * (5.0 + seconds(TILES[0])))
    assert pick_rung(TILES, COSTS, text_tokens=60, remaining_s=remaining_s).rung is TILES[1]
    assert pick_rung(TILES, COSTS, text_tokens=20, answer_tokens=30, remaining_s=remaining_s).rung is TILES[1]
    assert pick_rung(TILES, COSTS, text_tokens=60, answer_tokens=2, remaining_s=remaining_s).rung is TILES[0]


def test_predictions_that_were_wrong_leave_more_room_but_not_without_end() -> None:
    remaining_s = 1.1 * seconds(TILES[0]) + 1e-6
    wrong = replace(COSTS, max_relative_error=0.3)
    assert pick_rung(TILES, wrong, text_tokens=20, remaining_s=remaining_s).rung is TILES[1]
    hopeless = replace(COSTS, max_relative_error=50.0)
    assert pick_rung(TILES, hopeless, text_tokens=20, remaining_s=1.4 * seconds(TILES[0]) + 1e-6).rung is TILES[0]


@pytest.mark.parametrize(
    ("known", "wanted", "factor"), [(0, 1, 1 / 2), (0, 2, 1 / 4), (2, 1, 4), (1, 0, 4), (2, 0, 16)]
)
def test_what_a_rung_costs_is_worked_out_from_another_on_the_slow_side(known: int, wanted: int, factor: float) -> None:
    costs = replace(COSTS, units={WHOLE[known].shape: UnitCost(encode_s=8.0)}, max_relative_error=0.0)
    as_if = replace(costs, units={WHOLE[wanted].shape: UnitCost(encode_s=8.0 * factor)})
    needed_s = seconds(WHOLE[wanted], as_if)
    choice = pick_rung(WHOLE[wanted:] if known > wanted else WHOLE, costs, text_tokens=20, remaining_s=needed_s + 1e-6)
    assert choice.rung is WHOLE[wanted]
    assert choice.predicted_s == pytest.approx(needed_s)


def test_the_nearest_rung_that_ran_is_the_one_it_is_worked_out_from() -> None:
    units = {WHOLE[0].shape: UnitCost(encode_s=8.0), WHOLE[1].shape: UnitCost(encode_s=2.0)}
    costs = replace(COSTS, units=units, max_relative_error=0.0)
    needed_s = seconds(WHOLE[2], replace(costs, units={WHOLE[2].shape: UnitCost(encode_s=1.0)}))
    choice = pick_rung(WHOLE, costs, text_tokens=20, remaining_s=needed_s + 1e-6)
    assert choice.rung is WHOLE[2]
    assert choice.is_in_time


@settings(deadline=None)
@given(
    remaining_s=st.floats(0, 40),
    more_s=st.floats(0, 10),
    encode_s=st.floats(1e-4, 5),
    error=st.floats(0, 2),
    queue_s=st.floats(0, 5),
)
def test_more_time_never_gives_a_smaller_rung(
    remaining_s: float, more_s: float, encode_s: float, error: float, queue_s: float
) -> None:
    costs = replace(COSTS, units={"512x512/64": UnitCost(encode_s=encode_s)}, max_relative_error=error)
    less, more = (
        pick_rung(TILES, costs, text_tokens=20, remaining_s=time_s, queue_s=queue_s)
        for time_s in (remaining_s, remaining_s + more_s)
    )
    assert TILES.index(more.rung) <= TILES.index(less.rung)
    assert less.predicted_s is not None
    assert less.is_in_time == (less.predicted_s <= remaining_s)
    assert less.is_in_time or less.rung is TILES[-1]


def test_a_rung_of_the_bundled_model_costs_what_its_plan_costs() -> None:
    spec = read_model_spec(BUNDLED)
    family, tokenizer = Idefics3(spec), HFTokenizer(spec)
    frame = load_picture(np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8))
    rungs = family.rungs(frame)
    assert len(rungs) > 1
    for rung in rungs:
        plan = family.layout([Message("user", (family.tile(frame, rung.longest_edge), "What?"))], tokenizer)
        assert {unit_shape(chunk) for chunk in plan.images} == {rung.shape}
        assert (len(plan.images), plan.num_image_tokens) == (rung.num_units, rung.num_image_tokens)
        costs = replace(COSTS, units={rung.shape: UnitCost(encode_s=0.5)}, max_relative_error=0.0)
        text_tokens = plan.num_tokens - plan.num_image_tokens
        choice = pick_rung([rung], costs, text_tokens=text_tokens, remaining_s=1e6)
        assert choice.predicted_s == costs.request_s(rung.shape, len(plan.images), plan.num_tokens)
