"""A gateway without a model, for tests of clients: it hears what is sent to it and says what a test wants said."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiomqtt

from tests.mosquitto import Mosquitto

Reply = Callable[["GatewayDouble", dict[str, Any]], Any]


class GatewayDouble:
    """One of them.

    Attributes:
        requests: what came in on the request topic.
        cancels: ids on the cancel topic.
        images: payloads by topic.
        order: topics in the order of arrival.
    """

    def __init__(self, link: aiomqtt.Client, node: str, reply: Reply, group: str | None) -> None:
        self.node = node
        self.requests: list[dict[str, Any]] = []
        self.cancels: list[str] = []
        self.images: dict[str, bytes] = {}
        self.order: list[str] = []
        self.changed = asyncio.Event()
        self._link = link
        self._reply = reply
        self._group = group
        self._replies: set[asyncio.Task[Any]] = set()

    async def say(self, topic: str, payload: str | bytes, *, is_retained: bool = False) -> None:
        await self._link.publish(topic, payload, qos=1, retain=is_retained)

    async def send(self, request: dict[str, Any], *messages: dict[str, Any]) -> None:
        """Send messages of a stream."""
        topic = f"edge_vl/{self.node}/response/{request['client']}/{request['id']}"
        for message in messages:
            await self.say(topic, json.dumps({"v": 1, "id": request["id"], "t_ms": 1, **message}))

    async def until(self, condition: Callable[[GatewayDouble], bool], timeout_s: float = 5.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()

    async def listen(self) -> None:
        base = f"edge_vl/{self.node}"
        asking = f"edge_vl/group/{self._group}" if self._group else base
        for topic in (f"{asking}/request", f"{asking}/cancel", f"{base}/image/+/+"):
            await self._link.subscribe(topic, qos=1)
        await self.say(f"{base}/status", "online", is_retained=True)
        await self.say(f"{base}/info", json.dumps({"boot_id": "first", "group": self._group}), is_retained=True)

    async def run(self) -> None:
        async for message in self._link.messages:
            topic = str(message.topic)
            payload = bytes(message.payload)
            self.order.append(topic)
            if topic.endswith("/request"):
                request = json.loads(payload)
                self.requests.append(request)
                task = asyncio.create_task(self._reply(self, request))
                self._replies.add(task)
            elif topic.endswith("/cancel"):
                self.cancels.append(json.loads(payload)["id"])
            else:
                self.images[topic] = payload
            self.changed.set()


def start(node: str = "n1") -> dict[str, Any]:
    return {"seq": 0, "type": "start", "node": node, "boot_id": "first", "model": "double"}


def delta(seq: int, text: str) -> dict[str, Any]:
    return {"seq": seq, "type": "delta", "text": text}


def end(seq: int, text: str) -> dict[str, Any]:
    usage = {"prompt_tokens": 7, "image_tokens": 0, "completion_tokens": 2}
    return {"seq": seq, "type": "end", "text": text, "finish_reason": "stop", "usage": usage, "timings": {"total": 5}}


async def silent(gateway: GatewayDouble, request: dict[str, Any]) -> None:
    """Say nothing."""


async def two_words(gateway: GatewayDouble, request: dict[str, Any]) -> None:
    await gateway.send(request, start(gateway.node), delta(1, "two"), delta(2, " words"), end(3, "two words"))


@contextlib.asynccontextmanager
async def running_double(
    broker: Mosquitto, reply: Reply = two_words, *, node: str = "n1", group: str | None = None
) -> AsyncIterator[GatewayDouble]:
    will = aiomqtt.Will(f"edge_vl/{node}/status", "offline", qos=1, retain=True)
    async with aiomqtt.Client("127.0.0.1", broker.port, will=will) as link:
        double = GatewayDouble(link, node, reply, group)
        await double.listen()
        running = asyncio.create_task(double.run())
        try:
            yield double
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, aiomqtt.MqttError):
                await running
