"""What `Client.ask` returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from edge_vl.errors import EdgeVLError, RequestError
from edge_vl.mqtt.exchange import Exchange
from edge_vl.mqtt.remote_answer import RemoteAnswer

__all__ = ["RemoteStream"]


class RemoteStream:
    """The text of an answer while it comes in.

    All texts joined are the answer's text, whatever was lost or came twice on the way, unless the gateway contradicts
    itself, which `RemoteAnswer.is_consistent` tells. The exchange goes on in the client; a stream that nobody holds any
    more cancels it. Only for the event loop that it was made in.
    """

    def __init__(self, exchange: Exchange, cancel: Callable[[], None], leave: Callable[[], None]) -> None:
        """Keep what is read, and how it is ended.

        Args:
            exchange: the request.
            cancel: asks the gateway to end it.
            leave: the same, and nothing of it is waited for any more.
        """
        self._exchange = exchange
        self._cancel = cancel
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._outcome: RemoteAnswer | EdgeVLError | None = None

    @property
    def id(self) -> str:
        """The request's."""
        return self._exchange.id

    @property
    def text(self) -> str:
        """The answer as far as it came."""
        return self._exchange.text

    def __aiter__(self) -> AsyncIterator[str]:
        """Return itself."""
        return self

    async def __anext__(self) -> str:
        """Wait for more text.

        Raises:
            RemoteError: the gateway answered with an error.
            Aborted: the gateway gave the request up or is gone, or it was cancelled.
            DeadlineExceeded: the answer was not there in time.
            BrokerError: the broker cannot be used any more.
            ImageError: a picture that was to be sent cannot be.
            RequestError: another event loop runs here than the one that the stream was made in.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RequestError("a stream is read in the event loop that its client runs in", field="client")
        if self._outcome is None:
            try:
                event = await self._exchange.events.get()
            except asyncio.CancelledError:
                self._leave()  # the task that waited is gone; nobody wants the answer
                raise
            if isinstance(event, str):
                return event
            self._outcome = event
            self._exchange.events.put_nowait(event)  # for another task that waits here, too
        if isinstance(self._outcome, EdgeVLError):
            raise self._outcome.again()
        raise StopAsyncIteration

    async def answer(self) -> RemoteAnswer:
        """Wait for the complete answer, passing over text not yet iterated; raises as the iteration does."""
        async for _ in self:
            pass
        assert isinstance(self._outcome, RemoteAnswer)
        return self._outcome

    def cancel(self) -> None:
        """Ask the gateway to end the request; the iteration then ends with `Aborted`, or with what came before."""
        self._cancel()

    async def aclose(self) -> None:
        """Cancel the request if it is not complete, and forget it."""
        self._leave()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self._leave()

    def __del__(self) -> None:
        """Cancel a request that nobody will read."""
        if hasattr(self, "_outcome") and not self._exchange.settled.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leave)
