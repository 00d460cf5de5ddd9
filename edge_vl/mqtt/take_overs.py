"""Whether another program uses the same client id. Pure."""

from __future__ import annotations

from collections import deque
from typing import Literal

from edge_vl.mqtt.transport import Loss

__all__ = ["SOON_S", "TakeOvers", "Verdict"]

Verdict = Literal["no", "perhaps", "yes"]

SOON_S = 10.0
"""A connection that ends earlier lived shortly."""

_MANY = 3
_WITHIN_S = 60.0


class TakeOvers:
    """Judges the ends of connections.

    Of two programs with one client id, each that connects makes the broker close the other's connection. A broker of
    MQTT 5 may name that reason; one of 3.1.1 cannot, and mosquitto 2.0 does not when the other program speaks 3.1.1.
    Then it looks like any other end that the broker makes soon. The word of the broker counts, and where it has said
    nothing it takes two other tests: whether a connection that says nothing ends as soon, and whether one under another
    id lives longer.
    """

    def __init__(self, *, may_be_shared: bool) -> None:
        """Begin without suspicion.

        Args:
            may_be_shared: whether somebody else may have the same id, as opposed to one that was made up just now.
        """
        self._may_be_shared = may_be_shared
        self._times_s: deque[float] = deque(maxlen=_MANY)

    def judge(self, loss: Loss, lived_s: float, now_s: float) -> Verdict:
        """Take in the end of a connection; say whether three within a minute were take-overs."""
        is_guess = self._may_be_shared and loss.is_by_broker and lived_s < SOON_S
        if not loss.is_taken_over and not is_guess:
            return "no"
        self._times_s.append(now_s)
        if len(self._times_s) < _MANY or now_s - self._times_s[0] > _WITHIN_S:
            return "no"
        self._times_s.clear()
        return "yes" if loss.is_taken_over else "perhaps"
