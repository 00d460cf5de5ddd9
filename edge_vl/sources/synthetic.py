"""A camera that is drawn: moving coloured shapes that the bundled model can answer about. Needs no device."""

from __future__ import annotations

import functools
import itertools
import math
import threading
import time

import numpy as np
from numpy.typing import NDArray

from edge_vl.drawn_scene import Scene, draw_scene, random_scene
from edge_vl.errors import RequestError, SourceError
from edge_vl.option_checks import require_number

__all__ = ["MAX_NUMBER", "SyntheticCapture", "read_number"]

MAX_NUMBER = (1 << 24) - 1
"""Largest frame number that can be drawn; the one after it is drawn as 0."""

MIN_SIDE_PX = 96
MAX_SIDE_PX = 4096

_MARK = (1, 0)  # the two blocks that say what light and dark are
_NUMBER_BITS = 24
_CHECK_BITS = 6
_NUM_BLOCKS = len(_MARK) + _NUMBER_BITS + _CHECK_BITS
_STRIP_SHARE = 24  # of the height
_CONTRAST = 30
_MIN_CONTRAST = 10.0
_TARGET = ("circle", "red")  # comes with every other scene, so that a yes/no question about it soon has another answer
_SEED_STEP = 1_000_003
_SWING_S = 3.0  # of the objects, from one side to the other and back


class SyntheticCapture:
    """Draws a frame at each of its moments, like a camera whose driver keeps only the newest.

    A reader who comes late gets the frame of now; the numbers of those that he missed are left out. The number is drawn
    into the lower edge of each frame, where `read_number` finds it again. Every other scene has a red circle in it.

    Attributes:
        width: of its frames in pixels.
        height: likewise.
        fps: frames per second.
        started_s: `time.monotonic()` when it was opened; frame `n` is of `started_s + n / fps`.
    """

    def __init__(self, width: int = 640, height: int = 480, fps: float = 15.0, *, scene_s: float = 8.0) -> None:
        """Start its clock.

        Args:
            width: `MIN_SIDE_PX` to `MAX_SIDE_PX`.
            height: likewise.
            fps: above 0, at most 1,000.
            scene_s: seconds after which other objects are shown.

        Raises:
            RequestError: a value makes no sense.
        """
        for field, side in (("width", width), ("height", height)):
            if isinstance(side, bool) or not isinstance(side, int) or not MIN_SIDE_PX <= side <= MAX_SIDE_PX:
                raise RequestError(
                    f"{field} of a synthetic camera is {MIN_SIDE_PX} to {MAX_SIDE_PX} pixels, not {side!r:.40}",
                    field=field,
                )
        require_number(fps, "fps", 1e-3, 1000, "above 0 and at most 1000")
        require_number(scene_s, "scene_s", 1e-3, 1e6, "above 0")
        self.width = width
        self.height = height
        self.fps = float(fps)
        self.started_s = time.monotonic()
        self._frames_per_scene = max(1, round(scene_s * fps))
        self._number = -1
        self._closed = threading.Event()

    def grab(self) -> bool:
        """Wait for the moment of the next frame; False when it was closed."""
        now = int((time.monotonic() - self.started_s) * self.fps)
        self._number = max(self._number + 1, now)
        return not self._closed.wait(max(0.0, self.started_s + self._number / self.fps - time.monotonic()))

    def retrieve(self) -> NDArray[np.uint8]:
        """Draw the frame grabbed last: uint8 (height, width, 3), RGB.

        Raises:
            SourceError: none was grabbed.
        """
        if self._number < 0:
            raise SourceError("no frame of the synthetic camera was grabbed yet")
        return self.draw(self._number)

    def close(self) -> None:
        """End it; whoever waits for a frame wakes. From any thread."""
        self._closed.set()

    def truth(self, number: int) -> Scene:
        """Return what is in the frame of a number, as drawn into it."""
        return _scene(number // self._frames_per_scene)

    def draw(self, number: int) -> NDArray[np.uint8]:
        """Draw the frame of a number: uint8 (height, width, 3), RGB. The same number gives the same pixels."""
        angle = 2 * math.pi * number / (self.fps * _SWING_S)
        scene = self.truth(number)
        pixels = draw_scene(scene, self.width, self.height, (0.04 * math.sin(angle), 0.03 * math.cos(angle)))
        _draw_number(pixels, number & MAX_NUMBER, scene.grey)
        return pixels


@functools.lru_cache(maxsize=8)
def _scene(number: int) -> Scene:
    """Return a scene that has `_TARGET` in it if its number is odd."""
    seeds = itertools.count(number, _SEED_STEP)
    return next(scene for scene in map(random_scene, seeds) if _has_target(scene) == bool(number % 2))


def _has_target(scene: Scene) -> bool:
    return any((shape, color) == _TARGET for shape, color, _ in scene.objects)


def read_number(pixels: NDArray[np.uint8]) -> int | None:
    """Read the number drawn into a frame; survives JPEG and a change of size.

    Args:
        pixels: uint8 (height, width, 3), RGB, the whole frame, upright.

    Returns:
        None when there is none, or it cannot be read for sure.
    """
    height, width = pixels.shape[:2]
    if width < 2 * _NUM_BLOCKS or height < _STRIP_SHARE:
        return None
    strip = height // _STRIP_SHARE
    rows = pixels[height - max(1, strip * 3 // 4) : height - strip // 4].astype(np.float32).mean(axis=(0, 2))
    edges = _edges(width)
    margins = (edges[1:] - edges[:-1]) // 4
    values = np.array(
        [rows[a + m : b - m].mean() for a, b, m in zip(edges[:-1], edges[1:], margins, strict=True)], np.float32
    )
    if values[0] - values[1] < _MIN_CONTRAST:
        return None
    bits = values > (values[0] + values[1]) / 2
    number = _from_bits(bits[len(_MARK) : len(_MARK) + _NUMBER_BITS])
    return number if _from_bits(bits[-_CHECK_BITS:]) == _check_of(number) else None


def _draw_number(pixels: NDArray[np.uint8], number: int, grey: int) -> None:
    height, width = pixels.shape[:2]
    bits = (*_MARK, *_to_bits(number, _NUMBER_BITS), *_to_bits(_check_of(number), _CHECK_BITS))
    levels = np.where(np.array(bits, bool), grey, grey - _CONTRAST).astype(np.uint8)
    pixels[height - height // _STRIP_SHARE :] = np.repeat(levels, np.diff(_edges(width)))[None, :, None]


def _edges(width: int) -> NDArray[np.int64]:
    return np.arange(_NUM_BLOCKS + 1, dtype=np.int64) * width // _NUM_BLOCKS


def _check_of(number: int) -> int:
    """Return the remainder by the largest prime that fits; every wrong single bit changes it."""
    return number % 61


def _to_bits(value: int, num_bits: int) -> tuple[int, ...]:
    return tuple(value >> place & 1 for place in reversed(range(num_bits)))


def _from_bits(bits: NDArray[np.bool_]) -> int:
    return int("".join("1" if bit else "0" for bit in bits), 2)
