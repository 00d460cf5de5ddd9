"""What of a camera's state is news."""

from __future__ import annotations

import time

import numpy as np
import pytest

from edge_vl.gateway.camera_reporter import CameraReporter
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.pushed import PushedFrames


class Told(PushedFrames):
    """A camera that says of itself what it is told to."""

    def __init__(self) -> None:
        super().__init__("door")
        self.state = CameraState("connecting", since_s=time.monotonic())


def news(reporter: CameraReporter) -> tuple[list[tuple[str, str]], bool]:
    state = reporter.look()
    return list(reporter.events(state)), reporter.is_due(state)


def test_a_camera_that_connects_is_a_state_and_no_event() -> None:
    camera = Told()
    reporter = CameraReporter("door", camera)
    assert reporter.look().status == "connecting"
    assert reporter.look().age_ms is None
    assert news(reporter) == ([], True)
    assert news(reporter) == ([], False)


def test_to_come_and_to_go_is_told_once_each_and_a_short_absence_as_both() -> None:
    camera = Told()
    reporter = CameraReporter("door", camera)
    news(reporter)
    camera.state = CameraState("online", since_s=time.monotonic(), num_connections=1)
    assert news(reporter) == ([("online", "")], True)
    assert news(reporter) == ([], False)
    camera.state = CameraState("online", since_s=time.monotonic(), num_connections=2)
    assert news(reporter) == ([("offline", "the connection was lost for a moment"), ("online", "")], True)
    camera.state = CameraState("offline", "unplugged", since_s=time.monotonic(), num_connections=2)
    assert news(reporter) == ([("offline", "unplugged")], True)
    reporter.switch(False)
    assert news(reporter) == ([("disabled", "")], True)


def test_one_that_was_online_before_anybody_looked_is_told() -> None:
    camera = Told()
    camera.state = CameraState("online", since_s=time.monotonic(), num_connections=1)
    assert news(CameraReporter("door", camera)) == ([("online", "")], True)


def test_numbers_are_told_after_a_while_and_at_once_where_something_was_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    camera = Told()
    camera.state = CameraState("online", since_s=time.monotonic(), num_connections=1)
    camera.push(np.zeros((4, 6, 3), np.uint8))
    reporter = CameraReporter("door", camera)
    news(reporter)
    camera.state = CameraState("online", since_s=camera.state.since_s, num_connections=1, num_frames=9)
    assert news(reporter) == ([], False)
    reporter.note_change()
    assert news(reporter) == ([], True)
    camera.state = CameraState("online", since_s=camera.state.since_s, num_connections=1, num_frames=20)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 5.1)
    state = reporter.look()
    assert (state.frames, state.age_ms is not None) == (20, True)
    assert reporter.is_due(state)
    assert not reporter.is_due(reporter.look())
