"""Streams and devices through OpenCV, against a real RTSP server."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from edge_vl.backoff import Backoff
from edge_vl.errors import RequestError, SourceError
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.opencv import has_gstreamer, import_opencv
from edge_vl.sources.opencv_capture import DeviceFormat, StreamCapture, open_device, open_gstreamer, open_stream
from tests.mosquitto import free_port
from tests.rtsp_server import RtspServer, read_picture
from tests.sources.fake_capture import StateLog, until

SETTINGS = CameraSettings(open_timeout_s=8, read_timeout_s=0.8, max_fps=None, backoff=Backoff(first_s=0.05, cap_s=0.1))


def camera_of(url: str, log: StateLog | None = None, settings: CameraSettings = SETTINGS) -> Camera:
    return Camera(lambda: open_stream(url, settings), name="door", settings=settings, on_state=log)


def test_frames_of_an_rtsp_camera_are_of_now_from_the_first_on(rtsp_server: RtspServer) -> None:
    with camera_of(rtsp_server.url) as camera:
        ages: list[float] = []
        numbers: list[int] = []
        indices: list[int] = []
        index = -1
        while len(ages) < 30:
            frame = camera.wait_newer(index, 10)
            assert frame is not None
            made_s, number = read_picture(frame.pixels)
            ages.append(frame.captured_s - made_s)
            numbers.append(number)
            indices.append(frame.index)
            index = frame.index

    # What piles up while FFmpeg looks at the stream is a second old. Encoder and decoder hold back two frames.
    assert ages[0] < 0.75
    assert np.median(ages) < 0.5
    assert min(ages) > 0
    # A busy machine may pass over some, which are in no count.
    assert (np.diff(numbers) >= np.diff(indices)).all()
    assert np.median(np.diff(indices)) == 1


def test_colours_come_as_rgb_and_pixels_are_our_own(rtsp_server: RtspServer) -> None:
    capture = open_stream(rtsp_server.url, SETTINGS)
    try:
        assert capture.grab()
        first = capture.retrieve()
        kept = first.copy()
        assert capture.grab()
        second = capture.retrieve()
    finally:
        capture.close()

    assert first.shape == (240, 320, 3)
    assert first.dtype == np.uint8
    assert first.flags.c_contiguous
    assert np.array_equal(first, kept), "the next frame has memory of its own"
    assert not np.array_equal(first, second)


def test_blue_is_the_last_channel() -> None:
    from edge_vl.sources.opencv_capture import OpenCvCapture

    class Blue:
        def grab(self) -> bool:
            return True

        def retrieve(self) -> tuple[bool, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
            pixels = np.zeros((2, 2, 3), np.uint8)
            pixels[..., 0] = 255  # BGR
            return True, pixels

    capture = OpenCvCapture(Blue(), label="a camera", read_timeout_s=1)

    assert capture.retrieve()[0, 0].tolist() == [0, 0, 255]


def test_a_server_that_stops_in_the_middle_makes_it_offline_and_it_comes_back(rtsp_server: RtspServer) -> None:
    log = StateLog()
    with camera_of(rtsp_server.url, log) as camera:
        assert camera.wait_newer(-1, 10) is not None
        rtsp_server.freeze()
        frozen_s = time.monotonic()
        assert until(lambda: camera.state.status == "offline")
        assert time.monotonic() - frozen_s < 3
        assert camera.latest() is None
        assert "gave nothing" in camera.state.reason or "hangs" in camera.state.reason
        last = camera.state.num_frames

        rtsp_server.thaw()

        frame = camera.wait_newer(last - 1, 15)
        assert frame is not None
        assert frame.captured_s - read_picture(frame.pixels)[0] < 0.5, "what waited in the frozen server is passed over"
    assert log.statuses == ["online", "offline", "online", "closed"]


def test_it_comes_back_after_the_server_was_started_again(rtsp_server: RtspServer) -> None:
    log = StateLog()
    with camera_of(rtsp_server.url, log) as camera:
        assert camera.wait_newer(-1, 10) is not None
        rtsp_server.stop()
        assert until(lambda: camera.state.num_failures >= 2)
        assert "nobody listens on port" in camera.state.reason
        last = camera.state.num_frames

        rtsp_server.start()

        assert camera.wait_newer(last - 1, 15) is not None
    assert log.statuses[:3] == ["online", "offline", "online"]


def test_a_server_that_takes_the_connection_and_never_answers_is_given_up_in_time() -> None:
    settings = CameraSettings(open_timeout_s=0.6, read_timeout_s=0.5, backoff=Backoff(first_s=30))
    log = StateLog()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        with camera_of(f"rtsp://127.0.0.1:{silent.getsockname()[1]}/cam", log, settings) as camera:
            assert camera.wait_newer(-1, 0.1) is None, "nobody waits longer than they want to"
            assert until(lambda: camera.state.status == "offline", 10)
            took_s = time.monotonic() - began_s
            reason = camera.state.reason

    assert took_s < 4
    assert "does not answer" in reason or "hangs" in reason


def test_a_camera_that_is_missing_two_hundred_times_costs_no_threads_descriptors_or_memory() -> None:
    settings = CameraSettings(open_timeout_s=1, read_timeout_s=1, backoff=Backoff(first_s=0.001, cap_s=0.001))
    process = psutil.Process()
    opened = 0

    def open_missing(url: str) -> Callable[[], object]:
        def open_one() -> object:
            nonlocal opened
            opened += 1
            return open_stream(url, settings)

        return open_one

    with RefusingRtspServer() as server:
        opener = open_missing(f"rtsp://127.0.0.1:{server.port}/cam")
        with Camera(opener, name="door", settings=settings) as camera:  # type: ignore[arg-type]
            assert until(lambda: opened >= 50, 20)
            gc.collect()
            threads, files, memory = process.num_threads(), process.num_fds(), process.memory_info().rss
            assert until(lambda: opened >= 250, 40)
            gc.collect()

            assert "no stream at this path" in camera.state.reason
            assert process.num_threads() <= threads + 1, "the server's own may be at work"
            assert process.num_fds() <= files + 4, "connections that are open just now"
            assert process.memory_info().rss - memory < 8 << 20


class RefusingRtspServer:
    """Answers 404 to everybody who speaks RTSP, one after the other."""

    def __enter__(self) -> RefusingRtspServer:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                try:
                    while request := connection.recv(4096):
                        sequence = next(
                            (line for line in request.split(b"\r\n") if line.lower().startswith(b"cseq")), b"CSeq: 1"
                        )
                        status = b"200 OK" if request.startswith(b"OPTIONS") else b"404 Not Found"
                        connection.sendall(b"RTSP/1.0 " + status + b"\r\n" + sequence + b"\r\n\r\n")
                        if not request.startswith(b"OPTIONS"):
                            break
                except OSError:
                    pass


def test_closing_while_a_frame_is_waited_for_does_not_block(rtsp_server: RtspServer) -> None:
    settings = CameraSettings(open_timeout_s=8, read_timeout_s=20, backoff=Backoff(first_s=0.05))
    camera = camera_of(rtsp_server.url, settings=settings)
    assert camera.wait_newer(-1, 10) is not None
    rtsp_server.freeze()
    time.sleep(0.1)
    began_s = time.monotonic()

    camera.close()

    assert time.monotonic() - began_s < 3
    rtsp_server.thaw()  # so that the call returns


def test_a_password_opens_a_guarded_camera_and_is_shown_nowhere(
    guarded_rtsp_server: RtspServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = guarded_rtsp_server.url.replace("://", "://watcher:s3cret%2Fword@")
    with caplog.at_level("DEBUG"), Camera(lambda: open_stream(url, SETTINGS), name=url, settings=SETTINGS) as camera:
        frame = camera.wait_newer(-1, 10)
        assert frame is not None
        guarded_rtsp_server.stop()
        assert until(lambda: camera.state.num_failures >= 2)
        state = camera.state

    for text in (repr(state), repr(frame.source), caplog.text, camera.name):
        assert "s3cret" not in text
    assert "***@127.0.0.1" in state.reason


def test_a_refused_password_is_told_without_showing_it(guarded_rtsp_server: RtspServer) -> None:
    with pytest.raises(SourceError, match="wants a user name and a password; the ones given may be wrong") as caught:
        open_stream(guarded_rtsp_server.url.replace("://", "://watcher:wr0ng@"), SETTINGS)
    assert "wr0ng" not in str(caught.value)

    with pytest.raises(SourceError, match=r"wants a user name and a password$"):
        open_stream(guarded_rtsp_server.url, SETTINGS)


def test_a_wrong_path_is_told(rtsp_server: RtspServer) -> None:
    with pytest.raises(SourceError, match="no stream at this path"):
        open_stream(f"{rtsp_server.url}/other", SETTINGS)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("rtsp://me:s3cret@host.invalid/", "there is no host 'host.invalid'"),
        ("rtsp://me:s3cret@127.0.0.1:99999/", "a port that is no number up to 65535"),
        ("rtsp:///path", "there is no host"),
    ],
)
def test_wrong_addresses_are_told(url: str, reason: str) -> None:
    with pytest.raises((SourceError, RequestError), match=reason) as caught:
        open_stream(url, SETTINGS)

    assert "s3cret" not in str(caught.value)


_LOUD = """
import logging, sys, time
logging.basicConfig(level=logging.DEBUG)
from edge_vl.backoff import Backoff
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.opencv_capture import open_stream
settings = CameraSettings(open_timeout_s=3, read_timeout_s=1, backoff=Backoff(0.05, 0.05))
cameras = [Camera(lambda url=url: open_stream(url, settings), name=url, settings=settings) for url in sys.argv[1:]]
until_s = time.monotonic() + 20
while any(camera.state.num_failures < 2 for camera in cameras) and time.monotonic() < until_s:
    time.sleep(0.02)
