"""A message as it goes over the broker. Apart from the library that sends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["MAX_CORRELATION_BYTES", "Inbound", "Outbound", "QoS"]

QoS = Literal[0, 1]

MAX_CORRELATION_BYTES = 512
"""Longer correlation data is not taken: it is repeated in every message of an answer."""

_VERSION_BYTES = 7
"""Of the user property that names the contract's version."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message that came in.

    Attributes:
        topic: where it was sent.
        payload: what it carries; anything at all.
        received_s: `time.monotonic()` when it came.
        is_retained: whether it is one that the broker kept, of unknown age.
        response_topic: from the properties of MQTT 5; None on 3.1.1.
        correlation: likewise.
        qos: with which it was delivered.
    """

    topic: str
    payload: bytes
    received_s: float
    is_retained: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    qos: int = 0


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message to be sent. What only MQTT 5 knows is left out on 3.1.1.

    Attributes:
        topic: where to; checked by whoever makes it.
        payload: what it carries.
        qos: 0: once at most; 1: until the broker has confirmed it.
        is_retained: whether the broker keeps it for those who come later.
        content_type: media type of the payload; empty: none.
        correlation: what the request's sender knows it by.
        response_topic: where an answer is expected.
        expiry_s: after which the broker need not deliver it any more; None: never.
        needs_listener: the broker's word that nobody has subscribed to its topic is an error; said by MQTT 5 alone.
    """

    topic: str
    payload: bytes
    qos: QoS = 1
    is_retained: bool = False
    content_type: str = ""
    correlation: bytes | None = None
    response_topic: str | None = None
    expiry_s: int | None = None
    needs_listener: bool = False

    @property
    def num_bytes(self) -> int:
        """Size of the packet that carries it over MQTT 5; over 3.1.1 it is smaller by what only MQTT 5 knows."""
        properties = 0
        if self.content_type:
            properties += 3 + len(self.content_type.encode()) + _VERSION_BYTES
        if self.correlation is not None:
            properties += 3 + len(self.correlation)
        if self.response_topic is not None:
            properties += 3 + len(self.response_topic.encode())
        if self.expiry_s is not None:
            properties += 5
        topic = 2 + len(self.topic.encode("utf-8", "surrogatepass"))
        rest = topic + 2 * self.qos + _length_bytes(properties) + properties + len(self.payload)
        return 1 + _length_bytes(rest) + rest


def _length_bytes(length: int) -> int:
    """Return how many bytes say a length: seven bits each."""
    return 1 + (length > 0x7F) + (length > 0x3FFF) + (length > 0x1FFFFF)
