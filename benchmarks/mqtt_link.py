"""The link to a broker beside aiomqtt's: CPU time of a message, and what unanswered attempts leave open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiomqtt

from benchmarks.process_memory import num_descriptors
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl.backoff import Backoff
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.session import Session
from tests.mosquitto import running_mosquitto

TOPIC = "edge_vl/node/response/client/id"
PAYLOAD = b'{"v":1,"id":"id","seq":1,"type":"delta","t_ms":123,"text":"hello","tokens":1}'

IN_FLIGHT = 20
TIMEOUT_S = 0.05

Rate = Callable[[int, int], Awaitable[float]]


def run(quick: bool) -> Result:
    """Measure both in turn against one mosquitto, then both against a host that never answers."""
    num_messages, num_runs, num_attempts = (500, 1, 20) if quick else (3000, 5, 200)
    rows: list[dict[str, Cell]] = []
    ways: tuple[tuple[str, Rate, Rate], ...] = (
        ("pipelined", ours_at_once, theirs_at_once),
        ("each awaited", ours_one_by_one, theirs_one_by_one),
    )
    ratios = {}
    with tempfile.TemporaryDirectory() as folder, running_mosquitto(Path(folder)) as broker:
        for way, ours, theirs in ways:
            report(f"{way}: {num_runs} runs of {num_messages} messages each")
            pairs = [
                tuple(asyncio.run(_alone(side, broker.port, num_messages)) for side in (ours, theirs))
                for _ in range(num_runs)
            ]
            us, them = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratios[way] = us / them
            rows.append({"what": f"CPU of a QoS 1 message, {way}, us", "edge_vl": us * 1e6, "aiomqtt": them * 1e6})
    report(f"{num_attempts} attempts that nobody answers")
    with silent_host() as port:
        left_by_us = asyncio.run(our_descriptors(port, num_attempts))
    with silent_host() as port:
        left_by_them = asyncio.run(their_descriptors(port, num_attempts))
    rows.append(
        {"what": f"descriptors more after {num_attempts} attempts", "edge_vl": left_by_us, "aiomqtt": left_by_them}
    )
    bars = {
        "CPU of a message over aiomqtt's, pipelined": Bar(ratios["pipelined"], 1.0),
        f"descriptors more after {num_attempts} unanswered attempts": Bar(left_by_us, 2),
    }
    return Result(bars, rows)


async def _alone(rate: Rate, port: int, num_messages: int) -> float:
    gc.collect()
    return await rate(port, num_messages)


async def ours_at_once(port: int, num_messages: int) -> float:
    """Return the CPU seconds of a message of ours, many under way at once."""
    async with _session(port) as session:
        began_s = time.process_time()
        await asyncio.gather(*[session.post(Outbound(TOPIC, PAYLOAD), "terminal") for _ in range(num_messages)])
        return (time.process_time() - began_s) / num_messages


async def ours_one_by_one(port: int, num_messages: int) -> float:
    """Return the CPU seconds of a message of ours, each sent when the one before is confirmed."""
    async with _session(port) as session:
        began_s = time.process_time()
        for _ in range(num_messages):
            await session.post(Outbound(TOPIC, PAYLOAD), "terminal")
        return (time.process_time() - began_s) / num_messages


async def theirs_at_once(port: int, num_messages: int) -> float:
    """Return the CPU seconds of a message of aiomqtt's, as many under way as of ours."""
    async with aiomqtt.Client("127.0.0.1", port, max_inflight_messages=IN_FLIGHT) as client:
        client.pending_calls_threshold = num_messages
        begun = asyncio.Semaphore(IN_FLIGHT)

        async def send() -> None:
            async with begun:
                await client.publish(TOPIC, PAYLOAD, 1)

        began_s = time.process_time()
        await asyncio.gather(*[send() for _ in range(num_messages)])
        return (time.process_time() - began_s) / num_messages


async def theirs_one_by_one(port: int, num_messages: int) -> float:
    """Return the CPU seconds of a message of aiomqtt's, each awaited."""
    async with aiomqtt.Client("127.0.0.1", port) as client:
        began_s = time.process_time()
        for _ in range(num_messages):
            await client.publish(TOPIC, PAYLOAD, 1)
        return (time.process_time() - began_s) / num_messages


async def our_descriptors(port: int, num_attempts: int) -> int:
    """Return how many more descriptors are open behind attempts of one session that nobody answers."""
    num_left = num_attempts
    enough = asyncio.Event()

    def note(state: str, text: str) -> None:
        nonlocal num_left
        num_left -= state == "unreachable"
        if num_left <= 0:
            enough.set()

    settings = BrokerSettings(
        port=port, protocol="3.1.1", connect_timeout_s=TIMEOUT_S, backoff=Backoff(first_s=0.001, cap_s=0.001)
    )
    session = Session(settings, filters={}, on_message=lambda inbound: None, on_state=note)
    opened = num_descriptors()
    running = asyncio.create_task(session.run())
    await enough.wait()
    await session.stop()
    await running
    gc.collect()
    return num_descriptors() - opened


async def their_descriptors(port: int, num_attempts: int) -> int:
    """Return the same of aiomqtt, with a new client for each attempt."""
    opened = num_descriptors()
    for _ in range(num_attempts):
        with contextlib.suppress(aiomqtt.MqttError):
            async with aiomqtt.Client("127.0.0.1", port, timeout=TIMEOUT_S):
                pass
    gc.collect()
    return num_descriptors() - opened


@contextlib.contextmanager
def silent_host() -> Iterator[int]:
    """Listen, and let the system accept what nobody will ever answer; the host itself opens no descriptors."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        yield int(listener.getsockname()[1])


@contextlib.asynccontextmanager
async def _session(port: int) -> AsyncIterator[Session]:
    settings = BrokerSettings(port=port, protocol="3.1.1")
    session = Session(settings, filters={}, on_message=lambda inbound: None)
    running = asyncio.create_task(session.run())
    await session.wait_connected(5)
    try:
        yield session
    finally:
        await session.stop()
        await running
