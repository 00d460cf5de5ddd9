"""A recording as a source of frames."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import SourceError
from edge_vl.frame import Frame
from edge_vl.sources.opencv import import_opencv
from edge_vl.sources.opencv_capture import OpenCvCapture
from edge_vl.sources.view import View

__all__ = ["VideoFile"]

_log = logging.getLogger(__name__)

_USUAL_STEP_S = 1 / 25
_MAX_STEP_S = 60.0
"""Longest pause between two frames that is believed of a file's own times."""

_MAX_CATCH_UP_S = 0.5
"""How long late frames are passed over in a row; a machine too slow for the file gets it slowly, not never."""

_EXIT_TIMEOUT_S = 1.0
"""How long the end of the program waits for a frame that is being decoded."""

_COMPLETE_SHARE = 0.9
"""Share of the frames that the file's header promises, below which its end is told as a surprise."""


class VideoFile:
    """Yields the frames of a recording, upright as its metadata say.

    Paced, it plays in real time like a camera: a reader who comes late misses frames, and `Frame.captured_s` is the
    moment when the frame was due. Not paced, it yields every frame as fast as it is asked for.
    """

    def __init__(
        self, path: Path, *, name: str = "", paced: bool = True, loop: bool = False, view: View | None = None
    ) -> None:
        """Open the file, to see that it is a recording.

        Args:
            path: of the file.
            name: of the source; empty: the path.
            paced: play in real time.
            loop: begin again after the last frame.
            view: what of each frame is kept, and which way is up, after the file's own rotation; None: all of it.

        Raises:
            SourceError: it cannot be read or is no recording; OpenCV is missing.
        """
        self._path = path.absolute()
        self._name = name or str(path)
        self._paced = paced
        self._loop = loop
        self._view = View() if view is None else view
        self._closed = threading.Event()
        self._native = threading.Lock()  # held in every call of OpenCV
        self._num_bad = 0
        self._cv2 = import_opencv()
        self._opened: Any = self._open()
        # A call of OpenCV that returns on a daemon thread while Python shuts down would abort the process.
        weakref.finalize(self, _let_end, self._closed, self._native, os.getpid())

    @property
    def name(self) -> str:
        """The path, unless it was named otherwise."""
        return self._name

    @property
    def is_live(self) -> bool:
        """Whether it is paced: a frame not taken in time is lost."""
        return self._paced

    @property
    def num_bad(self) -> int:
        """Frames passed over so far because they could not be decoded."""
        return self._num_bad

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames; `Frame.index` counts those of the file, over all rounds.

        Raises:
            SourceError: it cannot be opened again, or nothing in it can be decoded.
        """
        index, start_s = 0, time.monotonic()
        asked_s = start_s
        while not self._closed.is_set():
            with self._native:
                capture, self._opened = self._opened or self._open(), None
                times = _Times(float(capture.get(self._cv2.CAP_PROP_FPS)))
                num_promised = int(capture.get(self._cv2.CAP_PROP_FRAME_COUNT))
            opened = OpenCvCapture(capture, label=self._name, read_timeout_s=math.inf)
            first, num_good = index, 0
            try:
                while not self._closed.is_set():
                    with self._native:
                        is_there = capture.grab()
                        told_s = float(capture.get(self._cv2.CAP_PROP_POS_MSEC)) / 1000
                    if not is_there:
                        break
                    due_s = start_s + times.next_s(told_s)
                    index += 1
                    if self._paced:
                        if self._closed.wait(max(0.0, due_s - time.monotonic())):
                            return
                        late_s = time.monotonic() - due_s
                        if late_s > times.step_s:
                            if time.monotonic() - asked_s < _MAX_CATCH_UP_S:
                                continue
                            start_s, due_s = start_s + late_s, due_s + late_s
                    try:
                        with self._native:
                            pixels = opened.retrieve()
                    except SourceError as error:
                        _log.debug("passed over: %s", error)
                        self._num_bad += 1
                        continue
                    num_good += 1
                    yield self._frame(pixels, index - 1, due_s)
                    asked_s = time.monotonic()
            except self._cv2.error as error:
                raise SourceError(f"{self._name} cannot be read any further: {error}") from error
            finally:
                if self._native.acquire(blocking=False):  # else the program ends, and this with it
                    capture.release()
                    self._native.release()
            self._check_end(index - first, num_good, num_promised)
            if not self._loop:
                return
            start_s += times.next_s(-1.0)

    def close(self) -> None:
        """End the iteration at once. From any thread."""
        self._closed.set()

    def _open(self) -> Any:
        capture = self._cv2.VideoCapture(str(self._path), self._cv2.CAP_FFMPEG)
        if not capture.isOpened():
            raise SourceError(
                f"{self._name} cannot be opened as a video: it is damaged, or of a kind unknown to OpenCV"
            )
        capture.set(self._cv2.CAP_PROP_ORIENTATION_AUTO, 1)
        return capture

    def _frame(self, pixels: NDArray[np.uint8], index: int, due_s: float) -> Frame:
        now_s, now_wall_s = time.monotonic(), time.time()
        captured_s = min(due_s, now_s) if self._paced else now_s
        return Frame(self._view.of(pixels), captured_s, now_wall_s - (now_s - captured_s), self._name, index)

    def _check_end(self, num_read: int, num_good: int, num_promised: int) -> None:
        if self._closed.is_set():
            return
        if num_read == 0 or (num_good == 0 and not self._paced):
            raise SourceError(f"{self._name}: no frame of it can be decoded; it is damaged")
        if num_read < num_promised * _COMPLETE_SHARE:
            _log.warning("%s ended after %d of %d frames; it may be cut short", self._name, num_read, num_promised)


def _let_end(closed: threading.Event, native: threading.Lock, process: int) -> None:
    """Wait for the call of OpenCV that runs, and let no other begin. Not in a fork, which has no thread that calls."""
    if os.getpid() != process:
        return
    closed.set()
    native.acquire(timeout=_EXIT_TIMEOUT_S)


class _Times:
    """Moments of the frames of one round, in seconds from its first; made up where the file's own make no sense."""

    def __init__(self, fps: float) -> None:
        self.step_s = 1 / fps if 0.1 <= fps <= 1000 else _USUAL_STEP_S
        self._first_told_s: float | None = None
        self._last_s = -self.step_s

    def next_s(self, told_s: float) -> float:
        """Return the moment of the next frame, about whose time the file says `told_s`; -1: nothing."""
        if self._first_told_s is None:
            self._first_told_s = told_s
        since_s = told_s - self._first_told_s
        is_plausible = self._last_s < since_s <= self._last_s + _MAX_STEP_S
        self._last_s = since_s if is_plausible else self._last_s + self.step_s
        return self._last_s
