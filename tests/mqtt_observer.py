"""An outside observer of the MQTT contract: hears what a broker delivers, and judges streams by what the contract says.

It knows nothing of the project's own code: paho, `json` and the contract are all it is made from.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

__all__ = ["PROTOCOLS", "TERMINAL", "Heard", "Observer", "read_object", "stream_faults", "text_of"]

PROTOCOLS: tuple[Literal["3.1.1", "5"], ...] = ("3.1.1", "5")

TERMINAL = frozenset({"end", "error", "aborted"})
"""Kinds of message that a stream ends with."""

_TYPES = TERMINAL | {"start", "delta"}

_BY_OTHERS = frozenset({"worker_lost", "restart"})
"""Reasons of `aborted` that one gives who does not know how far the stream had come."""

_TIMEOUT_S = 20.0


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


class Observer:
    """A client of a broker that keeps everything it hears. Reconnects by itself. All methods may be called anywhere.

    Attributes:
        num_connections: times that it was connected and had subscribed.
    """

    def __init__(
        self,
        port: int,
        filters: Iterable[str] = (),
        *,
        protocol: Literal["3.1.1", "5"] = "5",
        client_id: str = "",
        keeps: Callable[[str], bool] = lambda topic: True,
        is_own_heard: bool = True,
    ) -> None:
        """Connect and subscribe; returns when both have been done.

        Args:
            port: of a broker on the loopback interface.
            filters: what to listen to, at QoS 1.
            protocol: version of MQTT.
            client_id: empty: the broker's choice.
            keeps: whether messages on a topic are kept.
            is_own_heard: whether it hears what it sends itself; MQTT 5 alone can leave that out.
        """
        self._filters: list[tuple[str, int]] | list[tuple[str, SubscribeOptions]] = [(name, 1) for name in filters]
        if not is_own_heard:
            self._filters = [(name, SubscribeOptions(qos=1, noLocal=True)) for name, _ in self._filters]
        self._keeps = keeps
        self._changed = threading.Condition()
        self._heard: list[Heard] = []
        self._by_id: dict[str, list[Heard]] = {}
        self.num_connections = 0
        self._is_5 = protocol == "5"
        self._client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5 if self._is_5 else MQTTProtocolVersion.MQTTv311,
        )
        self._client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
        self._client.max_inflight_messages_set(0)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = lambda *_: self._subscribed()
        self._client.on_message = self._on_message
        self._is_connected = False
        self._client.connect("127.0.0.1", port, keepalive=30)
        self._client.loop_start()
        self.wait_connected()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def publish(
        self,
        topic: str,
        payload: bytes | str | Mapping[str, Any],
        *,
        qos: int = 1,
        is_retained: bool = False,
        response_topic: str | None = None,
        correlation: bytes | None = None,
        timeout_s: float | None = _TIMEOUT_S,
    ) -> None:
        """Send a message; returns when the broker has confirmed it, or at once without `timeout_s`."""
        properties = None
        if self._is_5 and (response_topic is not None or correlation is not None):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            if response_topic is not None:
                properties.ResponseTopic = response_topic
            if correlation is not None:
                properties.CorrelationData = correlation
        data = json.dumps(payload).encode() if isinstance(payload, Mapping) else payload
        sent = self._client.publish(topic, data, qos=qos, retain=is_retained, properties=properties)
        if timeout_s is not None:
            sent.wait_for_publish(timeout_s)
            assert sent.is_published(), f"the broker did not confirm a message on {topic}"

    def heard(self, topic: str | None = None) -> list[Heard]:
        """Return what was heard so far, in order; with `topic`, on that one alone."""
        with self._changed:
            return [heard for heard in self._heard if topic is None or heard.topic == topic]

    def stream(self, id: str) -> list[Heard]:
        """Return what was heard so far of one request."""
        with self._changed:
            return list(self._by_id.get(id, ()))

    def ids(self) -> list[str]:
        """Return the requests of which something was heard."""
        with self._changed:
            return list(self._by_id)

    def forget(self, id: str) -> None:
        """Let what was heard of one request go."""
        with self._changed:
            gone = set(map(id_of, self._by_id.pop(id, ())))
            self._heard = [heard for heard in self._heard if id_of(heard) not in gone]

    def forget_all(self) -> None:
        """Let everything go that belongs to no request."""
        with self._changed:
            kept = {id_of(heard) for stream in self._by_id.values() for heard in stream}
            self._heard = [heard for heard in self._heard if id_of(heard) in kept]

    def wait_for(self, is_it: Callable[[Heard], bool], what: str = "a message", timeout_s: float = _TIMEOUT_S) -> Heard:
        """Wait for a message, among those that came already, too.

        Raises:
            AssertionError: none came.
        """
        until_s = time.monotonic() + timeout_s
        looked = 0
        with self._changed:
            while True:
                for heard in self._heard[looked:]:
                    if is_it(heard):
                        return heard
                looked = len(self._heard)
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    last = [(heard.topic, heard.payload[:200]) for heard in self._heard[-8:]]
                    raise AssertionError(f"no {what} within {timeout_s:g} s; the last messages: {last}")

    def wait_payload(self, topic: str, payload: bytes, timeout_s: float = _TIMEOUT_S) -> Heard:
        """Wait for a payload on a topic."""
        return self.wait_for(
            lambda heard: heard.topic == topic and heard.payload == payload, f"{payload!r} on {topic}", timeout_s
        )

    def wait_terminal(self, id: str, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
        """Wait for the message that ends a stream.

        Raises:
            AssertionError: none came.
        """
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for heard in self._by_id.get(id, ()):
                    message = _maybe_object(heard.payload)
                    if message.get("type") in TERMINAL:
                        return message
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    got = [heard.payload[:120] for heard in self._by_id.get(id, ())]
                    raise AssertionError(f"request {id} has no terminal message after {timeout_s:g} s: {got}")

    def wait_connected(self, num_connections: int = 1, timeout_s: float = _TIMEOUT_S) -> None:
        """Wait until it has subscribed, for the so-manieth time or later."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._is_connected and self.num_connections >= num_connections, timeout_s
            )
        assert there, f"the observer is not connected after {timeout_s:g} s"

    def _on_connect(
        self, client: Client, data: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            return
        if isinstance(found := client.socket(), socket.socket):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or a confirmation holds up what is behind it
        if self._filters:
            client.subscribe(self._filters)
        else:
            self._subscribed()

    def _subscribed(self) -> None:
        with self._changed:
            self._is_connected = True
            self.num_connections += 1
            self._changed.notify_all()

    def _on_disconnect(
        self, client: Client, data: Any, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        with self._changed:
            self._is_connected = False
            self._changed.notify_all()

    def _on_message(self, client: Client, data: Any, message: MQTTMessage) -> None:
        if not self._keeps(message.topic):
            return
        properties = message.properties
        heard = Heard(
            topic=message.topic,
            payload=bytes(message.payload),
            received_s=time.monotonic(),
            qos=message.qos,
            is_retained=message.retain,
            content_type=getattr(properties, "ContentType", None),
            correlation=getattr(properties, "CorrelationData", None),
            user_properties=tuple(getattr(properties, "UserProperty", ())),
            expiry_s=getattr(properties, "MessageExpiryInterval", None),
        )
        found = _maybe_object(heard.payload)
        with self._changed:
            self._heard.append(heard)
            if "type" in found and isinstance(found.get("id"), str):
                self._by_id.setdefault(found["id"], []).append(heard)
            self._changed.notify_all()


def id_of(heard: Heard) -> int:
    """Return which message it is, among equal ones."""
    return id(heard)


def _maybe_object(payload: bytes) -> dict[str, Any]:
    try:
        return read_object(payload)
    except ValueError:
        return {}
