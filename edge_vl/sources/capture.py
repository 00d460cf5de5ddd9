"""The seam between a camera's reader thread and the library that talks to the camera."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["SLOW_CAMERA", "Capture", "OpenCapture"]

SLOW_CAMERA = "; a camera that is slower needs a longer read timeout (read_timeout_s, --read-timeout-s)"
"""What to do about a camera that gave nothing in time and is well; behind the reason why it is offline."""


class Capture(Protocol):
    """One open camera or stream. Used by one thread. Calls may block; none may block longer than its deadline."""

    def grab(self) -> bool:
        """Wait for the next frame, without decoding more than is needed; False when there will be none any more.

        Raises:
            SourceError: it failed, or gave nothing until its read deadline.
        """
        ...

    def retrieve(self) -> NDArray[np.uint8]:
        """Return the frame grabbed last as uint8 (height, width, 3), RGB, as the camera sees it; memory of its own.

        Raises:
            SourceError: it is damaged.
        """
        ...

    def close(self) -> None:
        """Give the camera back."""
        ...


OpenCapture = Callable[[], Capture]
"""Opens a camera; blocks until it is open or its open deadline has passed, then raises `SourceError`."""
