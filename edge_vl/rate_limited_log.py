"""Log lines that somebody else can cause as often as he likes."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["RateLimitedLog"]

_MAX_KINDS = 256


class RateLimitedLog:
    """Writes one line of each kind in a while; the next one says how many were left out. May be used by any thread.

    Kinds are what the program knows, never what a peer has sent: else he could make as many as he likes. Of more than
    256, the one unused longest is forgotten.
    """

    def __init__(
        self, logger: logging.Logger, *, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with nothing written.

        Args:
            logger: where lines go.
            every_s: least seconds between two lines of one kind.
            clock: the monotonic clock.
        """
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def info(self, kind: str, message: str, *arguments: object) -> None:
        """Write an information, if it is time."""
        self._write(logging.INFO, kind, message, arguments)

    def warning(self, kind: str, message: str, *arguments: object) -> None:
        """Write a warning, if it is time.

        Args:
            kind: what lines are counted together.
            message: as `logging` takes it.
            *arguments: of the message.
        """
        self._write(logging.WARNING, kind, message, arguments)

    def _write(self, level: int, kind: str, message: str, arguments: tuple[object, ...]) -> None:
        now_s = self._clock()
        with self._lock:
            last_s, num_left_out = self._kinds.get(kind, (float("-inf"), 0))
            is_time = now_s - last_s >= self._every_s
            self._kinds[kind] = (now_s, 0) if is_time else (last_s, num_left_out + 1)
            self._kinds.move_to_end(kind)
            if len(self._kinds) > _MAX_KINDS:
                self._kinds.popitem(last=False)
        if is_time:
            more = " (and %d more since the last such line)" if num_left_out else ""
            self._logger.log(level, message + more, *arguments, *([num_left_out] if num_left_out else []))
