"""How often frames come, and which of them are worth decoding. Pure: the caller tells the time."""

from __future__ import annotations

from collections import deque

__all__ = ["RateLimit", "RateMeter"]

_WINDOW_S = 5.0
_MAX_MOMENTS = 256  # of a very fast camera less than the window is looked at


class RateLimit:
    """Lets at most so many frames per second pass, on average exactly so many where enough come."""

    def __init__(self, max_fps: float | None) -> None:
        """Let the first frame pass.

        Args:
            max_fps: None: all pass.
        """
        self._interval_s = 0.0 if max_fps is None else 1.0 / max_fps
        self._due_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Say whether a frame of this moment would pass."""
        return self._due_s is None or now_s >= self._due_s

    def count(self, now_s: float) -> None:
        """Say that a frame of this moment has passed.

        The next one is due an interval after this one was due, not after it came: otherwise a camera of 20 frames per
        second would give 10 of them to a limit of 15. After a pause nothing is made up for.
        """
        is_in_step = self._due_s is not None and now_s < self._due_s + self._interval_s
        self._due_s = (self._due_s if is_in_step and self._due_s is not None else now_s) + self._interval_s


class RateMeter:
    """Frames per second over the last seconds."""

    def __init__(self) -> None:
        """Begin with none."""
        self._moments: deque[float] = deque(maxlen=_MAX_MOMENTS)

    def count(self, now_s: float) -> None:
        """Say that a frame came."""
        self._moments.append(now_s)

    def clear(self) -> None:
        """Forget all of them."""
        self._moments.clear()

    def fps(self, now_s: float) -> float:
        """Return the mean of the last five seconds; 0 while there are fewer than two frames."""
        while self._moments and self._moments[0] < now_s - _WINDOW_S:
            self._moments.popleft()
        if len(self._moments) < 2:
            return 0.0
        took_s = self._moments[-1] - self._moments[0]
        return (len(self._moments) - 1) / took_s if took_s > 0 else 0.0
