"""A gateway in the test's own event loop, and a client of it that knows nothing of the project's code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from edge_vl import Runtime
from edge_vl.backoff import Backoff
from edge_vl.gateway.config import GatewayConfig
from edge_vl.gateway.gateway import Gateway
from edge_vl.mqtt.broker_settings import BrokerSettings, Protocol
from edge_vl.sources.source import LiveSource
from tests.mqtt_observer import TERMINAL, Observer, read_object

__all__ = ["config_for", "request", "running", "stream_of", "terminal_of", "until"]

_TIMEOUT_S = 20.0


def config_for(port: int, *, node: str = "gw", protocol: Protocol = "auto", **fields: Any) -> GatewayConfig:
    """Return a gateway's configuration that comes back soon after a loss."""
    broker = BrokerSettings(port=port, protocol=protocol, backoff=Backoff(0.05, 0.2), connect_timeout_s=2.0)
    return GatewayConfig(broker, node, **fields)


@contextlib.asynccontextmanager
async def running(
    config: GatewayConfig, runtime: Runtime, cameras: Mapping[str, LiveSource] | None = None
) -> AsyncIterator[Gateway]:
    """Run a gateway for the body; then stop it, unless the body has."""
    ready = asyncio.Event()
    gateway = Gateway(config, runtime, cameras, on_ready=ready.set)
    serving = asyncio.create_task(gateway.run())
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({serving, waiting}, timeout=_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set(), "the gateway did not connect"
    try:
        yield gateway
    finally:
        await gateway.stop()
        await asyncio.wait_for(serving, 5)


def request(id: str, **fields: Any) -> dict[str, Any]:
    """Return a request."""
    return {"v": 1, "id": id, "client": "judge", "question": "What is there?", **fields}


async def stream_of(observer: Observer, id: str, timeout_s: float = _TIMEOUT_S) -> list[dict[str, Any]]:
    """Wait for the end of a request's answer, and return its messages."""
    await asyncio.to_thread(observer.wait_terminal, id, timeout_s)
    return [read_object(heard.payload) for heard in observer.stream(id)]


async def terminal_of(observer: Observer, id: str, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """Wait for the end of a request's answer, and return it."""
    messages = await stream_of(observer, id, timeout_s)
    return next(message for message in messages if message["type"] in TERMINAL)


async def until(condition: Callable[[], bool], timeout_s: float = _TIMEOUT_S) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (conditions of another thread)
            await asyncio.sleep(0.01)
