"""Tests of log lines that somebody else can cause."""

from __future__ import annotations

import logging

import pytest

from edge_vl.rate_limited_log import RateLimitedLog


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_flood_becomes_one_line_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RateLimitedLog(logging.getLogger("edge_vl.test"), every_s=10, clock=clock)
    for number in range(1000):
        log.warning("payload", "a bad payload: %s", f"reason {number}")
    log.warning("topic", "a bad topic")
    assert [record.getMessage() for record in caplog.records] == ["a bad payload: reason 0", "a bad topic"]

    clock.now_s += 10
    log.warning("payload", "a bad payload: %s", "late")
    clock.now_s += 10
    log.warning("payload", "a bad payload: %s", "later")
    assert [record.getMessage() for record in caplog.records][2:] == [
        "a bad payload: late (and 999 more since the last such line)",
        "a bad payload: later",
    ]


def test_informations_and_warnings_keep_their_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = RateLimitedLog(logging.getLogger("edge_vl.test"))
    log.info("a", "one")
    log.warning("b", "two")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_kinds_are_not_remembered_without_end(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(logging.getLogger("edge_vl.test"), clock=Clock())
    for number in range(300):
        log.warning(f"kind {number}", "line")
    assert len(caplog.records) == 300
    log.warning("kind 299", "line")  # remembered
    log.warning("kind 0", "line")  # forgotten
    assert len(caplog.records) == 301
