"""Device time by stream, weighted, so that several streams share one device."""

from __future__ import annotations

__all__ = ["Accounts"]

_MAX_NAMES = 256


class Accounts:
    """Weighted device time that each stream has had. Belongs to the language lane.

    A stream that comes late, or comes back, starts where the poorest stream at work stands: what it did not use while
    it was away is gone.
    """

    def __init__(self) -> None:
        """Begin with nobody."""
        self._used_s: dict[str, float] = {}
        self._num_runs: dict[str, int] = {}

    def open(self, name: str) -> None:
        """Let one more request of a stream begin."""
        at_work = [self._used_s[one] for one, count in self._num_runs.items() if count]
        if not self._num_runs.get(name) and at_work:
            self._used_s[name] = max(self._used_s.get(name, 0.0), min(at_work))
        self._used_s.setdefault(name, 0.0)
        self._num_runs[name] = self._num_runs.get(name, 0) + 1

    def close(self, name: str) -> None:
        """Let a request of a stream end."""
        self._num_runs[name] -= 1
        if not self._num_runs[name] and (name.startswith("#") or len(self._used_s) > _MAX_NAMES):
            del self._num_runs[name], self._used_s[name]

    def charge(self, name: str, duration_s: float, share: float) -> None:
        """Note that a stream used the device."""
        self._used_s[name] = self._used_s.get(name, 0.0) + duration_s / share

    def used_s(self, name: str) -> float:
        """Return what a stream has used, divided by its share."""
        return self._used_s.get(name, 0.0)
