"""What a user calls a source, and what becomes of it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edge_vl import RequestError, SourceError, open_source
from edge_vl.sources import opencv, opencv_capture
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.csi_pipeline import csi_pipeline
from edge_vl.sources.synthetic import SyntheticCapture, read_number
from edge_vl.sources.view import View
from tests.sources.mjpeg_server import running_mjpeg_server


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Note what OpenCV would be asked to open, and show a drawn camera instead."""
    calls: list[tuple[str, Any]] = []
    for name in ("open_stream", "open_device", "open_gstreamer"):

        def double(what: Any, settings: CameraSettings, name: str = name) -> SyntheticCapture:
            calls.append((name, what))
            return SyntheticCapture(96, 96, 50.0)

        monkeypatch.setattr(opencv_capture, name, double)
    monkeypatch.setattr(opencv, "has_gstreamer", lambda cv2: True)
    return calls


@pytest.mark.parametrize(
    ("text", "call", "name"),
    [
        ("0", ("open_device", 0), "camera 0"),
        (0, ("open_device", 0), "camera 0"),
        (" 12 ", ("open_device", 12), "camera 12"),
        ("/dev/video2", ("open_device", "/dev/video2"), "/dev/video2"),
        ("rtsp://a:b@cam:554/x", ("open_stream", "rtsp://a:b@cam:554/x"), "rtsp://***@cam:554/x"),
        ("RTSPS://cam/x", ("open_stream", "rtsps://cam/x"), "rtsps://cam/x"),
        ("http://cam/mjpg?token=t", ("open_stream", "http://cam/mjpg?token=t"), "http://cam/mjpg?..."),
        ("gst:videotestsrc ! appsink", ("open_gstreamer", "videotestsrc ! appsink"), "gst:videotestsrc ..."),
        ("csi:1", ("open_gstreamer", csi_pipeline(1)), "csi:1"),
    ],
)  # fmt: skip
def test_a_camera_is_opened_by_what_it_is_called(
    opened: list[tuple[str, Any]], text: str | int, call: tuple[str, Any], name: str
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
        ("", "an empty text is no source; a source is a picture"),
        ("   ", "an empty text is no source; a source is a picture"),
        ("rtsp://u:geheim\0@h", "a text with a NUL in it is no source"),
        (-1, "the number of a webcam is 0 to 9999"),
        (10**9, "the number of a webcam is 0 to 9999"),
        ("9" * 5000, "the number of a webcam is 0 to 9999"),
        ("\N{ARABIC-INDIC DIGIT THREE}", "the number of a webcam is 0 to 9999"),
        (True, "a bool is no source"),
        (None, "a NoneType is no source"),
        (b"0", "bytes is no source"),
        (1.0, "a float is no source"),
        ("rstp://u:geheim@cam/x", "did you mean rtsp?"),
        ("mqtt://cam/x", "of kind mqtt are not read"),
        ("file:///tmp/a.mp4", "without file://"),
        ("rtsp://", "no host"),
        ("rtsp://u:geheim@", "no host"),
        ("rtsp://cam/a b", "%20"),
        ("rtsp://u:geheim 1@cam/x", "--password-file"),
        ("rtsp://u:geheim#1@cam/x", "--password-file"),
        ("rtsp://u:geheim/1@cam/x", "--password-file"),
        ("rtsp://u:12/geheim@cam/x", "--password-file"),
        ("http://u:geheim?1@cam/x", "password_env"),
        ("rtsp://dom/u:geheim@cam/x", "percent-encoded"),
        ("rtsp://u:geheim@cam:port/x", "a port that is no number"),
        ("http://u:geheim@1.2.3.4\u2100/x", "a host that cannot be one's name"),
        (f"rtsp://u:geheim@{'a' * 70}.b/", "a host that cannot be one's name"),
        ("synthetic@0.05", "a frame every 20 s, which is not within the read timeout of 5 s"),
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
     ("u:geheim@cam/x", "***@cam/x"), ("u:ge heim@cam/x", "***@cam/x"), ("~nobody-at-all/x", "no such user")],
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
        ("rtsp://c/d", {"username": 5, "password": "geheim"}, "username"),
        ("rtsp://c/d", {"username": "u", "password": 5}, "password"),
        ("synthetic", {"name": 5}, "name"),
        ("synthetic", {"settings": 5}, "settings"),
        ("synthetic", {"on_state": 5}, "on_state"),
    ],
)  # fmt: skip
def test_an_argument_that_does_not_fit_the_kind_is_refused(text: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        open_source(text, **options)
    assert caught.value.field == field
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("text", ["0", 0, "/dev/video0", "rtsp://u:geheim@cam/x", "RTSPS://cam", "gst:a", "csi:0"])
def test_without_opencv_what_needs_it_is_an_error_at_once_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, text: str | int
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(SourceError, match=r"pip install .*camera\]") as caught:
        open_source(text)
    assert "geheim" not in str(caught.value)


def test_without_opencv_an_http_camera_is_offline_for_that_reason_when_it_gives_something_else_than_jpeg(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    states: list[CameraState] = []
    with running_mjpeg_server() as server:
        server.kind, server.is_ending = "application/vnd.apple.mpegurl", True
        source = open_source(server.url, on_state=states.append)
        until_s = time.monotonic() + 10
        while not states:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        source.close()
    assert states[0].status == "offline"
    assert "pip install 'edge-vl[camera]'" in states[0].reason


@pytest.mark.parametrize("text", ["gst:a ! b", "csi:0"])
def test_an_opencv_without_gstreamer_is_told_at_once(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(opencv, "has_gstreamer", lambda cv2: False)
    with pytest.raises(SourceError, match="built with GStreamer"):
        open_source(text)


def test_without_picamera2_a_raspberry_pi_camera_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "picamera2", None)
    with pytest.raises(SourceError, match="python3-picamera2"):
        open_source("picamera:0")


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
