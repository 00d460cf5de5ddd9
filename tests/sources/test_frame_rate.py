"""Rates of frames: a limit that is met on average, and a meter."""

from __future__ import annotations

import pytest

from edge_vl.sources.frame_rate import RateLimit, RateMeter


@pytest.mark.parametrize(("camera_fps", "max_fps", "expected"), [(30, 15, 15), (20, 15, 15), (25, 10, 10), (5, 15, 5)])
def test_a_limit_is_met_on_average_and_never_passed(camera_fps: int, max_fps: float, expected: int) -> None:
    limit = RateLimit(max_fps)
    passed = []
    for number in range(camera_fps * 10):
        now_s = number / camera_fps
        if limit.is_due(now_s):
            limit.count(now_s)
            passed.append(now_s)

    assert len(passed) == pytest.approx(expected * 10, abs=1)
    # In any second no more than the limit, and one for the second's edges.
    assert all(sum(start <= moment < start + 1 for moment in passed) <= max_fps + 1 for start in passed)


def test_nothing_is_made_up_for_after_a_pause() -> None:
    limit = RateLimit(10)
    limit.count(0.0)
    limit.count(60.0)

    assert not limit.is_due(60.05)
    assert limit.is_due(60.11)


def test_a_frame_that_could_not_be_used_leaves_its_turn_to_the_next() -> None:
    limit = RateLimit(1)

    assert limit.is_due(0.0)
    assert limit.is_due(0.1), "only count() uses it up"


def test_without_a_limit_every_frame_passes() -> None:
    limit = RateLimit(None)
    limit.count(1.0)

    assert limit.is_due(1.0)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    meter = RateMeter()
    for number in range(50):
        meter.count(number / 10)
    assert meter.fps(5.0) == pytest.approx(10)

    for number in range(100):
        meter.count(5 + number / 20)

    assert meter.fps(10.0) == pytest.approx(20, rel=0.02)


def test_the_rate_is_nothing_before_two_frames_and_after_a_silence() -> None:
    meter = RateMeter()
    assert meter.fps(0.0) == 0
    meter.count(0.0)
    assert meter.fps(0.1) == 0
    meter.count(0.1)

    assert meter.fps(0.2) == pytest.approx(10)
    assert meter.fps(60.0) == 0
