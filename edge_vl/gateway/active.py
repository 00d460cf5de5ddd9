"""A request that was taken, until its last message is with the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field

from edge_vl.async_answer_stream import AsyncAnswerStream
from edge_vl.gateway.claims import ClaimKey
from edge_vl.gateway.journal import JournalEntry
from edge_vl.gateway.stream_writer import StreamWriter
from edge_vl.mqtt.messages import AbortReason, Request

__all__ = ["ActiveRequest"]


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """One request.

    Attributes:
        request: what is asked.
        topic: where its answer goes.
        received_s: when it came, on the monotonic clock.
        deadline_ms: of the whole answer, from then.
        writer: writes its answer.
        claim: what it is claimed by; None: it was sent to this gateway and no other.
        entry: what it is called in the journal; None: it is not in there.
        begun_s: when its turn came; None: it still waits.
        abort_reason: why it ends early; None: it does not.
        is_told: whether its last message was handed to the link.
        stream: its answer, while there is one.
        task: what works on it.
        expiry: ends it when it has waited for too long.
    """

    request: Request
    topic: str
    received_s: float
    deadline_ms: int
    writer: StreamWriter
    claim: ClaimKey | None = None
    entry: JournalEntry | None = None
    begun_s: float | None = None
    abort_reason: AbortReason | None = None
    is_told: bool = False
    stream: AsyncAnswerStream | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    expiry: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def client(self) -> str:
        """Who asks."""
        return self.request.client

    @property
    def turn_of(self) -> Hashable | None:
        """Which conversation it is a turn of."""
        name = self.request.conversation
        return None if name is None else (self.request.client, name)

    @property
    def limit_s(self) -> float:
        """Moment on the monotonic clock at which the answer is too late."""
        return self.received_s + self.deadline_ms / 1000

    def stop_work(self) -> None:
        """End the work on it. Its end still has to be written, by whoever works on it, unless it is dropped."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        if self.stream is not None:
            self.stream.cancel()
        elif self.task is not None:
            self.task.cancel()
