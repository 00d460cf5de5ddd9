"""A group of workers with their real desks on a broker that is simulated: what is lost, and when, is decided by a test.

The broker delivers in order, keeps what is retained, sends wills, and gives a group's request to one of those that are
connected; to another, if that one is gone before it has taken it. It knows each message that reached it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, cast

from edge_vl.gateway.active import ActiveRequest
from edge_vl.gateway.group_desk import GroupDesk
from edge_vl.gateway.stream_writer import StreamWriter
from edge_vl.mqtt.coalescer import Coalescer
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.link_model import LinkModel
from edge_vl.mqtt.messages import End, Request
from edge_vl.mqtt.node_messages import Info, InfoLimits
from edge_vl.mqtt.packet import Inbound, Outbound
from edge_vl.mqtt.reply_rule import ReplyRule
from edge_vl.mqtt.topics import GroupTopics, NodeTopics
from tests.mqtt_observer import TERMINAL, read_object

GROUP = GroupTopics("edge_vl", "pool")


@dataclass(eq=False)
class Sent:
    outbound: Outbound
    keep: str
    receipt: asyncio.Future[float]
    is_with_broker: bool = False


@dataclass
class Broker:
    retained: dict[str, bytes] = field(default_factory=dict)
    connected: list[Worker] = field(default_factory=list)
    queue: deque[str] = field(default_factory=deque)  # requests that nobody was there for
    terminals: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    told_by: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    released_by: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    claimed: set[str] = field(default_factory=set)
    in_window: set[str] = field(default_factory=set)
    _turn: int = 0

    def receive(self, sender: Worker | None, outbound: Outbound) -> None:
        if outbound.is_retained:
            self.retained[outbound.topic] = outbound.payload
        if outbound.topic == GROUP.claims or outbound.topic.endswith(("/status", "/info")):
            for worker in self.connected:
                worker.inbox.append(Inbound(outbound.topic, outbound.payload, 0.0))
        name = "" if sender is None else sender.name
        if outbound.topic == GROUP.claims:
            claim = read_object(outbound.payload)
            if claim["released"]:
                self.released_by[claim["id"]].add(name)
            else:
                self.claimed.add(claim["id"])
        elif "/response/" in outbound.topic:
            message = read_object(outbound.payload)
            if message["type"] in TERMINAL:
                self.terminals[message["id"]].add(outbound.payload)
                self.told_by[message["id"]].add(name)

    def ask(self, id: str) -> None:
        self.queue.append(id)
        self.hand_out()

    def note_asked(self, worker: Worker) -> None:
        """Note which of a worker's requests were ended by somebody who cannot be asked at this moment."""
        there = {other.name for other in self.connected}
        for id in worker.taken:
            if self.told_by[id] - there - {worker.name}:
                self.in_window.add(id)

    def hand_out(self) -> None:
        while self.queue and self.connected:
            self._turn += 1
            self.connected[self._turn % len(self.connected)].inbox.append(self.queue.popleft())

    def lose(self, worker: Worker, *, is_will: bool = True) -> None:
        """Cut a worker off."""
        self.connected.remove(worker)
        for id, names in self.told_by.items():
            if worker.name in names and worker.name not in self.released_by[id]:
                self.in_window.add(id)
        undelivered = [item for item in worker.inbox if isinstance(item, str)]
        worker.inbox.clear()
        self.queue.extend(undelivered)
        if is_will:
            self.receive(None, Outbound(worker.topics.status, b"offline", is_retained=True))
        self.hand_out()


