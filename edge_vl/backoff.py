"""How long to wait before the next attempt. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Backoff"]

_MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with jitter and a cap.

    Attributes:
        first_s: bound of the first delay, > 0.
        cap_s: bound of every delay.
    """

    first_s: float = 0.5
    cap_s: float = 60.0

    def delay_s(self, num_failures: int, random_source: random.Random) -> float:
        """Return the delay after so many failures in a row: between half of its bound and the bound.

        Many who lost the same thing at the same moment must not come back at the same moment.

        Args:
            num_failures: at least 1.
            random_source: where the jitter comes from.
        """
        bound_s = min(self.cap_s, self.first_s * 2.0 ** min(max(num_failures - 1, 0), _MAX_DOUBLINGS))
        return bound_s * random_source.uniform(0.5, 1.0)
