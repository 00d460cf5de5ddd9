"""How often something may be said again to those who have just come. Pure."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Announcements"]


class Announcements:
    """Lets some be said at once, then one in a while: a few that come together do not wait, a storm of them does."""

    def __init__(self, *, every_s: float, burst: int, clock: Callable[[], float]) -> None:
        """Begin with all of the burst.

        Args:
            every_s: seconds in which one more may be said.
            burst: that may be said at once.
            clock: the monotonic one.
        """
        self._every_s = every_s
        self._burst = burst
        self._clock = clock
        self._credit = float(burst)
        self._seen_s = clock()

    def wait_s(self) -> float:
        """Return how long the next one has to wait; 0: it may be said now, and counts as said."""
        now_s = self._clock()
        self._credit = min(self._burst, self._credit + (now_s - self._seen_s) / self._every_s)
        self._seen_s = now_s
        if self._credit >= 1:
            self._credit -= 1
            return 0.0
        return (1 - self._credit) * self._every_s
