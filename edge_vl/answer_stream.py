"""What `Runtime.stream` and `Runtime.astream` return."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Self

from edge_vl.answer import Answer, Token
from edge_vl.errors import EdgeVLError
from edge_vl.request import Event, Generation, Request

__all__ = ["AnswerStream", "AsyncAnswerStream"]

Start = Callable[[Request], None]
"""Prepares a request and hands it to the scheduler; raises when the input is bad."""


class AnswerStream:
    """The tokens of one answer, then the answer.

    Iterate it once. Leaving it early, by `close`, by the end of its `with` block or by dropping it, cancels the
    request; so does `cancel`, from any thread.
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
        if isinstance(self._outcome, EdgeVLError):
            raise self._outcome
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


class AsyncAnswerStream:
    """The asynchronous twin of `AnswerStream`.

    Pictures are decoded on a helper thread when the iteration begins, so errors of the input are raised there.
    """

    def __init__(self, generation: Generation, start: Start) -> None:
        """Keep what is needed; nothing runs before the first `await`."""
        self._generation = generation
        self._start = start
        self._request: Request | None = None
        self._is_closed = False
        self._events: asyncio.Queue[Event] = asyncio.Queue()  # bounded by max_tokens
        self._outcome: Answer | EdgeVLError | None = None

    def __aiter__(self) -> AsyncIterator[Token]:
        """Return itself."""
        return self

    async def __anext__(self) -> Token:
        """Wait for the next token; raises as `AnswerStream.__next__` and as `Runtime.stream` do."""
        if self._outcome is None:
            event = await self._next_event()
            if isinstance(event, Token):
                return event
            self._outcome = event
        if isinstance(self._outcome, EdgeVLError):
            raise self._outcome
        raise StopAsyncIteration

    async def _next_event(self) -> Event:
        try:
            request = self._request or await self._begin()
            remaining_s = request.remaining_s
            if remaining_s is None or request.is_settled:
                return await self._events.get()
            try:
                return await asyncio.wait_for(self._events.get(), max(0.0, remaining_s))
            except TimeoutError:
                request.expire()
                return await self._events.get()
        except asyncio.CancelledError:
            self.cancel()  # the task that waited is gone; nobody wants the answer
            raise

    async def _begin(self) -> Request:
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._events.put_nowait, event)

        self._request = Request(self._generation, emit)
        if self._is_closed:
            self._request.cancel()
            return self._request
        try:
            await asyncio.to_thread(self._start, self._request)
        except EdgeVLError as error:
            self._request.settle(error)  # raised from here on, however often somebody iterates
        except BaseException:
            self._request.cancel()
            raise
        return self._request

    async def answer(self) -> Answer:
        """Wait for the complete answer, passing over tokens not yet iterated; raises as the iteration does."""
        async for _ in self:
            pass
        assert isinstance(self._outcome, Answer)
        return self._outcome

    def cancel(self) -> None:
        """End the request, from any thread."""
        self._is_closed = True
        if self._request is not None:
            self._request.cancel()

    async def aclose(self) -> None:
        """Cancel the request if it is not complete."""
        self.cancel()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.cancel()

    def __del__(self) -> None:
        """Cancel a request that nobody will read."""
        if getattr(self, "_request", None) is not None:
            self.cancel()
