"""A session of a test's own, and what it hears."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from edge_vl.backoff import Backoff
from edge_vl.mqtt.broker_settings import BrokerSettings, Protocol
from edge_vl.mqtt.packet import Inbound, QoS
from edge_vl.mqtt.session import Session
from tests.mosquitto import Mosquitto

__all__ = ["QUICK", "Ear", "living", "settings_of"]

QUICK = Backoff(first_s=0.05, cap_s=0.2)


class Ear:
    """Takes what a session hears and what becomes of it, and waits for that."""

    def __init__(self) -> None:
        self.messages: list[Inbound] = []
        self.states: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, inbound: Inbound) -> None:
        """Take a message."""
        self.messages.append(inbound)
        self._news.set()

    def on_state(self, state: str, text: str) -> None:
        """Take a change."""
        self.states.append(state)
        self._news.set()

    def payloads(self, topic: str) -> list[bytes]:
        """Return what was heard on one topic."""
        return [message.payload for message in self.messages if message.topic == topic]

    async def until(self, is_enough: Callable[[], bool], limit_s: float = 10.0) -> None:
        """Wait until something is so; seen after each message and change."""
        async with asyncio.timeout(limit_s):
            while not is_enough():
                self._news.clear()
                await self._news.wait()


def settings_of(broker: Mosquitto, protocol: Protocol = "auto", **options: Any) -> BrokerSettings:
    """Return how a broker of a test is reached; attempts follow each other quickly."""
    return BrokerSettings(port=broker.port, protocol=protocol, **{"backoff": QUICK, **options})


@contextlib.asynccontextmanager
async def living(
    settings: BrokerSettings, ear: Ear, filters: Mapping[str, QoS] | None = None, **options: Any
) -> AsyncIterator[Session]:
    """Run a session for the body; it is connected when the body begins, and stopped after it."""
    session = Session(settings, filters=filters or {}, on_message=ear, on_state=ear.on_state, **options)
    run = asyncio.create_task(session.run())
    try:
        await session.wait_connected(10)
        yield session
        await session.stop()
        await asyncio.wait_for(run, 5)
    finally:
        run.cancel()
        await asyncio.wait([run])
