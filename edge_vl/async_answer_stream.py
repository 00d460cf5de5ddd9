"""What `Runtime.astream` returns. Apart from its twin because asyncio is a fifth of the time of `import edge_vl`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from edge_vl.answer import Answer, Token
from edge_vl.answer_stream import Start
from edge_vl.errors import EdgeVLError
from edge_vl.request import Event, Generation, Request

__all__ = ["AsyncAnswerStream"]


class _Mailbox:
    """Takes events from any thread into an event loop. The request holds it, not the stream, which may be dropped."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()  # bounded by max_tokens
        self.loop: asyncio.AbstractEventLoop | None = None

    def put(self, event: Event) -> None:
        if self.loop is None:  # cancelled before anybody waits
            self.events.put_nowait(event)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class AsyncAnswerStream:
    """The asynchronous twin of `AnswerStream`.

    Pictures are decoded on a helper thread when the iteration begins, so errors of the input are raised there.
    """

    def __init__(self, generation: Generation, start: Start) -> None:
        """Start the clock; nothing else happens before the first `await`."""
        self._mailbox = _Mailbox()
        self._request = Request(generation, self._mailbox.put)
        self._start: Start | None = start
        self._starting: asyncio.Task[Exception | None] | None = None
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
            self._mailbox.events.put_nowait(event)  # for another task that waits here, too
        if isinstance(self._outcome, EdgeVLError):
            raise self._outcome.again()
        raise StopAsyncIteration

    async def _next_event(self) -> Event:
        try:
            if self._start is not None:
                await self._begin(self._start)
            remaining_s = self._request.remaining_s
            if remaining_s is None or self._request.is_settled:
                return await self._mailbox.events.get()
            try:
                return await asyncio.wait_for(self._mailbox.events.get(), max(0.0, remaining_s))
            except TimeoutError:
                self._request.expire()
                return await self._mailbox.events.get()
        except asyncio.CancelledError:
            self.cancel()  # the task that waited is gone; nobody wants the answer
            raise

    async def _begin(self, start: Start) -> None:
        self._start = None
        self._mailbox.loop = asyncio.get_running_loop()
        if self._request.is_settled:
            return
        self._starting = asyncio.create_task(asyncio.to_thread(self._prepare, start, self._request))
        done, _ = await asyncio.wait({self._starting}, timeout=self._request.remaining_s)
        if not done:
            self._request.expire()  # the helper thread finds out when the picture is there
        elif (error := self._starting.result()) is not None:
            raise error

    @staticmethod
    def _prepare(start: Start, request: Request) -> Exception | None:
        """Start a request on the helper thread; errors of the input become its outcome, others are returned."""
        is_started = False
        try:
            start(request)
            is_started = True
        except EdgeVLError as error:
            request.settle(error.with_traceback(None))
        except Exception as error:
            request.cancel()
            return error
        finally:
            if not is_started:
                request.leave()  # it was refused before the runtime had it
        return None

    async def answer(self) -> Answer:
        """Wait for the complete answer, passing over tokens not yet iterated; raises as the iteration does."""
        async for _ in self:
            pass
        assert isinstance(self._outcome, Answer)
        return self._outcome

    def cancel(self) -> None:
        """End the request, from any thread."""
        self._request.cancel()

    @property
    def is_released(self) -> bool:
        """Whether the runtime has let go of the request. Short after its end it may not have: see `released`."""
        return self._starting is None or self._request.has_left

    async def released(self) -> None:
        """Wait until the runtime has let go of the request, so that there is room for another.

        A request that was cancelled or came too late holds its room until the unit of work that runs is over.
        """
        if self._starting is None:  # it never began
            return
        loop, left = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(left.set)

        self._request.when_left(tell)
        await left.wait()

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
        if hasattr(self, "_outcome"):
            self.cancel()
