"""What a link says in the log of messages that are lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edge_vl.mqtt.outbox import Entry, R
from edge_vl.mqtt.packet import Outbound
from edge_vl.rate_limited_log import RateLimitedLog

__all__ = ["LossLog"]

_SHOWN_LEVELS = 3
_SHOWN_CHARS = 200
"""Of a topic: who asks may call the rest whatever he likes."""


class LossLog:
    """Tells of lost messages, as a peer may cause many: a line of each kind now and then."""

    def __init__(self, logger: logging.Logger) -> None:
        """Keep where lines go."""
        self._log = RateLimitedLog(logger)

    def no_room(self, fresh: Entry[R], dropped: Sequence[Entry[R]], num_bytes: int) -> None:
        """Tell of what was given up for a message; not of states that it replaces, which are lost to nobody.

        Args:
            fresh: the message.
            dropped: what was given up, perhaps the message itself.
            num_bytes: that wait now.
        """
        lost = [
            entry
            for entry in dropped
            if entry is fresh or entry.keep != "latest" or entry.message.topic != fresh.message.topic
        ]
        if num_refusals := sum(entry.keep == "refusal" for entry in lost):
            self._log.warning(
                "refusals", "%d answers to refused requests are given up: there are too many of them", num_refusals
            )
        if num_others := len(lost) - num_refusals:
            self._log.warning(
                "no room",
                "%d messages are given up, such as one for %r: %d bytes wait for the broker, and no more may",
                num_others,
                _pattern(lost[-1].message),
                num_bytes,
            )

    def too_large(self, message: Outbound, why: str) -> None:
        """Tell of a message that cannot be sent as it is."""
        self._log.warning("size", "a message for %r cannot be sent: %s", _pattern(message), why)

    def guilty(self, messages: Sequence[Outbound]) -> None:
        """Tell of messages for one topic on which the broker hangs up."""
        self._log.warning(
            "guilty",
            "%d messages for %r are given up: the broker ended each connection on which one was sent (one takes %d "
            "bytes; see whether it limits their size, the levels of topics, or who may write where)",
            len(messages),
            _pattern(messages[0]),
            messages[0].num_bytes,
        )

    def refused(self, message: Outbound, reason: int) -> None:
        """Tell of a message that the broker has confirmed and not taken."""
        self._log.warning(
            f"refused {reason}",
            "the broker does not take messages for %r (reason %d); see what its access rules allow this user to write",
            _pattern(message),
            reason,
        )


def _pattern(message: Outbound) -> str:
    levels = message.topic.split("/")
    return "/".join([*levels[:_SHOWN_LEVELS], *(["..."] if levels[_SHOWN_LEVELS:] else [])])[:_SHOWN_CHARS]