for camera in cameras:
    print(camera.state)
"""


class BrokenPlaylist(BaseHTTPRequestHandler):
    """Gives a playlist of a stream whose parts are not there: FFmpeg prints their whole addresses."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path != "/live":
            self.send_error(404)
            return
        playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\npart.ts\n#EXT-X-ENDLIST\n"
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.apple.mpegurl")
        self.send_header("Content-Length", str(len(playlist)))
        self.end_headers()
        self.wfile.write(playlist)


def fail_with_passwords(urls: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENCV_")} | variables
    command = [sys.executable, "-c", _LOUD, *urls]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)


def test_no_password_reaches_standard_error_past_the_loggers(guarded_rtsp_server: RtspServer) -> None:
    web = ThreadingHTTPServer(("127.0.0.1", 0), BrokenPlaylist)
    web.daemon_threads = False
    thread = threading.Thread(target=web.serve_forever, args=(0.02,))
    thread.start()
    playlist = f"http://watcher:s3cretE@127.0.0.1:{web.server_address[1]}/live"
    port = guarded_rtsp_server.port
    try:
        with RefusingRtspServer() as refusing:
            urls = [
                f"rtsp://watcher:s3cretA@127.0.0.1:{port}/cam",
                f"rtsp://watcher:s3cretB@127.0.0.1:{refusing.port}/cam",
                f"rtsp://watcher:s3cretC@127.0.0.1:{free_port()}/cam",
                f"http://watcher:s3cretD@127.0.0.1:{port}/cam",
                playlist,
            ]
            done = fail_with_passwords(urls)
        loud = fail_with_passwords([playlist], OPENCV_FFMPEG_LOGLEVEL="16")
    finally:
        web.shutdown()
        web.server_close()
        thread.join(5)

    assert done.stdout.count("offline") == 5, "every one has failed"
    assert "s3cret" not in done.stdout + done.stderr
    assert "***@127.0.0.1" in done.stderr, "the log says which, masked"
    assert "s3cretE" in loud.stdout + loud.stderr, "which FFmpeg prints when the user has asked for it"


