"""A camera that sends JPEG pictures over HTTP: a real server, whose every byte a test decides."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

__all__ = ["MjpegServer", "jpeg", "running_mjpeg_server"]

_REALM, _NONCE = "camera", "0123456789abcdef"


def jpeg(shade: int, size: tuple[int, int] = (64, 48)) -> bytes:
    """Return a picture of one shade of red, a bit of noise in it so that it has some length."""
    noise = Image.effect_noise(size, 40)
    picture = Image.merge("RGB", (Image.new("L", size, shade), noise, Image.new("L", size, 0)))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=90)
    return out.getvalue()


class MjpegServer(ThreadingHTTPServer):
    """One camera.

    Attributes:
        pictures: sent one after the other, then no more; bytes of any kind.
        interval_s: between them.
        is_measured: each part says its length.
        is_ending: hang up after the last; otherwise stay silent.
        extra_bytes: sent after the last picture's head, as the beginning of a picture that never ends.
        kind: the answer's type.
        scheme: `Basic` or `Digest`, or empty: everybody may look.
        num_requests: that were answered with 200.
    """

    daemon_threads = False  # closing the server waits for them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pictures: list[bytes] = []
        self.interval_s = 0.0
        self.is_measured = True
        self.is_ending = False
        self.extra_bytes = b""
        self.kind = "multipart/x-mixed-replace; boundary=frame"
        self.scheme = ""
        self.num_requests = 0
        self.over = threading.Event()

    @property
    def url(self) -> str:
        """Of the stream."""
        return f"http://127.0.0.1:{self.server_address[1]}/video"

    def url_for(self, userinfo: str) -> str:
        """Of the stream, with user name and password."""
        return self.url.replace("://", f"://{userinfo}@")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients hang up when they like."""


@contextlib.contextmanager
def running_mjpeg_server() -> Iterator[MjpegServer]:
    """Run one for the body."""
    server = MjpegServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    server: MjpegServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        server = self.server
        if server.scheme and not self._is_allowed():
            self.send_response(401)
            challenge = {"Basic": f'Basic realm="{_REALM}"', "Digest": f'Digest realm="{_REALM}", nonce="{_NONCE}"'}
            self.send_header("WWW-Authenticate", challenge[server.scheme])
            self.end_headers()
            return
        if self.path != "/video":
            self.send_error(404)
            return
        server.num_requests += 1
        self.send_response(200)
        self.send_header("Content-Type", server.kind)
        self.end_headers()
        self.wfile.write(b"a line that says nothing\r\n")
        for picture in list(server.pictures):
            length = f"Content-Length: {len(picture)}\r\n" if server.is_measured else ""
            self.wfile.write(f"--frame\r\nContent-Type: image/jpeg\r\n{length}\r\n".encode() + picture + b"\r\n")
            server.over.wait(server.interval_s)
        if server.is_ending:
            self.wfile.write(b"--frame--\r\n")
            return
        if server.extra_bytes:
            self.wfile.write(b"--frame\r\nContent-Length: 9999\r\n\r\n" + server.extra_bytes)
        server.over.wait(30)

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        if self.server.scheme == "Basic":
            return given == "Basic " + base64.b64encode(b"watcher:s3cret/word").decode()

        def md5(text: str) -> str:
            return hashlib.md5(text.encode()).hexdigest()

        secret, request = md5(f"watcher:{_REALM}:s3cret/word"), md5("GET:/video")
        return f'response="{md5(f"{secret}:{_NONCE}:{request}")}"' in given
