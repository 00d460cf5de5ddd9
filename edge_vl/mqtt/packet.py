"""A message as it goes over the broker. Apart from the library that sends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Inbound", "Outbound", "QoS"]

QoS = Literal[0, 1]


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
    """

    topic: str
    payload: bytes
    qos: QoS = 1
    is_retained: bool = False
    content_type: str = ""
    correlation: bytes | None = None
    response_topic: str | None = None
    expiry_s: int | None = None
