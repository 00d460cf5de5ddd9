"""Where an answer may be sent. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge_vl.errors import RequestError
from edge_vl.mqtt.topics import MAX_LEVELS

__all__ = ["MAX_TOPIC_BYTES", "RESERVED_NAMES", "ReplyRule", "check_topic"]

MAX_TOPIC_BYTES = 1024

_WITH_MEANING = frozenset({"action", "camera", "cancel", "group", "image", "info", "request", "stats", "status"})

RESERVED_NAMES = _WITH_MEANING | {"response"}
"""What no node may be called: its topics could not be told from others."""

_COMMANDS = frozenset({"cancel", "request", "set"})

_REFUSED_BY_BROKERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
"""What MQTT 5, section 1.5.4, lets a broker close the connection for: control characters and non-characters."""


def check_topic(topic: str, field: str) -> str:
    """Return a topic that a message can be sent to.

    Raises:
        RequestError: it is none: empty, too long, of too many levels or with an empty one, with a wildcard or a
            character that no broker takes.
    """
    if not topic:
        raise RequestError(f"{field} is empty", field=field)
    is_plain = topic.isascii() and topic.isprintable()  # as most are; the search takes long
    if not is_plain and _REFUSED_BY_BROKERS.search(topic):
        raise RequestError(f"{field} holds a character that topics may not have", field=field)
    num_bytes = len(topic.encode("utf-8"))
    if num_bytes > MAX_TOPIC_BYTES:
        raise RequestError(f"{field} has {num_bytes} bytes and may have {MAX_TOPIC_BYTES}", field=field)
    if "+" in topic or "#" in topic:
        raise RequestError(f"{field} holds a wildcard, + or #", field=field)
    if topic.startswith("$"):
        raise RequestError(f"{field} begins with $, which belongs to the broker", field=field)
    levels = topic.split("/")
    if "" in levels:
        raise RequestError(f"{field} has an empty level", field=field)
    if len(levels) > MAX_LEVELS:  # brokers may close the connection for a topic of many levels, as mosquitto does
        raise RequestError(f"{field} has {len(levels)} levels and may have {MAX_LEVELS}", field=field)
    return topic


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """Which topics a request may name for its answer.

    An answer is what a model says, and a request names where it goes: were every topic allowed, whoever may ask could
    make the gateway speak for itself, switch a camera off, or unlock a door.

    Attributes:
        prefix: what all topics of the installation begin with; answers may go below it, except to topics that have a
            meaning of their own.
        reply_prefixes: further topics that answers may go to or below.
        discovery_prefix: of Home Assistant; nothing may go there.
    """

    prefix: str
    reply_prefixes: tuple[str, ...] = ()
    discovery_prefix: str = "homeassistant"

    def check(self, topic: str, field: str = "reply_to") -> str:
        """Return a topic that an answer may go to.

        Args:
            topic: from a request.
            field: what it is called there.

        Raises:
            RequestError: it may not; the words do not hold the topic.
        """
        check_topic(topic, field)
        levels = topic.split("/")
        below = _rest(levels, self.prefix)
        if below is not None and len(below) == 4 and below[1] == "response":
            return topic  # whatever client and request are called
        if levels[-1] in _COMMANDS:
            raise RequestError(f"{field} ends with {levels[-1]}, as the topics that commands go to", field=field)
        if _rest(levels, self.discovery_prefix) is not None:
            raise RequestError(f"{field} belongs to Home Assistant", field=field)
        if below is not None:
            if not below:
                raise RequestError(f"{field} is what all topics begin with", field=field)
            if _has_meaning(below):
                raise RequestError(f"{field} is a topic with a meaning of its own", field=field)
            return topic
        if all(_rest(levels, prefix) is None for prefix in self.reply_prefixes):
            allowed = ", ".join(f"{prefix.rstrip('/')}/..." for prefix in (self.prefix, *self.reply_prefixes))
            raise RequestError(f"{field} is not below a topic that answers may go to: {allowed}", field=field)
        return topic

    def is_allowed(self, topic: str) -> bool:
        """Whether an answer may go there."""
        try:
            self.check(topic)
        except RequestError:
            return False
        return True


def _has_meaning(below: list[str]) -> bool:
    """Whether the levels behind the prefix name something that a gateway, or who listens to it, acts upon.

    Behind our prefix may stand the second level of another installation's.
    """
    return bool(_WITH_MEANING.intersection(below[:3]))


def _rest(levels: list[str], prefix: str) -> list[str] | None:
    """Return the levels behind a prefix; None where they are not below it."""
    own = prefix.rstrip("/").split("/")
    return levels[len(own) :] if levels[: len(own)] == own else None
