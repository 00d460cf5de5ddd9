"""Which frames show that something has changed. Decides by pictures and their capture times alone."""

from __future__ import annotations

import math
import threading

import numpy as np
from numpy.typing import NDArray

from edge_vl.frame import Frame
from edge_vl.option_checks import require_number

__all__ = ["MotionGate"]

_NUM_CELLS = 64
"""Cells along the longer side of the small picture that frames are compared in."""

_MIN_CELL_PX, _MIN_NUM_CELLS = 4, 16
"""Pixels along the side of a cell, where that leaves so many cells: the mean of fewer pixels is noisy."""

_SAMPLES = 8
"""Pixels of a cell that are looked at, each way, at most."""

_MIN_CHANGE = 10.0
_NOISE_FACTOR = 5.0
_MAX_NOISE = 8.0
_MAX_SHIFT = 20.0
_MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

_QUIET_FOLLOW_S = 2.0
_CHANGED_FOLLOW_S = 10.0

Cells = NDArray[np.float32]


class MotionGate:
    """Lets a frame pass when enough of the picture differs from a background that follows slowly.

    The background follows what does not change within two seconds and what does within ten, so that dusk, clouds and
    a parked car open it no more, or not for long. A change of the light all over the picture is taken out before the
    comparison, up to 20 of 255 levels: the rest is a lamp that was switched on, and opens it. So is, up to as much, a
    change of the light in whole rows: the level bands of lamps that flicker. Noise is measured in each frame. The first
    frame passes, and so does one after a maximum of silence.

    One gate is for one stream of frames; `passes` is called on one thread.
    """

    def __init__(self, threshold: float = 0.01, *, max_silence_s: float | None = 60.0) -> None:
        """Begin without a background.

        Args:
            threshold: share of the picture that has to differ, above 0, at most 1. At 0.01 an object of 2 % is seen.
            max_silence_s: a frame passes after so long all the same; None: never.

        Raises:
            RequestError: a value makes no sense.
        """
        require_number(threshold, "threshold", 1e-6, 1, "above 0 and at most 1: a share of the picture")
        if max_silence_s is not None:
            require_number(max_silence_s, "max_silence_s", 1e-3, 1e9, "above 0 (None for never)")
        self._threshold = float(threshold)
        self._max_silence_s = math.inf if max_silence_s is None else float(max_silence_s)
        self._background: Cells | None = None
        self._seen_s = -math.inf
        self._passed_s = -math.inf
        self._changed_share = 0.0
        self._wanted = threading.Event()

    @property
    def changed_share(self) -> float:
        """Share of the picture that differed in the last frame, 0 to 1."""
        return self._changed_share

    def ask_for_one(self) -> None:
        """Let the next frame pass whatever it shows. From any thread."""
        self._wanted.set()

    def passes(self, frame: Frame) -> bool:
        """Say whether a frame is worth an answer, and take it into the background."""
        cells = _cells_of(frame.pixels)
        has_changed = self._has_changed(cells, frame.captured_s)
        is_due = frame.captured_s - self._passed_s >= self._max_silence_s
        is_wanted = self._wanted.is_set()
        if not (has_changed or is_due or is_wanted):
            return False
        self._wanted.clear()
        self._passed_s = frame.captured_s
        return True

    def _has_changed(self, cells: Cells, captured_s: float) -> bool:
        if self._background is None or self._background.shape != cells.shape:
            self._background, self._seen_s, self._changed_share = cells, captured_s, 1.0
            return True
        difference = cells - self._background
        light = np.median(difference, axis=(0, 1))  # of the whole picture: more than half of it does not move
        bands = np.median(difference, axis=1, keepdims=True) - light  # of each row, likewise
        bands = np.clip(bands, -_MAX_SHIFT, _MAX_SHIFT)
        noise = np.minimum(_MAD_TO_SIGMA * np.median(np.abs(difference - light), axis=(0, 1)), _MAX_NOISE)
        change = np.abs(difference - np.clip(light, -_MAX_SHIFT, _MAX_SHIFT) - bands)
        is_changed = (change > np.maximum(_MIN_CHANGE, _NOISE_FACTOR * noise)).any(axis=2)
        self._changed_share = float(is_changed.mean())
        elapsed_s = max(0.0, captured_s - self._seen_s)
        self._seen_s = captured_s
        slow, fast = (-math.expm1(-elapsed_s / follow_s) for follow_s in (_CHANGED_FOLLOW_S, _QUIET_FOLLOW_S))
        self._background = self._background + difference * np.where(is_changed, slow, fast)[..., None].astype(
            np.float32
        )
        return self._changed_share >= self._threshold


def _cells_of(pixels: NDArray[np.uint8]) -> Cells:
    """Return the mean colours of the picture's cells: float32 (rows, columns, 3), 0 to 255."""
    height, width = pixels.shape[:2]
    longer = max(height, width)
    side = max(1, -(-longer // _NUM_CELLS), min(_MIN_CELL_PX, longer // _MIN_NUM_CELLS))
    stride = max(1, side // _SAMPLES)
    sampled = pixels[::stride, ::stride]
    side = max(1, side // stride)
    rows, columns = max(1, sampled.shape[0] // side), max(1, sampled.shape[1] // side)
    cut = sampled[: rows * side, : columns * side]
    row_side, column_side = cut.shape[0] // rows, cut.shape[1] // columns
    sums = cut.reshape(rows, row_side, columns, column_side * 3).sum(axis=1, dtype=np.float32)
    sums = sums.reshape(rows, columns, column_side, 3).sum(axis=2)
    means: Cells = sums / np.float32(row_side * column_side)
    return means
