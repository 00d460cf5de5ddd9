"""What a camera writes to the log."""

from __future__ import annotations

import logging
import time

import pytest

from edge_vl.errors import SourceError
from edge_vl.sources.camera import Camera
from edge_vl.sources.synthetic import SyntheticCapture


def test_one_that_is_switched_on_and_off_in_a_flood_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edge_vl.sources")
    told: list[str] = []
    camera = Camera(lambda: SyntheticCapture(96, 96, 30.0), name="door", on_state=lambda new: told.append(new.status))
    try:
        for _ in range(20):
            for is_enabled, status in ((False, "disabled"), (True, "online")):
                num_told = len(told)
                camera.enable(is_enabled)
                until_s = time.monotonic() + 20
                while status not in told[num_told:]:
                    assert time.monotonic() < until_s, told
                    time.sleep(0.001)
    finally:
        camera.close()
    lines = [record for record in caplog.records if "camera door is" in record.getMessage()]
    assert len(told) >= 40
    assert 1 <= len(lines) <= 10


def test_that_it_goes_offline_is_a_warning_and_all_else_an_information(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edge_vl.sources")

    def nothing_there() -> SyntheticCapture:
        raise SourceError("nobody listens")

    for open_capture, status in ((nothing_there, "offline"), (lambda: SyntheticCapture(96, 96, 30.0), "online")):
        camera = Camera(open_capture, name="door")
        until_s = time.monotonic() + 20
        while not any(f"camera door is {status}" in record.getMessage() for record in caplog.records):
            assert time.monotonic() < until_s, caplog.text
            time.sleep(0.001)
        camera.close()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("WARNING", "camera door is offline: nobody listens") in lines
    assert ("INFO", "camera door is online") in lines
    assert all(level == "INFO" or "is offline" in text for level, text in lines)
    assert all("closed: it was closed" not in text for _, text in lines)


def test_where_somebody_is_told_that_it_is_offline_the_log_does_not_warn_of_it_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "edge_vl.sources")
    told: list[str] = []

    def nothing_there() -> SyntheticCapture:
        raise SourceError("nobody listens")

    camera = Camera(nothing_there, name="door", on_state=lambda state: told.append(state.status))
    until_s = time.monotonic() + 20
    while "offline" not in told:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    camera.close()
    assert {record.levelname for record in caplog.records} == {"INFO"}
