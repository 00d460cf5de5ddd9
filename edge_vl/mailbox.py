"""A mailbox of depth one: the newest thing waits, what it displaces is dropped and counted."""

from __future__ import annotations

import math
import threading
import time
from typing import Generic, TypeVar

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Hands things from one producer to one consumer; never holds up the producer, and never makes a queue.

    `put`, `end`, `close` and the properties may be called from any thread. The clock is the monotonic one.
    """

    def __init__(self) -> None:
        """Start empty and open."""
        self._condition = threading.Condition()
        self._waiting: T | None = None
        self._displaced: T | None = None  # by the one that waits, or by the one taken last
        self._is_wanted = False
        self._is_over = False
        self._is_closed = False
        self._num_dropped = 0
        self._error: BaseException | None = None

    @property
    def num_dropped(self) -> int:
        """Things that nobody will take: those displaced, and those that waited or came when it was closed."""
        return self._num_dropped

    @property
    def has_newer(self) -> bool:
        """Whether something waits to be taken."""
        return self._waiting is not None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    @property
    def error(self) -> BaseException | None:
        """What ended the producer; None: nothing, or it has not ended."""
        return self._error

    def put(self, item: T) -> None:
        """Let a thing wait in the place of the one that waited. Does not block."""
        with self._condition:
            if self._is_closed:
                self._num_dropped += 1
                return
            self._num_dropped += self._waiting is not None
            self._displaced, self._waiting = self._waiting, item
            self._is_wanted = False
            self._condition.notify_all()

    def restore(self) -> None:
        """Let the thing wait again that the one taken last had displaced, unless a newer one has come since."""
        with self._condition:
            if self._waiting is None and self._displaced is not None and not self._is_closed:
                self._displaced, self._waiting = None, self._displaced
                self._num_dropped -= 1

    def take(self, not_before_s: float = -math.inf) -> T | None:
        """Take the thing that waits; block until there is one.

        Args:
            not_before_s: moment on the monotonic clock before which nothing is taken, so that the newest is.

        Returns:
            None when it was closed, or when the producer has ended and nothing waits.
        """
        with self._condition:
            while not self._is_closed and (self._waiting is not None or not self._is_over):
                early_s = not_before_s - time.monotonic()
                if early_s > 0:
                    self._condition.wait(min(early_s, threading.TIMEOUT_MAX))
                elif self._waiting is not None:
                    item, self._waiting = self._waiting, None
                    return item
                else:
                    self._is_wanted = True
                    self._condition.notify_all()
                    self._condition.wait()
            return None

    def wait_until_wanted(self) -> bool:
        """Block the producer until somebody waits for a thing.

        Returns:
            False when the mailbox was closed.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._is_wanted or self._is_closed)
            return not self._is_closed

    def wait_until_closed(self, timeout_s: float) -> bool:
        """Block until it is closed, at most so long; say whether it is."""
        with self._condition:
            return self._condition.wait_for(lambda: self._is_closed, timeout_s)

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing more will come, and why. What waits may still be taken."""
        with self._condition:
            self._is_over, self._error = True, error
            self._condition.notify_all()

    def close(self) -> None:
        """Drop what waits, and wake everybody. May be called twice."""
        with self._condition:
            self._num_dropped += self._waiting is not None
            self._waiting = self._displaced = None
            self._is_closed = True
            self._condition.notify_all()
