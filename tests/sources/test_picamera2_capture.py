"""A Raspberry Pi's own camera, against a double that was written after Picamera2's documentation."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge_vl.errors import SourceError
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.picamera2_capture import open_picamera

SETTINGS = CameraSettings(read_timeout_s=0.5)


class Double:
    """What of Picamera2 is used, with everything that was done to it."""

    def __init__(self, shape: tuple[int, ...] = (6, 8, 3)) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.held = 0
        self.array = np.full(shape, 7, np.uint8)
        self.wait_error: Exception | None = None
        self.start_error: Exception | None = None

    def __call__(self, number: int) -> Double:
        self.calls.append(("open", number))
        if number > 1:
            raise IndexError("list index out of range")
        return self

    def create_video_configuration(self, **options: Any) -> dict[str, Any]:
        return options

    def configure(self, configuration: dict[str, Any]) -> None:
        self.calls.append(("configure", configuration))

    def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.calls.append(("start", None))

    def capture_request(self, wait: bool | None = None) -> str:
        assert wait is False, "with True it would wait for ever"
        return "a job"

    def wait(self, job: str, timeout: float | None = None) -> Double:
        assert job == "a job"
        assert timeout == 0.5
        if self.wait_error is not None:
            raise self.wait_error
        self.held += 1
        return self

    def make_array(self, stream: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        assert stream == "main"
        return self.array

    def release(self) -> None:
        self.held -= 1

    def stop(self) -> None:
        self.calls.append(("stop", None))

    def close(self) -> None:
        self.calls.append(("close", None))


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    double = Double()
    monkeypatch.setitem(sys.modules, "picamera2", SimpleNamespace(Picamera2=double))
    return double


def test_it_asks_for_rgb_frames_that_are_not_older_than_the_question(double: Double) -> None:
    open_picamera(0, SETTINGS, size=(640, 480), fps=10).close()

    [configuration] = [value for name, value in double.calls if name == "configure"]
    assert configuration["main"] == {"size": (640, 480), "format": "BGR888"}
    assert configuration["queue"] is False
    assert configuration["controls"] == {"FrameRate": 10}
    assert [name for name, _ in double.calls] == ["open", "configure", "start", "stop", "close"]


def test_frames_are_copied_and_every_buffer_is_given_back(double: Double) -> None:
    capture = open_picamera(0, SETTINGS)
    for _ in range(3):
        assert capture.grab()
        assert double.held == 1
    pixels = capture.retrieve()
    double.array[:] = 9

    assert (pixels == 7).all()
    capture.close()
    assert double.held == 0


def test_a_frame_that_does_not_come_is_told(double: Double) -> None:
    capture = open_picamera(0, SETTINGS)
    double.wait_error = TimeoutError()
    with pytest.raises(SourceError, match=r"Raspberry Pi camera 0 gave nothing for 0\.5 s"):
        capture.grab()

    double.wait_error = RuntimeError("Failed to queue request")
    with pytest.raises(SourceError, match="Failed to queue request"):
        capture.grab()
    with pytest.raises(SourceError, match="has no frame"):
        capture.retrieve()


def test_a_frame_of_another_kind_is_refused(double: Double) -> None:
    double.array = np.zeros((6, 8, 4), np.uint8)
    capture = open_picamera(0, SETTINGS)
    assert capture.grab()

    with pytest.raises(SourceError, match="shape"):
        capture.retrieve()


def test_a_camera_that_is_not_there_is_told(double: Double) -> None:
    with pytest.raises(SourceError, match="there is no such camera; `edge-vl cameras`"):
        open_picamera(2, SETTINGS)


def test_a_camera_that_does_not_start_is_closed(double: Double) -> None:
    double.start_error = RuntimeError("Camera in Running state")

    with pytest.raises(SourceError, match="Camera in Running state"):
        open_picamera(0, SETTINGS)

    assert double.calls[-1] == ("close", None)


def test_without_picamera2_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "picamera2", None)

    with pytest.raises(SourceError, match="apt-get install python3-picamera2"):
        open_picamera(0, SETTINGS)
