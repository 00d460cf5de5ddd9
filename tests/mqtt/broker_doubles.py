"""Doubles of brokers that misbehave in ways to which no real one can be brought; real ones stand beside them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["CONNACK", "CONNACK_5", "CONNACK_OLD_REFUSAL", "Misbehaved", "misbehaving", "packet", "suback"]

CONNACK = bytes([0x20, 2, 0, 0])
"""Accepted, as 3.1.1 says it."""

CONNACK_5 = bytes([0x20, 3, 0, 0, 0])
"""Accepted, as 5 says it."""

CONNACK_OLD_REFUSAL = bytes([0x20, 2, 0, 1])
"""`unacceptable protocol version`, as a broker says it that has never heard of MQTT 5."""

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one packet: its first byte, and what follows the length."""
    first = (await reader.readexactly(1))[0]
    length, shift = 0, 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return first, await reader.readexactly(length)


def suback(body: bytes) -> bytes:
    """Grant a subscription of 3.1.1 with one filter."""
    return bytes([0x90, 3]) + body[:2] + bytes([1])


class Misbehaved:
    """One such broker.

    Attributes:
        port: where it listens.
        connected_s: when connections were made, by the clock of the loop.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.connected_s: list[float] = []
        self._news = asyncio.Event()

    def connected(self) -> None:
        """Note a connection."""
        self.connected_s.append(asyncio.get_running_loop().time())
        self._news.set()

    async def until_connected(self, count: int, limit_s: float = 15.0) -> None:
        """Wait until so many connections were made."""
        async with asyncio.timeout(limit_s):
            while len(self.connected_s) < count:
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def misbehaving(behaviour: Behaviour) -> AsyncIterator[Misbehaved]:
    """Run one for the body; connections are closed when `behaviour` ends."""

    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        double.connected()
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await behaviour(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the double
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            handlers.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    double = Misbehaved(server.sockets[0].getsockname()[1])
    try:
        yield double
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        if handlers:
            await asyncio.wait(handlers)
