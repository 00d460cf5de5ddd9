"""Frames that a program pushes: a camera library's callback, a robot's topic, a simulator."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import RequestError
from edge_vl.frame import Frame
from edge_vl.pictures import load_picture
from edge_vl.sources.view import View

__all__ = ["PushedFrames"]

MAX_AHEAD_S = 1.0
"""How far in the future a frame may say that it was taken: two clocks read one after the other, no more."""


class PushedFrames:
    """A live source that a program feeds. The newest frame waits; no reader holds up the program or another reader.

    Any thread may push, and any number may read.
    """

    def __init__(self, name: str = "pushed", *, view: View | None = None) -> None:
        """Start empty.

        Args:
            name: what the frames' `source` says.
            view: what of each frame is kept, and which way is up; None: all of it as it is.
        """
        self._name = name
        self._view = View() if view is None else view
        self._condition = threading.Condition()
        self._latest: Frame | None = None
        self._num_frames = 0
        self._is_closed = False

    @property
    def name(self) -> str:
        """What `Frame.source` says."""
        return self._name

    @property
    def is_live(self) -> bool:
        """True: a frame not taken in time is lost."""
        return True

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    @property
    def num_frames(self) -> int:
        """Frames pushed so far."""
        return self._num_frames

    def push(self, pixels: NDArray[np.uint8], *, captured_s: float | None = None, bgr: bool = False) -> int:
        """Take a frame in the place of the one before. Copies the pixels: the caller may overwrite them at once.

        Args:
            pixels: uint8 (height, width, 3) or (height, width), as `edge_vl.pixels.array_pixels` describes.
            captured_s: `time.monotonic()` when it was taken; None: now.
            bgr: the colours come in OpenCV's order.

        Returns:
            Its index; -1 when it was passed over because this is closed: what feeds it may be a callback that comes
            once more after the end.

        Raises:
            ImageError: it is no picture.
            RequestError: the time makes no sense.
        """
        now_s, now_wall_s = time.monotonic(), time.time()
        if captured_s is None:
            captured_s = now_s
        is_number = isinstance(captured_s, (int, float)) and not isinstance(captured_s, bool)
        if not is_number or not 0 <= captured_s <= now_s + MAX_AHEAD_S:
            raise RequestError(
                f"captured_s is time.monotonic() at the moment the frame was taken, now at most {now_s:.3f}; "
                f"not {captured_s!r:.40} (time.time() is another clock)",
                field="captured_s",
            )
        kept = self._view.of(load_picture(pixels, bgr=bgr).pixels)
        age_s = max(0.0, now_s - captured_s)
        with self._condition:
            if self._is_closed:
                return -1
            index = self._num_frames
            self._num_frames += 1
            self._latest = Frame(kept, now_s - age_s, now_wall_s - age_s, self._name, index)
            self._condition.notify_all()
            return index

    def latest(self) -> Frame | None:
        """Return the newest frame, of any age; None before the first and after the end."""
        return self._latest

    def wait_newer(self, index: int, timeout_s: float) -> Frame | None:
        """Wait for a frame whose `index` is larger; -1 takes any. None when none came in time, or it was closed."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._is_closed or (self._latest is not None and self._latest.index > index),
                min(timeout_s, threading.TIMEOUT_MAX),
            )
            newest = self._latest
            return newest if newest is not None and newest.index > index else None

    def __iter__(self) -> Iterator[Frame]:
        """Yield the newest frame, again and again, each once; ends when it is closed."""
        index = -1
        while not self._is_closed:
            if (frame := self.wait_newer(index, threading.TIMEOUT_MAX)) is not None:
                index = frame.index
                yield frame

    def close(self) -> None:
        """Take no more frames; whoever waits gets the end."""
        with self._condition:
            self._is_closed = True
            self._latest = None
            self._condition.notify_all()
