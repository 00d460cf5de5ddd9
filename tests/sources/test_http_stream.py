"""Cameras that send JPEG pictures over HTTP, against a real server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from edge_vl.backoff import Backoff
from edge_vl.errors import SourceError
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.http_stream import MjpegStream, open_http
from edge_vl.sources.opencv_capture import open_stream
from tests.sources.fake_capture import StateLog, until
from tests.sources.mjpeg_server import MjpegServer, jpeg, running_mjpeg_server

SETTINGS = CameraSettings(open_timeout_s=5, read_timeout_s=0.4, max_fps=None, backoff=Backoff(first_s=0.02, cap_s=0.05))


@pytest.fixture
def server() -> Iterator[MjpegServer]:
    with running_mjpeg_server() as server:
        yield server


def opened(url: str, settings: CameraSettings = SETTINGS) -> MjpegStream:
    stream = open_http(url, settings)
    assert stream is not None
    return stream


@pytest.mark.parametrize("is_measured", [True, False])
def test_every_picture_comes_once_and_in_order(server: MjpegServer, is_measured: bool) -> None:
    server.pictures, server.is_measured, server.is_ending = [jpeg(shade) for shade in (10, 100, 200)], is_measured, True
    stream = opened(server.url)
    shades = []
    while stream.grab():
        pixels = stream.retrieve()
        assert pixels.shape == (48, 64, 3)
        assert pixels.dtype == np.uint8
        shades.append(round(float(pixels[..., 0].mean()) / 10) * 10)
    stream.close()

    assert shades == [10, 100, 200]


def test_damaged_pictures_are_dropped_and_counted_and_the_stream_goes_on(server: MjpegServer) -> None:
    good = jpeg(50, (320, 240))
    cut = good[:-600]
    server.pictures = [good, cut, b"hello", b"", good[:20] + b"\0" * 500, good]
    server.interval_s = 0.02
    log = StateLog()
    with Camera(lambda: open_stream(server.url, SETTINGS), name="door", settings=SETTINGS, on_state=log) as camera:
        assert until(lambda: camera.state.num_frames >= 6)
        assert until(lambda: camera.state.num_kept == 2)
        state = camera.state
        frame = camera.wait_newer(4, 5) or camera.latest()

    assert len(good) > 1200
    assert (state.num_frames, state.num_bad, state.num_kept) == (6, 4, 2)
    assert frame is not None
    assert frame.index == 5
    assert log.statuses[0] == "online"


@pytest.mark.parametrize("scheme", ["Basic", "Digest"])
def test_user_name_and_password_are_given_in_both_ways(server: MjpegServer, scheme: str) -> None:
    server.scheme, server.pictures = scheme, [jpeg(10)]

    stream = opened(server.url_for("watcher:s3cret%2Fword"))

    assert stream.grab()
    stream.close()


@pytest.mark.parametrize("userinfo", ["", "watcher:wr0ng"])
def test_a_refused_password_is_told_without_showing_it(server: MjpegServer, userinfo: str) -> None:
    server.scheme = "Digest"
    url = server.url_for(userinfo) if userinfo else server.url

    with pytest.raises(SourceError, match="wants a user name and a password") as caught:
        open_http(url, SETTINGS)

    assert ("refuses the ones given" in str(caught.value)) == bool(userinfo)
    assert "wr0ng" not in str(caught.value)


def test_a_wrong_path_is_told(server: MjpegServer) -> None:
    with pytest.raises(SourceError, match="nothing at this path"):
        open_http(server.url + "x", SETTINGS)


@pytest.mark.parametrize(("kind", "what"), [("image/jpeg", "one picture"), ("text/html; charset=utf-8", "a page")])
def test_what_is_no_stream_is_told(server: MjpegServer, kind: str, what: str) -> None:
    server.kind = kind

    with pytest.raises(SourceError, match=f"gives {what}, not a stream"):
        open_http(server.url, SETTINGS)


def test_other_streams_are_left_to_ffmpeg(server: MjpegServer) -> None:
    server.kind = "application/vnd.apple.mpegurl"

    assert open_http(server.url, SETTINGS) is None


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        with pytest.raises(SourceError, match=r"did not open within 0\.4 s: it does not answer"):
            open_http(f"http://127.0.0.1:{silent.getsockname()[1]}/", SETTINGS)

    assert time.monotonic() - began_s < 4


def test_a_stream_that_stops_in_the_middle_of_a_picture_is_given_up_in_time(server: MjpegServer) -> None:
    server.pictures, server.extra_bytes = [jpeg(10)], b"\xff\xd8\xff half a picture"
    stream = opened(server.url)
    assert stream.grab()

    with pytest.raises(SourceError, match=r"gave nothing for 0\.4 s"):
        stream.grab()
    stream.close()


def test_a_picture_that_trickles_in_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(
                    b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace;boundary=--frame\r\n\r\n"
                    b"--frame\r\nContent-Length: 90000\r\n\r\n"
                )
                while not over.wait(0.05):
                    connection.sendall(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        stream = opened(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        with pytest.raises(SourceError, match="no whole frame within"):
            stream.grab()
        stream.close()
        over.set()
        thread.join(5)


def test_endless_bytes_without_a_mark_are_no_stream(monkeypatch: pytest.MonkeyPatch, server: MjpegServer) -> None:
    monkeypatch.setattr("edge_vl.sources.http_stream._MAX_PICTURE_BYTES", 10_000)
    server.is_measured, server.pictures = False, [b"x" * 100_000, b"x" * 100_000]
    stream = opened(server.url)

    with pytest.raises(SourceError, match="more than 10000 bytes"):
        stream.grab()
    stream.close()


def test_a_connection_that_ends_is_made_again(server: MjpegServer) -> None:
    server.pictures, server.is_ending = [jpeg(10)], True
    log = StateLog()
    with Camera(lambda: open_stream(server.url, SETTINGS), name="door", settings=SETTINGS, on_state=log) as camera:
        assert until(lambda: server.num_requests >= 3)
        assert until(lambda: camera.state.num_connections >= 3)

    assert log.statuses[:4] == ["online", "offline", "online", "offline"]
    assert log.states[1].reason == "it gives no more frames"
