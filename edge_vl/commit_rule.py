"""The commit rule: whether a running answer is finished when a newer frame comes. Pure."""

from __future__ import annotations

from typing import Literal

__all__ = ["MAX_CANCELLATIONS", "NEARLY_DONE", "Commitment", "commit"]

Commitment = Literal["finish", "take_newer"]

MAX_CANCELLATIONS = 3
"""Requests that may be given up one after the other; the next one is brought to its end."""

NEARLY_DONE = 0.6
"""Share of its work from which an answer is finished: the rest may well be quicker than predicted."""


def commit(*, fraction: float, remaining_s: float | None, slack_s: float | None, num_cancelled: int) -> Commitment:
    """Decide what becomes of a running answer now that a newer frame is there.

    It is finished if it will be in time or is nearly done, and given up for the newer frame otherwise. Where nobody
    says what is too late, it is finished: the newer frame takes as long as this one did, so that its answer would come
    later and be no fresher.

    Args:
        fraction: share of the work that is behind it, 0 to 1.
        remaining_s: time that it still needs; None: not known.
        slack_s: time that it may still take: until its deadline, until its frame is too old, or as long as the caller
            lets an answer go on when a newer frame is there; None: any time.
        num_cancelled: requests given up since the last one that came to its end.
    """
    if num_cancelled >= MAX_CANCELLATIONS or fraction >= NEARLY_DONE:
        return "finish"
    if slack_s is None or remaining_s is None:
        return "finish"
    return "finish" if remaining_s <= slack_s else "take_newer"
