"""One request of a client, from asking to its outcome."""

from __future__ import annotations

import asyncio
import time

from edge_vl.errors import Aborted, DeadlineExceeded, EdgeVLError, RemoteError
from edge_vl.mqtt import messages
from edge_vl.mqtt.remote_answer import RemoteAnswer
from edge_vl.mqtt.stream_assembly import StreamAssembly

__all__ = ["Event", "Exchange"]

_MAX_ERROR_CHARACTERS = 4096

Event = str | RemoteAnswer | EdgeVLError
"""What whoever reads a stream gets: text, and in the end an answer or an error."""


class Exchange:
    """One request. Settled once: by the gateway's last message, by the clock, or by who asked. Used in one event loop.

    Attributes:
        id: of the request.
        node: the gateway that has it; None: not known yet.
        events: for whoever reads the stream.
        settled: set with the outcome.
        sent_s: `time.monotonic()` when the request went out; None before.
        cancelled_s: likewise when somebody cancelled it.
        upload_s: seconds until the broker had all raw pictures; None: there were none.
        is_unheard: the broker said that nobody listened to the request.
    """

    def __init__(self, id: str, *, node: str | None, timeout_s: float) -> None:
        self.id = id
        self.node = node
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.settled = asyncio.Event()
        self.sent_s: float | None = None
        self.cancelled_s: float | None = None
        self.upload_s: float | None = None
        self.is_unheard = False
        self._timeout_s = timeout_s
        self._began_s = time.monotonic()
        self._first_text_s: float | None = None
        self._assembly = StreamAssembly()

    @property
    def has_begun(self) -> bool:
        """Whether anything of the answer came."""
        return self._assembly.has_begun

    @property
    def boot_id(self) -> str:
        """Which start of the gateway has the request; empty: not known."""
        return self._assembly.start.boot_id if self._assembly.start is not None else ""

    @property
    def text(self) -> str:
        """The answer as far as it came."""
        return self._assembly.text

    def take(self, node: str, message: messages.StreamMessage) -> None:
        """Take in a message of the stream that a gateway sends, or another one in its name."""
        if self.settled.is_set() or (self.has_begun and node != self.node):  # two may have taken it: one is heard
            return
        self.node = node
        text = self._assembly.take(message)
        if text:
            if self._first_text_s is None:
                self._first_text_s = time.monotonic() - self._began_s
            self.events.put_nowait(text)
        match self._assembly.terminal:
            case messages.End() as end:
                total_s = time.monotonic() - self._began_s
                start = self._assembly.start
                answer = RemoteAnswer.of(
                    start,
                    end,
                    is_consistent=self._assembly.is_consistent,
                    upload_s=self.upload_s,
                    first_text_s=self._first_text_s,
                    total_s=total_s,
                )
                self._settle(answer)
            case messages.ErrorMessage(error=facts):
                self._settle(self._error_of(facts))
            case messages.Aborted(reason=reason):
                self._settle(Aborted(reason, text=self.text))

    def fail(self, error: EdgeVLError) -> None:
        """End it with an error of this side."""
        self._settle(error)

    def expire(self, hint: str = "") -> None:
        """End it because nothing came in time; the hint says what may be the cause."""
        stage = "the answer" if self.has_begun else "waiting for a gateway" if self.sent_s is not None else "sending"
        late = DeadlineExceeded(self._timeout_s, stage=stage, text=self.text)
        if hint:
            late.args = (f"{late}; {hint}",)
        self._settle(late)

    def _settle(self, outcome: RemoteAnswer | EdgeVLError) -> None:
        if not self.settled.is_set():
            self.settled.set()
            self.events.put_nowait(outcome)

    def _error_of(self, facts: messages.ErrorFacts) -> EdgeVLError:
        message = facts.message[:_MAX_ERROR_CHARACTERS]
        remote = RemoteError(message, type=facts.type, param=None if facts.param is None else facts.param[:200])
        if facts.type != "deadline_exceeded":
            return remote
        what = "the age of the frame" if facts.param == "max_frame_age_ms" else "the deadline"
        late = DeadlineExceeded(self._timeout_s, stage="the gateway's work", text=self.text, what=what)
        late.args = (message,)
        late.__cause__ = remote
        return late
