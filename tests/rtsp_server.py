"""A real RTSP server of a test's own, on the loopback interface: started, frozen, thawed, stopped, started again.

It is GStreamer's, run by the system's Python, which has its bindings. Each picture tells its number and when it was
made.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.mosquitto import free_port

__all__ = ["RtspServer", "read_picture", "running_rtsp_server", "why_no_rtsp_server"]

_PYTHON = "/usr/bin/python3"
_SCRIPT = Path(__file__).with_name("rtsp_server_script.py")
_PROBE = (
    "import gi; gi.require_version('Gst', '1.0'); gi.require_version('GstApp', '1.0'); "
    "gi.require_version('GstRtspServer', '1.0'); from gi.repository import Gst, GstApp, GstRtspServer; Gst.init(None); "
    "missing = [name for name in ('appsrc', 'x264enc', 'rtph264pay') if not Gst.ElementFactory.find(name)]; "
    "raise SystemExit(f'GStreamer has no {missing}' if missing else 0)"
)
_PACKAGES = (
    "apt-get install python3-gi gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-base gstreamer1.0-plugins-good "
    "gstreamer1.0-plugins-ugly"
)
_NUM_BITS = 32


@functools.cache
def why_no_rtsp_server() -> str:
    """Say why there can be no server here; empty when there can."""
    if sys.platform != "linux":
        return "the RTSP server is run on Linux only"
    try:
        probe = subprocess.run([_PYTHON, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return f"{_PYTHON}: {error}; {_PACKAGES}"
    if probe.returncode:
        return f"{(probe.stderr.strip() or 'no bindings').splitlines()[-1]}; {_PACKAGES}"
    return ""


class RtspServer:
    """One server.

    Attributes:
        port: where it listens.
        url: of its stream, without user name and password.
    """

    def __init__(
        self,
        folder: Path,
        *,
        user: str | None = None,
        password: str | None = None,
        fps: int = 30,
        size: tuple[int, int] = (320, 240),
    ) -> None:
        """Choose a port.

        Args:
            folder: for its log.
            user: who may look; None: everybody.
            password: likewise.
            fps: pictures per second.
            size: width, a multiple of 32, and height in pixels.
        """
        self.port = free_port()
        self.url = f"rtsp://127.0.0.1:{self.port}/cam"
        self._log = folder / "rtsp_server.log"
        self._arguments = [str(self.port), user or "-", password or "-", str(fps), f"{size[0]}x{size[1]}"]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [_PYTHON, str(_SCRIPT), *self._arguments], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise AssertionError(f"the RTSP server did not start:\n{self._log.read_text(errors='replace')}")

    def stop(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def freeze(self) -> None:
        """Let it do nothing any more, with all its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running_rtsp_server(folder: Path, *, user: str | None = None, password: str | None = None) -> Iterator[RtspServer]:
    """Run one for the body."""
    server = RtspServer(folder, user=user, password=password)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def read_picture(pixels: NDArray[np.uint8]) -> tuple[float, int]:
    """Read what a picture says.

    Args:
        pixels: uint8 (height, width, 3), RGB.

    Returns:
        When it was made, on the monotonic clock that all processes of a machine share; and its number.
    """
    height, width = pixels.shape[:2]
    columns = (np.arange(_NUM_BITS) * 2 + 1) * width // (2 * _NUM_BITS)
    numbers = [
        int("".join("1" if value > 128 else "0" for value in pixels[row, columns].mean(axis=1)), 2)
        for row in (height // 4, height * 3 // 4)
    ]
    return numbers[0] / 1000, numbers[1]
