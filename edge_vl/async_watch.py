"""The asynchronous twin of a watch. Apart from it, so that a watch does not load asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from edge_vl.answer import Answer
from edge_vl.frame import Frame
from edge_vl.watch import Watch
from edge_vl.watch_counts import WatchCounts

__all__ = ["AsyncWatch"]


class AsyncWatch:
    """Iterates asynchronously over the answers of a watch.

    Each answer is waited for on a helper thread. A wait that is given up, by `asyncio.wait_for` say, loses nothing: the
    next one gets the answer.
    """

    def __init__(self, watch: Watch) -> None:
        """Take over a watch."""
        self._watch = watch
        self._coming: asyncio.Future[Answer | None] | None = None

    @property
    def counts(self) -> WatchCounts:
        """What has become of the frames so far."""
        return self._watch.counts

    @property
    def frame(self) -> Frame | None:
        """The frame that the last answer is about; None before the first answer."""
        return self._watch.frame

    def __aiter__(self) -> AsyncIterator[Answer]:
        """Return itself."""
        return self

    async def __anext__(self) -> Answer:
        """Wait for the next answer; raises as `Watch.__next__` does, `StopAsyncIteration` at the end."""
        if self._coming is None:
            self._coming = _on_thread(self._watch)
        coming = self._coming
        try:
            answer = await asyncio.shield(coming)
        finally:
            if coming.done():
                self._coming = None
        if answer is None:
            raise StopAsyncIteration
        return answer

    def close(self, timeout_s: float = 0.0) -> None:
        """End the watch, from any thread; whoever waits gets the end of the iteration."""
        self._watch.close(timeout_s)

    async def aclose(self) -> None:
        """End the watch and wait a moment for its source."""
        await asyncio.to_thread(self._watch.close)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()


def _on_thread(watch: Watch) -> asyncio.Future[Answer | None]:
    """Wait for an answer on a thread; None at the end.

    It is a thread of its own, and a daemon: a watch that nobody closed must not hold up the end of the program.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer | None] = loop.create_future()

    def settle(answer: Answer | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    def wait() -> None:
        answer: Answer | None = None
        trouble: Exception | None = None
        try:
            answer = next(watch, None)
        except Exception as error:
            trouble = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, answer, trouble)

    threading.Thread(target=wait, name="edge-vl-awatch", daemon=True).start()
    return future
