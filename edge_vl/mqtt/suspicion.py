"""Which messages end the connections that they are sent on. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from edge_vl.mqtt.packet import Outbound

__all__ = ["BAN_S", "SETTLE_S", "SOON_S", "SUSPECT_AFTER", "Suspicion"]

SUSPECT_AFTER = 3
"""Connections in a row that ended soon after a message was sent on them, until it is suspected."""

SOON_S = 10.0
"""A connection that ends later after a message was sent ended for another reason."""

SETTLE_S = 1.0
"""How long a connection lives before a suspect is sent on it: one that ends by itself must not look like its doing."""

BAN_S = 600.0
"""How long nothing is sent to a topic, or nothing of a size, that ended connections."""

_MAX_REMEMBERED = 256

K = TypeVar("K")
V = TypeVar("V")


class Suspicion:
    """Finds the message for which a broker hangs up, among all that are under way when it does.

    A broker hangs up on what it does not like, MQTT 3.1.1 has no other way, and does not say what that was. Whoever
    sends everything again on the next connection does so for ever. So a message that was under way at three losses in a
    row, each soon after it was sent, is suspected. A suspect is sent alone, on a connection that has lived for a
    moment; when the broker ends that one too, it is guilty, and is given up.

    What follows on the topic of a guilty message is suspected from the start. When it is guilty as well, the topic is
    left alone for a while. When it is taken, and the guilty one was larger than anything that the broker ever took, it
    was the size: nothing so large is sent for a while.

    Messages are remembered by what they are, not by who holds them: one that is taken back and sent again is the same.
    """

    def __init__(self) -> None:
        """Suspect nothing."""
        self._losses: OrderedDict[int, int] = OrderedDict()  # by what a message is
        self._guilty_bytes: OrderedDict[str, int] = OrderedDict()  # by topic
        self._banned_until_s: OrderedDict[str, float] = OrderedDict()  # by topic
        self._too_many_bytes: int | None = None
        self._too_many_until_s = 0.0
        self._largest_taken_bytes = 0

    def is_suspect(self, message: Outbound) -> bool:
        """Whether a message must be sent alone."""
        if not self._losses and not self._guilty_bytes:
            return False
        return message.topic in self._guilty_bytes or self._losses.get(_key(message), 0) >= SUSPECT_AFTER

    def note_lost(self, message: Outbound, waited_s: float) -> None:
        """Note that a connection ended while a message was under way, so many seconds after it was sent."""
        key = _key(message)
        if waited_s >= SOON_S:
            self._losses.pop(key, None)
        else:
            _remember(self._losses, key, self._losses.get(key, 0) + 1)

    def note_guilty(self, message: Outbound, now_s: float) -> bool:
        """Note that a message ends connections; say whether its topic is left alone from now on."""
        self._losses.pop(_key(message), None)
        if self._guilty_bytes.pop(message.topic, None) is None:
            _remember(self._guilty_bytes, message.topic, message.num_bytes)
            return False
        _remember(self._banned_until_s, message.topic, now_s + BAN_S)
        return True

    def note_taken(self, message: Outbound, now_s: float) -> None:
        """Note that the broker has confirmed a message."""
        self._largest_taken_bytes = max(self._largest_taken_bytes, message.num_bytes)
        if self._losses:
            self._losses.pop(_key(message), None)
        guilty_bytes = self._guilty_bytes.pop(message.topic, None) if self._guilty_bytes else None
        if guilty_bytes is not None and guilty_bytes > self._largest_taken_bytes:
            self._too_many_bytes, self._too_many_until_s = guilty_bytes, now_s + BAN_S

    def is_banned(self, topic: str, now_s: float) -> bool:
        """Whether a topic is left alone."""
        until_s = self._banned_until_s.get(topic)
        if until_s is None:
            return False
        if now_s < until_s:
            return True
        del self._banned_until_s[topic]
        return False

    def max_bytes(self, now_s: float) -> int | None:
        """Return the largest packet that may be sent; None: nothing is known of a bound."""
        if self._too_many_bytes is None or now_s >= self._too_many_until_s:
            return None
        return self._too_many_bytes - 1


def _key(message: Outbound) -> int:
    return hash((message.topic, message.payload))


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _MAX_REMEMBERED:
        memory.popitem(last=False)