def test_a_missing_opencv_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)

    with pytest.raises(SourceError, match=r"pip install 'edge-vl\[camera\]'"):
        open_device(0, SETTINGS)


def test_a_device_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no .*video77; `edge-vl cameras` lists"):
        open_device(str(tmp_path / "video77"), SETTINGS)
    with pytest.raises(SourceError, match="there is no /dev/video789"):
        open_device(789, SETTINGS)


def test_a_file_that_is_no_device_is_told(tmp_path: Path) -> None:
    file = tmp_path / "video0"
    file.write_bytes(b"nothing")

    with pytest.raises(SourceError, match="it is no camera"):
        open_device(str(file), SETTINGS)


def test_without_gstreamer_a_pipeline_says_which_opencv_has_it() -> None:
    if has_gstreamer(import_opencv()):
        pytest.skip("this OpenCV is built with GStreamer")

    with pytest.raises(SourceError, match="apt-get install python3-opencv") as caught:
        open_gstreamer("rtspsrc location=rtsp://me:s3cret@host/ ! fakesink", SETTINGS)

    assert "s3cret" not in str(caught.value)


def test_gstreamer_is_known_by_what_opencv_was_built_with() -> None:
    class Built:
        def __init__(self, line: str) -> None:
            self._line = line

        def getBuildInformation(self) -> str:
            return f"  Video I/O:\n    FFMPEG:    YES\n{self._line}\n"

    assert has_gstreamer(Built("    GStreamer:                   YES (1.22.0)"))
    assert not has_gstreamer(Built("    GStreamer:                   NO"))
    assert not has_gstreamer(Built(""))


