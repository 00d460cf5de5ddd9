"""Tests of a lane."""

from __future__ import annotations

import threading
import time

import pytest

from edge_vl.lane import Lane


def test_jobs_run_in_order_on_one_thread() -> None:
    lane = Lane("test")
    ran: list[tuple[int, int]] = []

    def note(number: int) -> None:
        ran.append((number, threading.get_ident()))

    futures = [lane.submit(note, number) for number in range(50)]
    for future in futures:
        future.result()
    lane.close()
    assert [number for number, _ in ran] == list(range(50))
    assert len({thread for _, thread in ran}) == 1


def test_an_exception_arrives_with_the_future_and_the_lane_goes_on() -> None:
    lane = Lane("test")
    with pytest.raises(ZeroDivisionError):
        lane.submit(lambda: 1 // 0).result()
    assert lane.submit(lambda: 1).result() == 1
    lane.close()


def test_closing_lets_queued_jobs_finish_and_takes_no_more() -> None:
    lane = Lane("test")
    slow = lane.submit(time.sleep, 0.05)
    last = lane.submit(lambda: "done")
    lane.close()
    assert slow.done()
    assert last.result() == "done"
    with pytest.raises(RuntimeError, match="closed"):
        lane.submit(lambda: 1)
    lane.close()


def test_a_cancelled_job_never_runs() -> None:
    lane = Lane("test")
    gate = threading.Event()
    lane.submit(gate.wait)
    future = lane.submit(lambda: pytest.fail("it ran"))
    assert future.cancel()
    gate.set()
    lane.close()
