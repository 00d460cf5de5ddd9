"""A camera whose every move a test decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import SourceError
from edge_vl.sources.camera_state import CameraState

__all__ = ["FakeCamera", "FakeCapture", "StateLog", "until"]


def until(is_so: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Wait until something is so, at most so long; say whether it is."""
    until_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.002)
    return True


class StateLog:
    """What `on_state` was told."""

    def __init__(self) -> None:
        self.states: list[CameraState] = []

    def __call__(self, state: CameraState) -> None:
        """Keep it."""
        self.states.append(state)

    @property
    def statuses(self) -> list[str]:
        """The words alone."""
        return [state.status for state in self.states]


class FakeCamera:
    """Opens captures, gives frames when told to, fails and hangs when told to.

    Attributes:
        interval_s: between frames; None: one frame for each `give`.
        num_open: captures that are open.
        num_opened: attempts so far.
        open_error: raised by each attempt while it is set.
        retrieve_error: raised by each `retrieve` while it is set.
        opening: an attempt waits for it.
        grabbing: `grab` waits for it.
        closing: `close` waits for it.
        bad: numbers of frames that cannot be decoded.
    """

    def __init__(self, *, interval_s: float | None = None, size: tuple[int, int] = (8, 6)) -> None:
        self.interval_s = interval_s
        self.size = size
        self.num_open = 0
        self.max_open = 0
        self.num_opened = 0
        self.num_retrieved = 0
        self.open_error: BaseException | None = None
        self.retrieve_error: BaseException | None = None
        self.grab_timeout_s = 5.0
        self.opening = threading.Event()
        self.opening.set()
        self.grabbing = threading.Event()
        self.grabbing.set()
        self.closing = threading.Event()
        self.closing.set()
        self.bad: set[int] = set()
        self.number = -1
        self.ready = threading.Semaphore(0)

    def give(self, count: int = 1) -> None:
        """Let so many frames come."""
        self.ready.release(count)

    def open(self) -> FakeCapture:
        """Open a capture, as `OpenCapture` does."""
        self.num_opened += 1
        self.opening.wait()
        if self.open_error is not None:
            raise self.open_error.with_traceback(None)  # or it would keep all that raised it before
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        return FakeCapture(self)


class FakeCapture:
    """One connection to a fake camera."""

    def __init__(self, camera: FakeCamera) -> None:
        self._camera = camera

    def grab(self) -> bool:
        camera = self._camera
        if camera.interval_s is not None:
            time.sleep(camera.interval_s)
        elif not camera.ready.acquire(timeout=camera.grab_timeout_s):
            raise SourceError("rtsp://me:hidden@host/ gave nothing")
        camera.grabbing.wait()
        camera.number += 1
        return True

    def retrieve(self) -> NDArray[np.uint8]:
        camera = self._camera
        camera.num_retrieved += 1
        if camera.retrieve_error is not None:
            raise camera.retrieve_error.with_traceback(None)
        if camera.number in camera.bad:
            raise SourceError("damaged")
        width, height = camera.size
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[0, 0] = camera.number % 256
        return pixels

    def close(self) -> None:
        self._camera.closing.wait()
        self._camera.num_open -= 1