@pytest.mark.parametrize(("version", "has_deadlines"), [("4.6.0", False), ("4.10.0-dev", True), ("5.0.0", True)])
def test_pipelines_have_deadlines_where_opencv_knows_them_and_give_the_newest_frame(
    monkeypatch: pytest.MonkeyPatch, version: str, has_deadlines: bool
) -> None:
    asked: list[tuple[object, ...]] = []

    class Capture:
        def __init__(self, *arguments: object) -> None:
            asked.append(arguments)

        def isOpened(self) -> bool:
            return True

    built = SimpleNamespace(
        __version__=version,
        getBuildInformation=lambda: "    GStreamer:                   YES (1.22.0)\n",
        VideoCapture=Capture,
        CAP_GSTREAMER=1800,
        CAP_PROP_OPEN_TIMEOUT_MSEC=53,
        CAP_PROP_READ_TIMEOUT_MSEC=54,
    )
    monkeypatch.setattr("edge_vl.sources.opencv_capture.import_opencv", lambda: built)

    open_gstreamer("videotestsrc", SETTINGS)
    open_gstreamer("videotestsrc ! appsink name=mine", SETTINGS)

    [(pipeline, backend, *options), (own, *_)] = asked
    assert backend == 1800
    assert options == ([[53, 8000, 54, 800]] if has_deadlines else [])
    assert str(pipeline).endswith("video/x-raw,format=BGR ! appsink max-buffers=1 drop=true sync=false")
    assert own == "videotestsrc ! appsink name=mine"


def test_a_program_that_takes_long_for_each_frame_still_gets_frames_of_now(rtsp_server: RtspServer) -> None:
    capture = open_stream(rtsp_server.url, SETTINGS)
    ages, numbers = [], []
    try:
        for _ in range(25):
            assert capture.grab()
            made_s, number = read_picture(capture.retrieve())
            ages.append(time.monotonic() - made_s)
            numbers.append(number)
            time.sleep(0.1)  # three frames come meanwhile
    finally:
        capture.close()

    assert max(ages) < 1.2, "half a second, what encoder and decoder hold back, and a slow machine"
    assert numbers[-1] - numbers[0] > 40, "so frames were passed over: 24 steps of one would be a growing delay"


@pytest.mark.parametrize(
    ("wish", "asked"),
    [
        (None, {6: "MJPG", 38: 1}),
        (DeviceFormat(1280, 720, 30), {6: "MJPG", 3: 1280, 4: 720, 5: 30, 38: 1}),
        (DeviceFormat(is_jpeg=False), {38: 1}),
    ],
)
def test_a_device_is_asked_for_what_is_wished_and_for_one_buffer(
    monkeypatch: pytest.MonkeyPatch, wish: DeviceFormat | None, asked: dict[int, object]
) -> None:
    cv2 = import_opencv()
    sets: dict[int, object] = {}

    class Capture:
        def __init__(self, *arguments: object) -> None:
            assert arguments == ("/dev/video0", cv2.CAP_V4L2 if sys.platform == "linux" else cv2.CAP_ANY)

        def isOpened(self) -> bool:
            return True

        def set(self, key: int, value: float) -> None:
            is_code = key == cv2.CAP_PROP_FOURCC
            sets[key] = int(value).to_bytes(4, "little").decode() if is_code else value

        def release(self) -> None:
            sets[-1] = "released"

    monkeypatch.setattr(cv2, "VideoCapture", Capture)

    open_device("/dev/video0", SETTINGS, wish).close()

    assert sets == asked | {-1: "released"}


def test_a_stream_that_cannot_be_decoded_as_fast_as_it_comes_is_told() -> None:
    class Slow:
        """Gives frames without being waited for, and hardly any time lies between them by the camera's clock."""

        def __init__(self) -> None:
            self.number = 0

        def grab(self) -> bool:
            self.number += 1
            return True

        def get(self, key: int) -> float:
            is_rate = key == import_opencv().CAP_PROP_FPS
            return 30.0 if is_rate else self.number / 1e6

    capture = StreamCapture(Slow(), label="a camera", read_timeout_s=0.2, opening_s=0.0)

    with pytest.raises(SourceError, match="a camera cannot be decoded as fast as it comes; take a smaller one"):
        all(capture.grab() for _ in range(100_000_000))


_LEFT_OPEN = """
import sys
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.opencv_capture import open_stream
settings = CameraSettings(open_timeout_s=8, read_timeout_s=3)
cameras = [Camera(lambda: open_stream(sys.argv[1], settings), name="door", settings=settings) for _ in range(2)]
for camera in cameras:
    assert camera.wait_newer(-1, 20) is not None
print("leaving")
"""


def test_a_program_that_ends_without_closing_its_cameras_does_not_abort(rtsp_server: RtspServer) -> None:
    command = [sys.executable, "-c", _LEFT_OPEN, rtsp_server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
