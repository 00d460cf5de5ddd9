"""Device time by stream, weighted, so that several streams share one device."""

from __future__ import annotations

__all__ = ["Accounts"]

_MAX_NAMES = 256


class Accounts:
    """Weighted device time that each stream has had. Belongs to the language lane.

    A stream that comes late starts where the poorest stream at work stands. One that comes back keeps what it is behind
    by, but no more than about one request: a camera whose next frame comes after the answer to the last one must get
    its share, and what it did not use while it was away for long is gone.
    """

    def __init__(self) -> None:
        """Begin with nobody."""
        self._used_s: dict[str, float] = {}
        self._num_runs: dict[str, int] = {}
        self._began_s: dict[str, float] = {}  # what it had used when its latest request began
        self._last_s: dict[str, float] = {}  # what its last complete request used

    def open(self, name: str) -> None:
        """Let one more request of a stream begin."""
        at_work = [one for one, count in self._num_runs.items() if count]
        if not self._num_runs.get(name) and at_work:
            least_s = min(self._used_s[one] for one in at_work)
            if name in self._used_s:
                least_s -= self._last_s.get(name, 0.0) + max(self._last_s.get(one, 0.0) for one in at_work)
            self._used_s[name] = max(self._used_s.get(name, 0.0), least_s)
        self._began_s[name] = self._used_s.setdefault(name, 0.0)
        self._num_runs[name] = self._num_runs.get(name, 0) + 1

    def close(self, name: str) -> None:
        """Let a request of a stream end."""
        self._num_runs[name] -= 1
        self._last_s[name] = self._used_s[name] - self._began_s[name]
        if not self._num_runs[name] and (name.startswith("#") or len(self._used_s) > _MAX_NAMES):
            for kept in (self._num_runs, self._used_s, self._began_s, self._last_s):
                del kept[name]

    def charge(self, name: str, duration_s: float, share: float) -> None:
        """Note that a stream used the device; one that is gone for good is not remembered for it."""
        if name in self._used_s:
            self._used_s[name] += duration_s / share

    def used_s(self, name: str) -> float:
        """Return what a stream has used, divided by its share."""
        return self._used_s.get(name, 0.0)