class Worker:
    """One worker: its desk is the real one, its link is not."""

    def __init__(self, broker: Broker, node: str, run: int) -> None:
        self.broker = broker
        self.node = node
        self.name = f"{node}#{run}"
        self.topics = NodeTopics("edge_vl", node)
        self.inbox: deque[Inbound | str | Sent] = deque()
        self.outbox: list[Sent] = []
        self.open: list[ActiveRequest] = []
        self.taken: list[str] = []
        self.is_online = False
        self.link = LinkModel()
        self.desk = GroupDesk(
            self.topics,
            GROUP,
            self.name,
            cast(Any, self),
            ReplyRule("edge_vl"),
            is_online=lambda: self.is_online,
            drop=lambda active: self.open.remove(active) if active in self.open else None,
        )

    @property
    def is_connected(self) -> bool:
        return self in self.broker.connected

    def post(self, outbound: Outbound, keep: str) -> asyncio.Future[float]:
        sent = Sent(outbound, keep, asyncio.get_running_loop().create_future())
        self.outbox.append(sent)
        return sent.receipt

    def connect(self) -> None:
        broker = self.broker
        self.outbox = [
            sent for sent in self.outbox if sent.keep in ("terminal", "delta") and not sent.receipt.cancelled()
        ]
        for sent in self.outbox:
            sent.is_with_broker = False
        broker.connected.append(self)
        for topic, payload in broker.retained.items():
            self.desk.handle(Inbound(topic, payload, 0.0, is_retained=True))
        self.broker.note_asked(self)
        limits = InfoLimits(
            max_active=1,
            max_waiting=1,
            max_per_client=1,
            max_request_bytes=1,
            max_image_bytes=1,
            max_tokens=1,
            default_deadline_ms=1,
        )
        info = Info(
            node=self.node,
            version="1",
            boot_id=self.name,
            started_at="",
            protocol="5",
            group="pool",
            model="",
            profile="",
            vision_engine="",
            language_engine="",
            limits=limits,
        )
        self.desk.back()
        first = [
            Outbound(self.topics.info, encode(info), is_retained=True),
            Outbound(self.topics.status, b"online", is_retained=True),
        ]
        loop = asyncio.get_running_loop()
        self.outbox = [*(Sent(one, "drop", loop.create_future()) for one in first), *self.outbox]
        self.is_online = True
        broker.hand_out()

    def lose(self, *, is_will: bool = True) -> None:
        self.broker.lose(self, is_will=is_will)
        self.is_online = False
        self.desk.note_away()

    def send(self, most: int = 1_000) -> None:
        """Let so many messages reach the broker."""
        for sent in list(self.outbox):
            if most <= 0 or not self.is_connected:
                return
            if sent.is_with_broker:
                continue
            if sent.receipt.cancelled():
                self.outbox.remove(sent)
                continue
            sent.is_with_broker = True
            self.broker.receive(self, sent.outbound)
            self.inbox.append(sent)
            most -= 1

    def hear(self, most: int = 1_000) -> None:
        """Take so many messages in."""
        while self.inbox and most > 0:
            most -= 1
            item = self.inbox.popleft()
            if isinstance(item, Sent):
                if item in self.outbox:
                    self.outbox.remove(item)
                if not item.receipt.done():
                    item.receipt.set_result(0.0)
            elif isinstance(item, Inbound):
                if item.topic == self.topics.status and item.payload != b"online" and self.is_online:
                    self.post(Outbound(self.topics.status, b"online", is_retained=True), "latest")
                self.desk.handle(item)
            else:
                self._take(item)

    def finish(self, active: ActiveRequest) -> None:
        self.open.remove(active)
        id = active.request.id
        active.writer.end(
            lambda seq, t_ms: End(id=id, seq=seq, t_ms=0, text=self.name, finish_reason="stop", usage={}, timings={})
        )

    def _take(self, id: str) -> None:
        topic = f"edge_vl/{self.node}/response/client/{id}"
        if self.desk.is_known(id, topic):
            return
        writer = StreamWriter(
            cast(Any, self.post),
            Coalescer(lambda: 0.0),
            id=id,
            topic=topic,
            received_s=time.monotonic(),
            expires_s=time.monotonic() + 60,
            correlation=id.encode(),
            on_terminal=lambda message, future: self.desk.release(active),
        )
        active = ActiveRequest(Request(id=id, question="?"), topic, time.monotonic(), 60_000, writer)
        self.open.append(active)
        self.taken.append(id)
        self.desk.take(active)
        writer.start(self.node, self.name, "model")
