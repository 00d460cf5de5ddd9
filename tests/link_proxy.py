"""A slow, lossy, unreliable link on the loopback interface: a TCP proxy whose manners may change while it runs.

TCP hides loss from both ends: what is lost is sent again, and everything behind it waits. So loss is a stall here.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

__all__ = ["Link", "LinkProxy"]

_SEGMENT_BYTES = 1460
"""What a packet carries on the usual kind of network; a smaller write is a packet of its own."""

_MAX_IN_FLIGHT = 256
"""Packets on their way in one direction; the sender is held up when there are more."""


@dataclass(frozen=True, slots=True)
class Link:
    """How a link behaves.

    Attributes:
        delay_s: each way; a round trip takes twice as long.
        jitter_s: up to so much more, drawn anew for each packet; the order stays.
        loss: share of packets that are lost, 0 to 1.
        retransmit_s: how much later a lost packet arrives; None: 0.2 s and a round trip, as TCP's first time-out.
        bytes_per_s: bandwidth each way; None: without bounds.
        wake_s: how much later the first packet of a connection arrives, as over a radio that wakes up.
        wake_packets: after so many packets a third of that is left, and so on.
        mode: `open`; `black_hole`: connections are accepted and nothing passes, in either direction, until it is over;
            `closed`: connections are ended as soon as they were accepted.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    retransmit_s: float | None = None
    bytes_per_s: float | None = None
    wake_s: float = 0.0
    wake_packets: float = 3.0
    mode: Literal["open", "black_hole", "closed"] = "open"

    @property
    def stall_s(self) -> float:
        """How much later a lost packet arrives."""
        return 0.2 + 2 * self.delay_s if self.retransmit_s is None else self.retransmit_s


class LinkProxy:
    """Passes connections on to another port of the loopback interface, over a link.

    All methods may be called from any thread.

    Attributes:
        port: where it listens.
        num_connections: accepted so far.
        bytes_up: passed on towards the target so far.
        bytes_down: passed back so far.
        num_lost: packets that were lost so far.
    """

    def __init__(self, target_port: int, link: Link | None = None, *, seed: int = 0) -> None:
        """Start to listen on a free port.

        Args:
            target_port: on the loopback interface; need not listen yet.
            link: how it behaves at first; None: as if there were nothing in between.
            seed: of jitter and loss.
        """
        self._target_port = target_port
        self._link = link or Link()
        self._random = random.Random(seed)
        self._connections: set[asyncio.Task[None]] = set()
        self.num_connections = self.bytes_up = self.bytes_down = self.num_lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._passes = asyncio.Event()
        self._obey()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link proxy", daemon=True)
        self._thread.start()
        self._is_ready.wait(10)

    @property
    def link(self) -> Link:
        """How it behaves."""
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        self._link = link  # packets that are on their way keep their delay
        self._loop.call_soon_threadsafe(self._obey)

    @property
    def num_open(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def cut(self) -> None:
        """End all connections that are open; what is on its way is lost. Returns when they are gone."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    def close(self) -> None:
        """Stop."""
        if self._thread.is_alive():
            self.cut()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._listener.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._listener))
        self._loop.call_soon(self._is_ready.set)
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._cut())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _cut(self) -> None:
        open_now = [*self._connections]
        for connection in open_now:
            connection.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        if self._link.mode == "closed":
            writer.transport.abort()
            return
        this = asyncio.current_task()
        assert this is not None
        self._connections.add(this)
        try:
            await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # an end has gone, or it was cut
        finally:
            writer.transport.abort()
            self._connections.discard(this)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passes.wait()
        up, to_target = await asyncio.open_connection("127.0.0.1", self._target_port)
        for end in (writer, to_target):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._direction(reader, to_target, is_up=True))
                directions.create_task(self._direction(up, writer, is_up=False))
        except* OSError:
            pass  # reset by one end: the other one is told by the end of its connection
        finally:
            to_target.transport.abort()

    async def _direction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool) -> None:
        """Pass on one direction until its sender has ended it."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_IN_FLIGHT)
        async with asyncio.TaskGroup() as ends:
            ends.create_task(self._take(reader, on_the_way))
            ends.create_task(self._deliver(on_the_way, writer, is_up=is_up))

    async def _take(self, reader: asyncio.StreamReader, on_the_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Read packets and decide when each arrives."""
        free_s = arrives_s = 0.0
        for number in itertools.count():
            packet = await reader.read(_SEGMENT_BYTES)
            link = self._link
            sent_s = self._loop.time()
            if packet and link.bytes_per_s is not None:
                free_s = max(free_s, sent_s) + len(packet) / link.bytes_per_s
                sent_s = free_s
            due_s = sent_s + link.delay_s + self._random.uniform(0.0, link.jitter_s)
            due_s += link.wake_s * math.exp(-number / link.wake_packets)
            if packet and self._random.random() < link.loss:
                self.num_lost += 1
                due_s += link.stall_s
            arrives_s = max(arrives_s, due_s)
            await on_the_way.put((arrives_s, packet))
            if not packet:
                return

    async def _deliver(
        self, on_the_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, *, is_up: bool
    ) -> None:
        """Hand each packet over when it is due."""
        while True:
            arrives_s, packet = await on_the_way.get()
            wait_s = arrives_s - self._loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await self._passes.wait()
            if not packet:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(packet)
            await writer.drain()
            if is_up:
                self.bytes_up += len(packet)
            else:
                self.bytes_down += len(packet)

    def _obey(self) -> None:
        if self._link.mode == "black_hole":
            self._passes.clear()
        else:
            self._passes.set()
