"""A frame: one picture with its time and source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Frame"]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture, upright, with the moment it was taken.

    Attributes:
        pixels: uint8 (height, width, 3), RGB, C-contiguous, not to be written to.
        captured_s: `time.monotonic()` when it was taken or read.
        captured_wall_s: seconds since the epoch at the same moment.
        source: where it came from: a path, `<bytes>`, `<array>`, a camera's name.
        index: counts the frames of one source, or the pictures of one request, from 0.
    """

    pixels: NDArray[np.uint8]
    captured_s: float
    captured_wall_s: float
    source: str = "<array>"
    index: int = 0

    @property
    def height(self) -> int:
        """Rows of pixels."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """Columns of pixels."""
        return int(self.pixels.shape[1])
