"""A camera of the network kind (MJPEG over HTTP) that can be switched off, fall silent and break off."""

from __future__ import annotations

import contextlib
import io
import itertools
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from PIL import Image

from edge_vl.drawn_scene import draw_scene, random_scene

__all__ = ["FlappingCamera", "Mode"]

Mode = Literal["on", "off", "silent", "refusing"]

_BOUNDARY = "frame"
_NUM_SCENES = 8
_SIZE = (160, 120)


class FlappingCamera:
    """Sends small pictures, a few a second, to whoever connects.

    Attributes:
        port: where it listens, on the loopback interface.
        num_connections: accepted so far.
    """

    def __init__(
        self, *, fps: float = 5.0, picture_of: Callable[[int], bytes] | None = None, started_s: float | None = None
    ) -> None:
        """Switch it on.

        Args:
            fps: frames per second.
            picture_of: gives the JPEG of the frame of a number; None: a few scenes, again and again.
            started_s: `time.monotonic()` of frame 0; None: now. Frames are sent in order, none is left out, so one who
                does not take them off in time gets old ones. A new connection begins with the newest.
        """
        self._fps = fps
        pictures = [] if picture_of is not None else [_jpeg(seed) for seed in range(_NUM_SCENES)]
        self._picture_of = picture_of or (lambda number: pictures[number // 10 % _NUM_SCENES])
        self._started_s = time.monotonic() if started_s is None else started_s
        self._mode: Mode = "on"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.num_connections = 0
        self._thread = threading.Thread(target=self._accept, name="flapping camera", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of its pictures."""
        return f"http://127.0.0.1:{self.port}/stream.mjpg"

    @property
    def mode(self) -> Mode:
        """What it does."""
        return self._mode

    def switch(self, mode: Mode) -> None:
        """Change what it does.

        Args:
            mode: `on`; `off`: connections end in the middle of a picture, and new ones at once; `silent`: connections
                stay open, and nothing more comes; `refusing`: as `off`, but new ones are told 503.
        """
        with self._lock:
            self._mode = mode
            gone = [*self._open] if mode in ("off", "refusing") else []
        for connection in gone:
            _end(connection)

    def close(self) -> None:
        """Take it away."""
        self.switch("off")
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            if self._mode == "off":
                connection.close()
            else:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            self._send(connection)
        except OSError:
            pass  # the other side has gone
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _send(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        while b"\r\n\r\n" not in (request := connection.recv(65536)):
            if not request:
                return
        if self._mode == "refusing":
            connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        is_begun = False
        for number in itertools.count(int((time.monotonic() - self._started_s) * self._fps)):
            time.sleep(max(0.0, self._started_s + number / self._fps - time.monotonic()))
            while self._mode == "silent":
                connection.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        return
            if not is_begun:
                is_begun = True
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nCache-Control: no-cache\r\nConnection: close\r\n"
                    b"Content-Type: multipart/x-mixed-replace; boundary=" + _BOUNDARY.encode() + b"\r\n\r\n"
                )
            picture = self._picture_of(number)
            head = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
            connection.sendall(head.encode() + picture[: len(picture) // 2])
            if self._mode in ("off", "refusing"):
                return
            connection.sendall(picture[len(picture) // 2 :] + b"\r\n")


def _jpeg(seed: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(draw_scene(random_scene(seed), *_SIZE)).save(data, "JPEG", quality=90)
    return data.getvalue()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
