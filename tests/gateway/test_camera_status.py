"""Tests of reading a camera's state."""

from __future__ import annotations

import time

import numpy as np

from edge_vl.gateway.camera_status import CameraStatusReader
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.pushed import PushedFrames


class Told(PushedFrames):
    """A source that says how it is, and can be switched."""

    def __init__(self, state: CameraState) -> None:
        super().__init__("door")
        self.state = state
        self.switched: list[bool] = []

    def enable(self, is_enabled: bool) -> None:
        self.switched.append(is_enabled)


def test_a_source_that_cannot_tell_is_online_while_it_has_a_frame() -> None:
    source = PushedFrames("door")
    reader = CameraStatusReader(source, is_enabled=True)
    assert reader.read().status == "connecting"
    source.push(np.zeros((4, 6, 3), np.uint8))
    state = reader.read()
    assert (state.status, state.num_frames, state.width, state.height) == ("online", 1, 6, 4)
    source.close()
    assert reader.read().status == "connecting"


def test_what_a_camera_says_is_passed_on_and_a_reason_only_while_it_is_offline() -> None:
    source = Told(CameraState("offline", "no route to host", since_s=time.monotonic() - 100, num_bad=3, fps=9.0))
    reader = CameraStatusReader(source, is_enabled=True)
    state = reader.read()
    assert (state.status, state.reason, state.num_bad, state.fps) == ("offline", "no route to host", 3, 0.0)
    assert reader.since_wall_s < time.time() - 99
    source.state = CameraState("online", "stale words", since_s=time.monotonic(), fps=9.0)
    state = reader.read()
    assert (state.status, state.reason, state.fps) == ("online", "", 9.0)


def test_the_moment_of_a_change_does_not_move_while_nothing_changes() -> None:
    source = Told(CameraState("online", since_s=time.monotonic() - 5))
    reader = CameraStatusReader(source, is_enabled=True)
    reader.read()
    first_s = reader.since_wall_s
    time.sleep(0.01)
    reader.read()
    assert reader.since_wall_s == first_s
    reader.switch(False)
    assert reader.read().status == "disabled"
    assert reader.since_wall_s > first_s + 4
    reader.switch(True)
    assert reader.read().status == "online"
    assert source.switched == [False, True]
