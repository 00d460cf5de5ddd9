"""Checking a broker by using it: what it says, and what it really does."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, Literal

from edge_vl.errors import BrokerError, BrokerReason
from edge_vl.gateway.config import GatewayConfig
from edge_vl.gateway.finding import Finding
from edge_vl.gateway.write_rules import may_not_write
from edge_vl.mqtt.opener import Opener
from edge_vl.mqtt.packet import Inbound, Outbound
from edge_vl.mqtt.paho_client import check_installed
from edge_vl.mqtt.topics import GroupTopics, NodeTopics
from edge_vl.mqtt.transport import Connection, Handlers

__all__ = ["RunCheck", "check_broker"]

RunCheck = Callable[[Coroutine[Any, Any, list[Finding]]], list[Finding]]
"""Runs a check in an event loop."""

_WAIT_S = 2.0
_CLIENT = "edge_vl-check"


def check_broker(config: GatewayConfig, run: RunCheck = asyncio.run) -> Iterator[Finding]:
    """Connect to the broker and try what a gateway does with it.

    It uses one topic of its own below the node's answers, and a client id of its own: a gateway that runs is not
    disturbed.

    Args:
        config: what the gateway file says.
        run: gives the check an event loop, and ends it in order where that is wanted.

    Raises:
        BrokerError: it cannot be connected to.
    """
    check_installed()
    yield from run(_Check(config).run())


class _Check:
    """One connection and what comes over it."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._topics = NodeTopics(config.prefix, config.node)
        self._topic = self._topics.response(_CLIENT, secrets.token_hex(4))
        self._inbox: asyncio.Queue[Inbound] = asyncio.Queue()
        self._confirmed: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        broker = self._config.broker
        connection = await self._connect()
        try:
            packet = connection.max_packet_bytes
            facts = ["TLS" if broker.is_tls else "no TLS"]
            if connection.version == "5":
                facts.append("packets of any size" if packet is None else f"packets up to {packet} bytes")
            self._add("ok", f"{broker.host}:{broker.port} speaks MQTT {connection.version}, {', '.join(facts)}")
            if packet is not None and packet < self._config.limits.max_request_bytes:
                self._add("note", "its packets are smaller than limits.max_request_bytes")
            if broker.username is not None and not broker.is_tls and broker.host not in _LOCAL:
                self._add(
                    "note", "the password goes over the network as it is; use mqtts:// where the broker offers it"
                )
            await self._try_topics(connection)
            await self._try_messages(connection)
        except BrokerError as error:
            self._problem(f"it closed the connection while it was tried: {error}", "lost")
        finally:
            await connection.close(1.0)
        return self._findings

    async def _connect(self) -> Connection:
        """Connect as the gateway file wants it: MQTT 5, or 3.1.1 where the broker does not speak that."""
        broker = replace(self._config.broker, client_id=None)
        handlers = Handlers(self._inbox.put_nowait, self._note_confirmed, _nothing, _nothing)
        opener = Opener(broker, client_id=f"{_CLIENT}-{secrets.token_hex(4)}", will=None, handlers=handlers)
        connection = await opener.open(asyncio.Event())
        assert connection is not None  # nobody sets the event
        if connection.version == "3.1.1" and broker.protocol == "auto":
            self._add("note", "it does not speak MQTT 5; that is fine")
        return connection

    async def _try_topics(self, connection: Connection) -> None:
        """See that the gateway may listen, and that no gateway of this name is there already."""
        topics, group = self._topics, self._config.group
        filters = [topics.cancel, topics.image_filter, topics.camera("+", "+/set"), topics.status]
        if group is not None:
            filters += [GroupTopics(topics.prefix, group).cancel, GroupTopics(topics.prefix, group).claims]
        refused = await connection.subscribe(dict.fromkeys(filters, 1))
        refused += await connection.subscribe({topics.request: 1})
        for one in refused:
            self._problem(f"it does not let this user subscribe to {one}")
        status = await self._next(topics.status, 0.3)
        if status is not None and status.payload == b"online":
            self._problem(
                f"a gateway named {topics.node} is online there, or ended so shortly ago that the broker does not know "
                "yet; only one of a name may run: give this one another node.name, or stop that one first",
                "taken_over",
            )
        await connection.unsubscribe([one for one in (*filters, topics.request) if one not in refused])

    async def _try_messages(self, connection: Connection) -> None:
        """Send one message to ourselves: plainly, kept by the broker, and by a shared subscription."""
        refused = await connection.subscribe({self._topic: 1})
        if refused:
            self._add(
                "note", f"it does not let this user read {self._topics.base}/response/...: no more could be tried"
            )
            return
        started_s = time.monotonic()
        reason = await self._publish(connection, b"plain")
        if reason is None:
            self._problem(f"it does not confirm a message to {self._topics.base}/response/... within {_WAIT_S:g} s")
            return
        if reason >= 128:
            self._problem(self._may_not_write())
            return
        rtt_ms = (time.monotonic() - started_s) * 1000
        if await self._next(self._topic, _WAIT_S) is None:
            self._problem(
                f"a message to {self._topics.base}/response/... does not arrive: {self._may_not_write()}; or they do "
                "not let it read there"
            )
            return
        self._add("ok", f"a message is confirmed after {rtt_ms:.1f} ms")
        await self._publish(connection, b"kept", is_retained=True)
        await self._next(self._topic, _WAIT_S)
        await connection.unsubscribe([self._topic])
        await connection.subscribe({self._topic: 1})
        kept = await self._next(self._topic, _WAIT_S)
        await self._publish(connection, b"", is_retained=True)
        await connection.unsubscribe([self._topic])
        if kept is not None and kept.is_retained:
            self._add("ok", "it keeps retained messages")
        else:
            self._problem("it does not keep retained messages: nobody will see whether the gateway is online")
        await self._try_shared(connection)

    def _may_not_write(self) -> str:
        return may_not_write(self._config.broker.username, f"{self._topics.base}/...")

    async def _try_shared(self, connection: Connection) -> None:
        """See whether a shared subscription gets messages; some brokers only say so."""
        while not self._inbox.empty():
            self._inbox.get_nowait()
        shared = f"$share/{_CLIENT}/{self._topic}"
        works = False
        if not await connection.subscribe({shared: 1}):
            await self._publish(connection, b"shared")
            works = await self._next(self._topic, _WAIT_S) is not None
            await connection.unsubscribe([shared])
        if works:
            self._add("ok", "shared subscriptions work")
        elif self._config.group is not None:
            self._problem("shared subscriptions do not work there, and node.group needs them")
        else:
            self._add("note", "shared subscriptions do not work there; a group (node.group) would need them")

    async def _publish(self, connection: Connection, payload: bytes, *, is_retained: bool = False) -> int | None:
        """Publish and return the broker's reason code; None: it did not confirm in time."""
        number = connection.publish(Outbound(self._topic, payload, 1, is_retained))
        try:
            async with asyncio.timeout(_WAIT_S):
                while True:
                    confirmed, reason = await self._confirmed.get()
                    if confirmed == number:
                        return reason
        except TimeoutError:
            return None

    async def _next(self, topic: str, timeout_s: float) -> Inbound | None:
        """Return the next message of a topic, or None if none comes in time; others are dropped."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    inbound = await self._inbox.get()
                    if inbound.topic == topic:
                        return inbound
        except TimeoutError:
            return None

    def _note_confirmed(self, number: int, reason: int) -> None:
        self._confirmed.put_nowait((number, reason))

    def _add(self, level: Literal["ok", "note"], text: str) -> None:
        self._findings.append(Finding(level, "broker", text))

    def _problem(self, text: str, reason: BrokerReason = "refused") -> None:
        self._findings.append(Finding.problem("broker", BrokerError(text, reason=reason)))


_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def _nothing(*_: object) -> None:
    """Hear what is of no interest here."""
