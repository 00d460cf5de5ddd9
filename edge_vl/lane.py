"""A lane: one permanent thread that works its jobs off in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

__all__ = ["Lane"]

P = ParamSpec("P")
T = TypeVar("T")


class Lane:
    """One ordered worker. An engine's object is loaded, used and closed on the same lane.

    Native compute that moves between threads can lose its warm thread teams, so a lane keeps its thread for life.
    Whoever submits bounds how much waits; the lane itself does not.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # what is dropped meanwhile may submit its own end
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"edge-vl-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a job.

        Returns:
            Its future; an exception of the job arrives there.

        Raises:
            RuntimeError: the lane is closed.
        """
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = job(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._is_closed:
                raise RuntimeError("the lane is closed")
            self._jobs.put(work)
        return future

    def post(self, job: Callable[[], None]) -> None:
        """Queue a job that nobody waits for and that does not raise; cheaper than `submit`.

        Raises:
            RuntimeError: the lane is closed.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the lane is closed")
            self._jobs.put(job)

    @property
    def has_jobs(self) -> bool:
        """Whether something is queued behind the job that runs."""
        return not self._jobs.empty()

    def finish(self) -> None:
        """Take no more jobs; the thread ends after those that are queued. From any thread."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)

    def close(self, timeout_s: float | None = None) -> None:
        """Finish and wait for the thread, at most `timeout_s`. May be called twice, from any thread but the lane's."""
        self.finish()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # a finished job must not keep its arguments alive while the lane waits
