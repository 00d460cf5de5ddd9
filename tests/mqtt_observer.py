"""An outside observer of the MQTT contract: hears what a broker delivers. It uses nothing of the project's own code."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.stream_judge import TERMINAL, Heard, read_object, stream_faults, text_of

__all__ = ["PROTOCOLS", "TERMINAL", "Heard", "Observer", "read_object", "stream_faults", "text_of"]

PROTOCOLS: tuple[Literal["3.1.1", "5"], ...] = ("3.1.1", "5")

_TIMEOUT_S = 20.0


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
