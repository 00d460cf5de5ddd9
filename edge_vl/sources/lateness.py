"""Whether a stream's frame is one of now, or has waited somewhere on its way. Pure."""

from __future__ import annotations

__all__ = ["WAITED_SHARE", "Lateness"]

_MAX_LATE_S = 0.5
_CLOCK_TRIAL_S = 1.0
_LONG_WAIT_S = 1.0
WAITED_SHARE = 0.3
"""Of the time between frames: whoever waits for so long waits for a new one."""


class Lateness:
    """Compares when frames come with when they were taken, by the camera's clock.

    Frames pile up when the network stalls, or when this machine is too busy for a while. They come too late then, one
    right after the other, and are not to be taken for news. The least delay that there was is the measure.

    Cameras' clocks run fast, run slowly and jump. So a frame that had to be waited for is always believed: there was
    none that is newer. When a second long all of them were, the measure begins anew.
    """

    def __init__(self) -> None:
        """Know nothing: the first frame is in time."""
        self._least_s: float | None = None
        self._believed_from_s: float | None = None

    def is_late(self, now_s: float, taken_s: float, *, waited_s: float, interval_s: float) -> bool:
        """Say whether a frame that came now is more than half a second older than it need be.

        Args:
            now_s: of any clock of this machine that runs evenly.
            taken_s: of the camera's clock; a stream that does not know it always gives the same.
            waited_s: how long it was waited for. After more than a second it is the first of those that were held up.
            interval_s: usual time between frames.
        """
        delay_s = now_s - taken_s
        if self._least_s is None or delay_s < self._least_s:
            self._least_s = delay_s
        if delay_s - self._least_s <= _MAX_LATE_S:
            self._believed_from_s = None
            return False
        if not WAITED_SHARE * interval_s < waited_s < _LONG_WAIT_S:
            self._believed_from_s = None
            return True
        if self._believed_from_s is None:
            self._believed_from_s = now_s
        elif now_s - self._believed_from_s >= _CLOCK_TRIAL_S:
            self._least_s, self._believed_from_s = delay_s, None
        return False
