"""What `Runtime.stream` returns."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from edge_vl.answer import Answer, Token
from edge_vl.errors import EdgeVLError
from edge_vl.request import Event, Generation, Progress, Request
from edge_vl.trace import Timings

__all__ = ["AnswerStream", "Start"]

Start = Callable[[Request], None]
"""Prepares a request and hands it to the scheduler; raises when the input is bad."""


class AnswerStream:
    """The tokens of one answer, then the answer.

    Iterate it once; if several threads do, each token reaches one of them, and the end all. Leaving it early, by
    `close`, by the end of its `with` block or by dropping it, cancels the request; so does `cancel`, from any thread.
    """

    def __init__(self, generation: Generation, start: Start) -> None:
        """Start the request."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._request = Request(generation, self._events.put)
        self._outcome: Answer | EdgeVLError | None = None
        start(self._request)

    def __iter__(self) -> Iterator[Token]:
        """Return itself."""
        return self

    def __next__(self) -> Token:
        """Wait for the next token.

        Raises:
            DeadlineExceeded: the deadline passed.
            Cancelled: somebody cancelled the request.
            EngineFault: an engine failed.
        """
        if self._outcome is None:
            event = self._next_event()
            if isinstance(event, Token):
                return event
            self._outcome = event
            self._events.put(event)  # for another thread that waits here, too
        if isinstance(self._outcome, EdgeVLError):
            raise self._outcome.again()
        raise StopIteration

    def _next_event(self) -> Event:
        remaining_s = self._request.remaining_s
        if remaining_s is None or self._request.is_settled:
            return self._events.get()
        try:
            return self._events.get(timeout=max(0.0, remaining_s))
        except queue.Empty:
            self._request.expire()
            return self._events.get()

    @property
    def answer(self) -> Answer:
        """The complete answer; waits for it, passing over tokens not yet iterated.

        Raises:
            DeadlineExceeded: the deadline passed.
            Cancelled: somebody cancelled the request.
            EngineFault: an engine failed.
        """
        for _ in self:
            pass
        assert isinstance(self._outcome, Answer)
        return self._outcome

    @property
    def progress(self) -> Progress:
        """How far the request has come, from measured costs."""
        return self._request.progress

    @property
    def timings(self) -> Timings:
        """What has been done so far, also of a request that failed."""
        return self._request.trace.timings()

    def cancel(self) -> None:
        """End the request; whoever iterates gets `Cancelled`. Work stops after the unit that runs."""
        self._request.cancel()

    def close(self) -> None:
        """Cancel the request if it is not complete."""
        self._request.cancel()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Cancel a request that nobody will read."""
        if hasattr(self, "_request"):
            self._request.cancel()
