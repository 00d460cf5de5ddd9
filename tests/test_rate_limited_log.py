"""Tests of log lines that somebody else can cause."""

from __future__ import annotations

import logging
import sys
import threading
import time

import pytest

from edge_vl.rate_limited_log import RateLimitedLog, tell_left_out


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_flood_becomes_a_few_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RateLimitedLog(logging.getLogger("edge_vl.test"), every_s=10, burst=5, clock=clock)
    for number in range(1000):
        log.warning("payload", "a bad payload: %s", f"reason {number}")
    log.warning("topic", "a bad topic")
    shown = [record.getMessage() for record in caplog.records]
    assert shown == [*(f"a bad payload: reason {number}" for number in range(5)), "a bad topic"]

    clock.now_s += 10
    log.warning("payload", "a bad payload: %s", "late")
    clock.now_s += 10
    log.warning("payload", "a bad payload: %s", "later")
    log.warning("payload", "a bad payload: %s", "too soon")
    assert [record.getMessage() for record in caplog.records][6:] == [
        "a bad payload: late (and 995 more since the last such line)",
        "a bad payload: later",
    ]


def test_what_was_left_out_last_is_written_when_its_time_comes(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RateLimitedLog(logging.getLogger("edge_vl.test"), every_s=10, burst=2, clock=clock)
    for number in range(6):
        log.warning("payload", "bad: %s", f"100 % of {number}")
    clock.now_s += 9
    tell_left_out()
    assert len(caplog.records) == 2
    clock.now_s += 1
    tell_left_out()
    tell_left_out()
    assert [record.getMessage() for record in caplog.records][2:] == [
        "bad: 100 % of 5 (and 3 more since the last such line)"
    ]


def test_informations_and_warnings_keep_their_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = RateLimitedLog(logging.getLogger("edge_vl.test"))
    log.info("a", "one")
    log.warning("b", "two")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_kinds_are_not_remembered_without_end(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(logging.getLogger("edge_vl.test"), burst=1, clock=Clock())
    for number in range(300):
        log.warning(f"kind {number}", "line")
    assert len(caplog.records) == 300
    log.warning("kind 299", "line")  # remembered
    log.warning("kind 0", "line")  # forgotten
    assert len(caplog.records) == 301


def test_logs_may_be_made_while_what_was_left_out_is_told() -> None:
    is_over = threading.Event()

    def make() -> None:
        made: list[RateLimitedLog] = []
        while not is_over.is_set():
            made = [*made[-100:], RateLimitedLog(logging.getLogger("edge_vl.test"))]

    maker = threading.Thread(target=make)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    maker.start()
    try:
        until_s = time.monotonic() + 0.5
        while time.monotonic() < until_s:
            tell_left_out()
    finally:
        is_over.set()
        maker.join()
        sys.setswitchinterval(interval_s)
