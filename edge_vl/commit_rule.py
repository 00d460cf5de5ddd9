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

    It is finished if it will be in time or is nearly done, and given up for the newer frame only if it will be too
    late: then nobody would ever see it. To give up an answer that will be in time gains nothing, because the newer
    frame takes as long as this one did; its answer would come later and be no fresher.

    Args:
        fraction: share of the work that is behind it, 0 to 1.
        remaining_s: time that it still needs; None: not known.
        slack_s: time until it is too late, by its deadline or by the age of its frame; None: it is never too late.
        num_cancelled: requests given up since the last one that came to its end.
    """
    if num_cancelled >= MAX_CANCELLATIONS or fraction >= NEARLY_DONE:
        return "finish"
    if slack_s is None or remaining_s is None:
        return "finish"
    return "finish" if remaining_s <= slack_s else "take_newer"
