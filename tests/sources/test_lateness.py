"""Whether a stream's frame is one of now."""

from __future__ import annotations

from edge_vl.sources.lateness import Lateness

FRAME_S = 1 / 30


def is_late(lateness: Lateness, now_s: float, taken_s: float, waited_s: float = 0.03) -> bool:
    return lateness.is_late(now_s, taken_s, waited_s=waited_s, interval_s=FRAME_S)


def some_frames(lateness: Lateness, count: int = 30) -> None:
    for n in range(count):
        assert not is_late(lateness, n * FRAME_S, n * FRAME_S)


def test_frames_that_come_as_they_were_taken_are_in_time_whatever_the_cameras_clock_says() -> None:
    lateness = Lateness()

    # With the jitter of a network, some of them two at a time.
    assert not any(
        is_late(lateness, 1000 + n * FRAME_S + n % 3 * 0.05, 7 + n * FRAME_S, n % 3 * 0.01) for n in range(300)
    )


def test_what_piled_up_while_the_network_stood_still_is_late_until_it_is_worked_off() -> None:
    lateness = Lateness()
    some_frames(lateness)

    now_s = 30 * FRAME_S + 3  # three seconds of silence, then all of it at once, a millisecond each
    results = [is_late(lateness, now_s, 30 * FRAME_S, waited_s=3.0)]
    for n in range(31, 200):
        arrived_s = n * FRAME_S
        waited_s = max(0.0, arrived_s - now_s)
        now_s = max(now_s + 0.001, arrived_s)
        results.append(is_late(lateness, now_s, arrived_s, waited_s))

    num_late = results.index(False)
    assert 70 < num_late < 90, "those taken more than half a second before they came"
    assert not any(results[num_late:])


def test_frames_that_cannot_be_decoded_as_fast_as_they_come_get_late_and_stay_so() -> None:
    lateness = Lateness()

    results = [is_late(lateness, n * FRAME_S * 1.5, n * FRAME_S, waited_s=0.0) for n in range(200)]

    assert results.index(True) == 31
    assert all(results[31:])


def test_frames_that_stay_late_without_being_waited_for_are_never_taken_for_news() -> None:
    lateness = Lateness()
    some_frames(lateness, 1)

    assert all(is_late(lateness, 3 + n * FRAME_S, n * FRAME_S, waited_s=0.0) for n in range(1, 300))


def test_a_cameras_clock_that_jumps_runs_slowly_or_stands_still_costs_no_frame_that_was_waited_for() -> None:
    for clock in (
        lambda s: s - 60 if s > 2 else s,
        lambda s: s + 60 if s > 2 else s,
        lambda s: 60 - s if 2 < s < 4 else s,
        lambda s: s * 0.4,
        lambda s: s * 0.9999,
        lambda s: 0.0,
    ):
        lateness = Lateness()

        assert not any(is_late(lateness, n * FRAME_S, clock(n * FRAME_S)) for n in range(3000))


def test_after_a_second_of_frames_that_were_waited_for_a_clock_that_has_jumped_is_the_measure() -> None:
    lateness = Lateness()
    some_frames(lateness)
    for n in range(30, 90):
        assert not is_late(lateness, n * FRAME_S, n * FRAME_S - 60)

    assert not is_late(lateness, 90 * FRAME_S, 90 * FRAME_S - 60, waited_s=0.0), "two frames at a time are no backlog"
    assert is_late(lateness, 95 * FRAME_S + 2, 95 * FRAME_S - 60, waited_s=0.0), "but this one is"
