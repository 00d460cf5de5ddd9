"""A thread that notices calls that do not come back, and wakes who asked to be woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["OpWatch"]

_POLL_S = 0.25
_IDLE_ROUNDS = 8


class OpWatch:
    """Calls `look` every now and then while there is work, and sleeps without any."""

    def __init__(self, look: Callable[[], bool]) -> None:
        """Prepare; the thread starts with the first work.

        Args:
            look: looks for hung calls; returns whether there is work. Called on the watch's thread.
        """
        self._look = look
        self._condition = threading.Condition()
        self._is_awake = False
        self._is_closed = False
        self._wake_at_s: float | None = None
        self._wake: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def note_work(self) -> None:
        """Be awake from now on, until there is no work."""
        if self._is_awake:
            return
        with self._condition:
            if self._is_closed:
                return
            self._is_awake = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="edge-vl-watch", daemon=True)
                self._thread.start()
            self._condition.notify()

    def wake_in(self, delay_s: float, wake: Callable[[], None]) -> None:
        """Call `wake` once after a delay, on the watch's thread; a later call replaces an earlier one."""
        self.note_work()
        with self._condition:
            self._wake_at_s, self._wake = time.monotonic() + delay_s, wake
            self._condition.notify()

    def finish(self) -> None:
        """Let the thread end. Does not wait."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()

    def close(self) -> None:
        """End the thread, and wait for that."""
        self.finish()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        idle_rounds = 0
        while True:
            with self._condition:
                if self._is_closed:
                    return
                if not self._is_awake:
                    self._condition.wait()
                    idle_rounds = 0
                    continue
                now_s = time.monotonic()
                due_s = _POLL_S if self._wake_at_s is None else min(_POLL_S, self._wake_at_s - now_s)
                if due_s > 0:
                    self._condition.wait(due_s)
                wake = None
                if self._wake_at_s is not None and time.monotonic() >= self._wake_at_s:
                    wake, self._wake, self._wake_at_s = self._wake, None, None
            if wake is not None:
                wake()
            idle_rounds = 0 if self._look() else idle_rounds + 1
            if idle_rounds >= _IDLE_ROUNDS:
                self._is_awake = False
                if self._look():  # it began between the look before and falling asleep
                    self._is_awake = True
                idle_rounds = 0
