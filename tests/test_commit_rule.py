"""Tests of the commit rule."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.commit_rule import MAX_CANCELLATIONS, commit

FRACTIONS = st.floats(0, 1)
SECONDS = st.floats(0, 1e6) | st.none()


@pytest.mark.parametrize(
    ("fraction", "remaining_s", "slack_s", "decision"),
    [
        (0.1, 0.9, 1.0, "finish"),
        (0.1, 0.9, 0.9, "finish"),
        (0.1, 0.9, 0.8, "take_newer"),
        (0.0, 0.9, -0.1, "take_newer"),
        (0.59, 0.9, 0.8, "take_newer"),
        (0.6, 0.9, 0.8, "finish"),
        (0.1, None, 0.8, "finish"),
        (0.1, 0.9, None, "finish"),
        (0.0, math.inf, 10.0, "take_newer"),
    ],
)
def test_an_answer_is_given_up_only_if_it_will_be_too_late_and_is_not_nearly_done(
    fraction: float, remaining_s: float | None, slack_s: float | None, decision: str
) -> None:
    assert commit(fraction=fraction, remaining_s=remaining_s, slack_s=slack_s, num_cancelled=0) == decision


@given(FRACTIONS, SECONDS, SECONDS)
def test_after_so_many_cancellations_an_answer_is_always_finished(
    fraction: float, remaining_s: float | None, slack_s: float | None
) -> None:
    for number in range(MAX_CANCELLATIONS, MAX_CANCELLATIONS + 3):
        assert commit(fraction=fraction, remaining_s=remaining_s, slack_s=slack_s, num_cancelled=number) == "finish"


@given(FRACTIONS, SECONDS, SECONDS, st.integers(0, 5))
def test_more_progress_and_more_slack_never_turn_finishing_into_giving_up(
    fraction: float, remaining_s: float | None, slack_s: float | None, num_cancelled: int
) -> None:
    if commit(fraction=fraction, remaining_s=remaining_s, slack_s=slack_s, num_cancelled=num_cancelled) == "finish":
        further = min(1.0, fraction + 0.1)
        later = None if slack_s is None else slack_s + 1.0
        assert commit(fraction=further, remaining_s=remaining_s, slack_s=later, num_cancelled=num_cancelled) == "finish"


def frames_answered(work_s: float, frame_s: float, max_age_s: float, duration_s: float) -> tuple[int, int]:
    """Play a camera against the rule in simulated time; return how many answers were in time and how many not."""
    in_time = late = num_cancelled = 0
    now_s, captured_s = 0.0, 0.0
    while now_s < duration_s:
        begun_s = now_s
        next_frame_s = (math.floor(now_s / frame_s + 1e-9) + 1) * frame_s
        done_s = begun_s + work_s
        while next_frame_s < min(done_s, captured_s + max_age_s):
            decision = commit(
                fraction=(next_frame_s - begun_s) / work_s,
                remaining_s=done_s - next_frame_s,
                slack_s=captured_s + max_age_s - next_frame_s,
                num_cancelled=num_cancelled,
            )
            if decision == "take_newer":
                num_cancelled += 1
                break
            next_frame_s += frame_s
        else:
            now_s = min(done_s, captured_s + max_age_s)
            in_time += done_s <= captured_s + max_age_s
            late += done_s > captured_s + max_age_s
            num_cancelled = 0
            captured_s = math.floor(now_s / frame_s + 1e-9) * frame_s
            continue
        now_s = captured_s = next_frame_s
    return in_time, late


@given(st.floats(0.05, 1.0), st.floats(0.02, 0.5))
def test_a_camera_whose_answers_can_be_in_time_is_answered_as_often_as_the_work_allows(
    work_s: float, frame_s: float
) -> None:
    in_time, late = frames_answered(work_s, frame_s, max_age_s=work_s + frame_s + 0.01, duration_s=50.0)
    assert late == 0
    assert in_time >= math.floor(50.0 / (work_s + frame_s))


def test_a_camera_whose_answers_are_always_too_late_still_gets_one_to_its_end_now_and_then() -> None:
    in_time, late = frames_answered(1.0, 0.1, max_age_s=0.8, duration_s=50.0)
    assert in_time == 0
    assert late >= 40
