"""Cancels that came before their requests: the two come on different topics. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["EarlyCancels"]

MAX_CANCELS = 256

KEPT_S = 10.0
"""How long a cancel waits for its request."""


class EarlyCancels:
    """Remembers cancels for a short while; each ends one request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none.

        Args:
            clock: the monotonic one.
        """
        self._clock = clock
        self._until_s: OrderedDict[tuple[str | None, str], float] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._until_s)

    def add(self, client: str | None, id: str) -> None:
        """Remember a cancel; without a client it is meant for whoever asks with this id."""
        self._until_s[client, id] = self._clock() + KEPT_S
        self._until_s.move_to_end((client, id))
        if len(self._until_s) > MAX_CANCELS:
            self._until_s.popitem(last=False)

    def take(self, client: str, id: str) -> bool:
        """Whether a request that has come was cancelled before."""
        return max(self._until_s.pop((whose, id), float("-inf")) for whose in (client, None)) > self._clock()
