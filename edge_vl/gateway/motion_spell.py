"""When motion begins and when it has ended. Pure."""

from __future__ import annotations

__all__ = ["QUIET_S", "MotionSpell"]

QUIET_S = 3.0
"""Motion has ended when nothing has moved for so long."""


class MotionSpell:
    """Makes two changes of many looks: something begins to move, and nothing moves any more."""

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        """Begin with nothing that moves.

        Args:
            quiet_s: after so long without motion it has ended, > 0.
        """
        self._quiet_s = quiet_s
        self._moved_s: float | None = None

    def look(self, has_moved: bool, now_s: float) -> bool | None:
        """Take in a look.

        Args:
            has_moved: whether it showed motion.
            now_s: `time.monotonic()`.

        Returns:
            True: motion has begun; False: it has ended; None: neither.
        """
        is_moving = self._moved_s is not None
        if has_moved:
            self._moved_s = now_s
            return None if is_moving else True
        if self._moved_s is not None and now_s - self._moved_s >= self._quiet_s:
            self._moved_s = None
            return False
        return None
