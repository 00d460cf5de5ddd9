"""Judges what was heard of a request by what the MQTT contract says. Pure, and made of nothing of the project's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["TERMINAL", "Heard", "read_object", "stream_faults", "text_of"]

TERMINAL = frozenset({"end", "error", "aborted"})
"""Kinds of message that a stream ends with."""

_TYPES = TERMINAL | {"start", "delta"}

_BY_OTHERS = frozenset({"worker_lost", "restart"})
"""Reasons of `aborted` that one gives who does not know how far the stream had come."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A message as the broker delivered it.

    Attributes:
        topic: where it was sent.
        payload: what it carries.
        received_s: `time.monotonic()` when it came.
        qos: with which it was delivered.
        is_retained: whether the broker had kept it.
        content_type: of MQTT 5; None: none.
        correlation: likewise.
        user_properties: likewise.
        expiry_s: likewise.
    """

    topic: str
    payload: bytes
    received_s: float = 0.0
    qos: int = 1
    is_retained: bool = False
    content_type: str | None = None
    correlation: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    expiry_s: int | None = None


def read_object(payload: bytes) -> dict[str, Any]:
    """Read a JSON object as strictly as it can be read.

    Raises:
        ValueError: it is none, is not UTF-8, has a key twice, or a number that JSON does not know.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) != len(pairs):
            raise ValueError("a key is there twice")
        return read

    def unknown(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    found = json.loads(payload.decode("utf-8"), object_pairs_hook=once, parse_constant=unknown)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def stream_faults(
    id: str,
    messages: Sequence[Heard],
    *,
    may_repeat: bool = False,
    check: Callable[[Mapping[str, Any]], Iterable[str]] = lambda message: (),
) -> list[str]:
    """Return everything that is wrong with what was heard of one request, in words; nothing, if it is right.

    Args:
        id: of the request.
        messages: in the order in which they came.
        may_repeat: whether a connection was lost meanwhile, so that messages may have been sent again. A repeat must
            be the same, byte for byte.
        check: says what else is wrong with one message, such as by a schema.
    """
    faults: list[str] = []
    if len({heard.topic for heard in messages}) > 1:
        faults.append(f"on several topics: {sorted({heard.topic for heard in messages})}")
    read: list[dict[str, Any]] = []
    seen: dict[Any, bytes] = {}
    for heard in messages:
        if heard.qos != 1 or heard.is_retained:
            faults.append(f"QoS {heard.qos}, retained: {heard.is_retained}")
        try:
            message = read_object(heard.payload)
        except ValueError as error:
            faults.append(f"no message: {error}: {heard.payload[:100]!r}")
            continue
        faults += (f"{fault}: {heard.payload[:200]!r}" for fault in _message_faults(id, message))
        faults += check(message)
        seq = message.get("seq")
        if seq in seen:
            if seen[seq] != heard.payload:
                faults.append(f"two different messages with seq {seq}: {seen[seq]!r} and {heard.payload!r}")
            elif not may_repeat:
                faults.append(f"seq {seq} came twice")
            continue
        seen[seq] = heard.payload
        read.append(message)
    return faults + _order_faults(read)


def _message_faults(id: str, message: Mapping[str, Any]) -> Iterable[str]:
    if message.get("v") != 1:
        yield "v is not 1"
    if message.get("id") != id:
        yield f"id is {message.get('id')!r} instead of {id!r}"
    if message.get("type") not in _TYPES:
        yield "unknown type"
    if type(message.get("t_ms")) is not int or message["t_ms"] < 0:
        yield "t_ms is not a whole number from 0 on"
    seq = message.get("seq")
    by_others = message.get("type") == "aborted" and message.get("reason") in _BY_OTHERS
    if not (seq is None and by_others) and (type(seq) is not int or seq < 0):
        yield "seq is not a whole number from 0 on"


def _order_faults(read: Sequence[Mapping[str, Any]]) -> list[str]:
    """Judge a stream without its repeats."""
    faults: list[str] = []
    numbers = [message.get("seq") for message in read if message.get("seq") is not None]
    if numbers != list(range(len(numbers))):
        faults.append(f"seq is {numbers}")
    types = [str(message.get("type")) for message in read]
    num_terminal = sum(kind in TERMINAL for kind in types)
    if num_terminal != 1:
        faults.append(f"{num_terminal} terminal messages: {types}")
    elif types[-1] not in TERMINAL:
        faults.append(f"something after the terminal message: {types}")
    if "start" in types[1:] or ("delta" in types and types[0] != "start") or ("end" in types and types[0] != "start"):
        faults.append(f"start is not the first message: {types}")
    times = [int(message.get("t_ms") or 0) for message in read if message.get("seq") is not None]
    if times != sorted(times):
        faults.append(f"t_ms goes back: {times}")
    text = "".join(str(message.get("text")) for message in read if message.get("type") == "delta")
    for message in read:
        if message.get("type") == "end":
            if len(types) > 2 and text != message.get("text"):
                faults.append(f"deltas are {text!r}, end says {message.get('text')!r}")
            tokens = sum(int(delta.get("tokens", 1)) for delta in read if delta.get("type") == "delta")
            counted = message.get("usage", {}).get("completion_tokens")
            if not isinstance(counted, int) or tokens > counted:
                faults.append(f"{tokens} tokens in deltas, {counted} in all")
        elif message.get("type") in TERMINAL:
            kept = str(message.get("text", ""))
            if kept and not (text.startswith(kept) or kept.startswith(text)):
                faults.append(f"deltas are {text!r}, {message.get('type')} says {kept!r}")
    return faults


def text_of(messages: Sequence[Heard]) -> str:
    """Return the text of the `end` of a stream.

    Raises:
        ValueError: it ended otherwise.
    """
    for heard in messages:
        message = read_object(heard.payload)
        if message.get("type") == "end":
            return str(message["text"])
    raise ValueError(f"no end: {[heard.payload[:300] for heard in messages]}")
