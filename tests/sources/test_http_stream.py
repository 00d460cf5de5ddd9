"""Cameras that send JPEG pictures over HTTP, against a real server."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from edge_vl.backoff import Backoff
from edge_vl.errors import SourceError
from edge_vl.sources.address import read_address
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.http_stream import MjpegStream, open_http
from edge_vl.sources.opencv_capture import open_stream
from tests.sources.fake_capture import StateLog, until
from tests.sources.mjpeg_server import MjpegServer, jpeg, running_mjpeg_server

SETTINGS = CameraSettings(open_timeout_s=5, read_timeout_s=0.4, max_fps=None, backoff=Backoff(first_s=0.02, cap_s=0.05))
HASTY = CameraSettings(open_timeout_s=0.4, read_timeout_s=0.4)


@pytest.fixture
def server() -> Iterator[MjpegServer]:
    with running_mjpeg_server() as server:
        yield server


def opened(url: str, settings: CameraSettings = SETTINGS) -> MjpegStream:
    stream = open_http(read_address(url), settings)
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
        open_http(read_address(url), SETTINGS)

    assert ("refuses the ones given" in str(caught.value)) == bool(userinfo)
    assert "wr0ng" not in str(caught.value)


def test_a_wrong_path_is_told(server: MjpegServer) -> None:
    with pytest.raises(SourceError, match="nothing at this path"):
        open_http(read_address(server.url + "x"), SETTINGS)


@pytest.mark.parametrize(("kind", "what"), [("image/jpeg", "one picture"), ("text/html; charset=utf-8", "a page")])
def test_what_is_no_stream_is_told(server: MjpegServer, kind: str, what: str) -> None:
    server.kind = kind

    with pytest.raises(SourceError, match=f"gives {what}, not a stream"):
        open_http(read_address(server.url), SETTINGS)


def test_other_streams_are_left_to_ffmpeg(server: MjpegServer) -> None:
    server.kind = "application/vnd.apple.mpegurl"

    assert open_http(read_address(server.url), SETTINGS) is None


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        with pytest.raises(SourceError, match=r"did not open within 0\.4 s: it does not answer"):
            open_http(read_address(f"http://127.0.0.1:{silent.getsockname()[1]}/"), HASTY)

    assert time.monotonic() - began_s < 4


def test_a_stream_that_pauses_longer_than_the_timeout_is_told_what_to_do(server: MjpegServer) -> None:
    server.pictures = [jpeg(10)]
    stream = opened(server.url)
    assert stream.grab()

    with pytest.raises(SourceError, match=r"gave nothing for 0\.4 s; a camera that is slower needs .*--read-timeout-s"):
        stream.grab()
    stream.close()


def test_a_stream_that_stops_in_the_middle_of_a_picture_is_given_up_in_time(server: MjpegServer) -> None:
    server.pictures, server.extra_bytes = [jpeg(10)], b"\xff\xd8\xff half a picture"
    stream = opened(server.url)
    assert stream.grab()

    with pytest.raises(SourceError, match=r"gave no whole frame within 0\.4 s; a camera that is slower needs a longer"):
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


class RawServer:
    """Answers each connection with what a test wants, byte by byte."""

    def __init__(self, serve: Callable[[socket.socket, int], object]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.requests: list[bytes] = []
        self.over = threading.Event()
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/video"

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                thread = threading.Thread(target=self._answer, args=(connection, len(self._threads)))
                self._threads.append(thread)
                thread.start()

    def _answer(self, connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError):
            self.requests.append(connection.recv(4096))
            self._serve(connection, number)


def test_heads_that_trickle_in_are_given_up_in_time_and_nothing_is_left_behind() -> None:
    picture = jpeg(10)

    def serve(connection: socket.socket, number: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while number < 3:  # more than the one call that a camera may leave behind
            connection.sendall(b"X")
            if raw.over.wait(0.02):
                return
        connection.sendall(b"Content-Type: multipart/x-mixed-replace;boundary=frame\r\n\r\n")
        while not raw.over.wait(0.02):
            connection.sendall(f"--frame\r\nContent-Length: {len(picture)}\r\n\r\n".encode() + picture + b"\r\n")

    log = StateLog()
    settings = CameraSettings(open_timeout_s=0.3, read_timeout_s=2, backoff=SETTINGS.backoff)
    with (
        RawServer(serve) as raw,
        Camera(lambda: open_stream(raw.url, settings), name="door", settings=settings, on_state=log) as camera,
    ):
        assert until(lambda: camera.state.status == "online", 8)
        assert camera.state.num_abandoned == 0
        assert "did not open within 0.3 s: it does not answer" in log.states[0].reason


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"\x1b]0;PWNED\x07\x1b[2J\r\n", "does not speak HTTP"),
        (b"SSH-2.0\r\n", "does not speak HTTP"),
        (b"", "127.0.0.1 hung up without an answer"),
        (b"HTTP/1.1 302 x\r\nLocation: ftp://127.0.0.1:9/x\r\n\r\n", "neither http:// nor https://"),
        (b"HTTP/1.1 302 x\r\nLocation: file:///etc/passwd\r\n\r\n", "another address that makes no sense"),
        (b"HTTP/1.1 302 x\r\nLocation: http://a:geheim#@h/\r\n\r\n", "another address that makes no sense"),
        (b"HTTP/1.1 302 x\r\nLocation: /again\r\n\r\n", "from one address to the next"),
        (b"HTTP/1.1 401 x\r\nWWW-Authenticate: Digest realm=\r\n\r\n", "in a way that is not understood"),
        (b"HTTP/1.1 401 x\r\nWWW-Authenticate: Digest\r\n\r\n", "in a way that is not understood"),
        (b"HTTP/1.1 204 x\r\n\r\n", "the camera answers 204"),
        (b"HTTP/1.1 500 \x1b[31mx\r\n\r\n", "the camera answers 500"),
    ],
)
def test_an_odd_answer_is_told_in_words_of_ours(reply: bytes, reason: str) -> None:
    with (
        RawServer(lambda connection, _: connection.sendall(reply)) as server,
        pytest.raises(SourceError, match=re.escape(reason)) as caught,
    ):
        open_http(read_address(server.url.replace("://", "://watcher:geheim@")), SETTINGS)
    words = str(caught.value)
    assert words.startswith("http://***@127.0.0.1:")
    assert words.isprintable()
    assert "geheim" not in words


def test_a_redirection_is_followed_and_another_host_is_not_told_the_password(server: MjpegServer) -> None:
    server.scheme, server.pictures = "Basic", [jpeg(10)]
    here = server.url.replace("127.0.0.1", "localhost")
    with RawServer(
        lambda connection, _: connection.sendall(f"HTTP/1.1 302 x\r\nLocation: {here}\r\n\r\n".encode())
    ) as raw:
        with pytest.raises(SourceError, match="wants a user name and a password"):
            open_http(read_address(raw.url.replace("://", "://watcher:s3cret%2Fword@")), SETTINGS)
        same = read_address(raw.url.replace("://", "://watcher:s3cret%2Fword@").replace("127.0.0.1", "localhost"))
        stream = open_http(same, SETTINGS)
    assert stream is not None
    assert stream.grab()
    stream.close()
