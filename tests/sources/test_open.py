"""What a user calls a source, and what becomes of it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edge_vl import RequestError, SourceError, open_source
from edge_vl.sources import opencv_capture
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.csi_pipeline import csi_pipeline
from edge_vl.sources.synthetic import SyntheticCapture, read_number
from edge_vl.sources.view import View


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Note what OpenCV would be asked to open, and show a drawn camera instead."""
    calls: list[tuple[str, Any]] = []
    for name in ("open_stream", "open_device", "open_gstreamer"):

        def double(what: Any, settings: CameraSettings, name: str = name) -> SyntheticCapture:
            calls.append((name, what))
            return SyntheticCapture(96, 96, 50.0)

        monkeypatch.setattr(opencv_capture, name, double)
    return calls


@pytest.mark.parametrize(
    ("text", "call", "name"),
    [
        ("0", ("open_device", 0), "camera 0"),
        (" 12 ", ("open_device", 12), "camera 12"),
        ("/dev/video2", ("open_device", "/dev/video2"), "/dev/video2"),
        ("rtsp://a:b@cam:554/x", ("open_stream", "rtsp://a:b@cam:554/x"), "rtsp://***@cam:554/x"),
        ("RTSPS://cam/x", ("open_stream", "RTSPS://cam/x"), "RTSPS://cam/x"),
        ("http://cam/mjpg?token=t", ("open_stream", "http://cam/mjpg?token=t"), "http://cam/mjpg?token=***"),
        ("gst:videotestsrc ! appsink", ("open_gstreamer", "videotestsrc ! appsink"), "gst:videotestsrc ! appsink"),
        ("csi:1", ("open_gstreamer", csi_pipeline(1)), "csi:1"),
    ],
)  # fmt: skip
def test_a_camera_is_opened_by_what_it_is_called(
    opened: list[tuple[str, Any]], text: str, call: tuple[str, Any], name: str
) -> None:
    source = open_source(text)
    assert isinstance(source, Camera)
    frame = source.wait_newer(-1, 5.0)
    source.close()
    assert frame is not None
    assert (opened[0], source.name, frame.source) == (call, name, name)


def test_user_and_password_go_into_the_address_and_are_never_shown(opened: list[tuple[str, Any]]) -> None:
    source = open_source("rtsp://cam/x", username="me", password="ge@heim", name="yard")
    assert isinstance(source, Camera)
    assert source.wait_newer(-1, 5.0) is not None
    source.close()
    assert opened[0] == ("open_stream", "rtsp://me:ge%40heim@cam/x")
    assert source.name == "yard"


@pytest.mark.parametrize(
    ("text", "size", "fps"),
    [("synthetic", (640, 480), None), ("synthetic:160x120", (160, 120), None), ("synthetic:160x120@40", (160, 120), 40),
     ("synthetic@30.5", (640, 480), 30.5)],
)  # fmt: skip
def test_the_synthetic_camera_is_as_large_and_as_fast_as_it_is_told_to_be(
    text: str, size: tuple[int, int], fps: float | None
) -> None:
    source = open_source(text)
    assert isinstance(source, Camera)
    frame = source.wait_newer(-1, 5.0)
    source.close()
    assert frame is not None
    assert (frame.width, frame.height) == size
    assert read_number(frame.pixels) is not None


def test_the_settings_and_the_states_reach_the_camera() -> None:
    states: list[CameraState] = []
    source = open_source("synthetic:160x120@50", settings=CameraSettings(view=View(90)), on_state=states.append)
    assert isinstance(source, Camera)
    frame = source.wait_newer(-1, 5.0)
    source.close()
    assert frame is not None
    assert (frame.width, frame.height) == (120, 160)
    until_s = time.monotonic() + 5
    while not states or states[-1].status != "closed":
        assert time.monotonic() < until_s
        time.sleep(0.005)
    assert [state.status for state in states] == ["online", "closed"]


def test_a_camera_that_is_away_is_no_error_but_offline(tmp_path: Path) -> None:
    states: list[CameraState] = []
    source = open_source("/dev/video99", on_state=states.append)
    until_s = time.monotonic() + 10
    while not states:
        assert time.monotonic() < until_s
        time.sleep(0.005)
    source.close()
    assert states[0].status == "offline"
    assert "/dev/video99" in states[0].reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a source is a picture"),
        ("   ", "a source is a picture"),
        ("a\0b", "a source is a picture"),
        (7, "a source is a picture"),
        ("rstp://u:geheim@cam/x", "did you mean rtsp://?"),
        ("mqtt://cam/x", "mqtt:// are not read"),
        ("file:///tmp/a.mp4", "without file://"),
        ("rtsp://", "no host"),
        ("rtsp://u:geheim@", "no host"),
        ("rtsp://cam/a b", "%20"),
        ("synthetic:640", "synthetic:640x480@30"),
        ("synthetic:10x10", "96 to 4096"),
        ("synthetic@0", "above 0"),
        ("synthetic:640x480@", "such as"),
        ("gst:", "needs a pipeline"),
        ("csi:", "csi:0"),
        ("csi:one", "csi:0"),
        ("picamera:-1", "picamera:0"),
    ],
)  # fmt: skip
def test_a_word_that_is_no_source_is_refused_with_a_hint(text: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        open_source(text)
    assert words in str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("nowhere/door.jpg", "no file or folder"), ("sythetic", "did you mean synthetic?"), ("door.jpg", "a webcam (0"),
     ("x" * 5000, "x"), ("rtsp:/u:geheim@cam", "did you mean rtsp?"),
     ("u:geheim@cam/x", "***@cam/x")],
)  # fmt: skip
def test_a_file_that_is_not_there_is_an_error_that_names_what_there_could_be(text: str, words: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_source(text)
    assert words in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "options", "field"),
    [
        ("synthetic", {"loop": True}, "loop"),
        ("0", {"username": "u"}, "username"),
        ("rtsp://a:b@c/d", {"username": "u", "password": "geheim"}, "username"),
        ("rtsp://c/d", {"password": "geheim"}, "username"),
        ("door.jpg", {"username": "u"}, "username"),
    ],
)  # fmt: skip
def test_an_argument_that_does_not_fit_the_kind_is_refused(text: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        open_source(text, **options)
    assert caught.value.field == field
    assert "geheim" not in str(caught.value)


def test_a_path_object_is_a_file_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("0", "synthetic"):
        with pytest.raises(SourceError, match="no file or folder"):
            open_source(Path(name))


def test_importing_the_package_imports_no_camera_library() -> None:
    script = (
        "import sys, edge_vl; assert edge_vl.open_source and edge_vl.MotionGate and edge_vl.PushedFrames; "
        "edge_vl.open_source('synthetic:96x96').close(); "
        "sys.exit(int(any(name in sys.modules for name in ('cv2', 'msgspec', 'aiomqtt', 'paho'))))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
