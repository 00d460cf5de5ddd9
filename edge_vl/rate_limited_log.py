"""Log lines that somebody else can cause as often as he likes."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["RateLimitedLog", "tell_left_out"]

_MAX_KINDS = 256

_logs: weakref.WeakSet[RateLimitedLog] = weakref.WeakSet()
_logs_lock = threading.Lock()


@dataclass(slots=True)
class _Kind:
    """What is remembered of lines that are counted together.

    Attributes:
        credit: lines that may be written at once.
        seen_s: when the credit was right.
        num_left_out: lines since the last one written.
        level: of the last of those.
        text: likewise.
    """

    credit: float
    seen_s: float
    num_left_out: int = 0
    level: int = logging.WARNING
    text: str = ""


class RateLimitedLog:
    """Writes a few lines of each kind, then one in a while; the next one says how many were left out. For any thread.

    Kinds are what the program knows, never what a peer has sent: else he could make as many as he likes. Of more than
    256, the one unused longest is forgotten.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        every_s: float = 10.0,
        burst: int = 5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing written.

        Args:
            logger: where lines go.
            every_s: seconds in which one more line of a kind may be written.
            burst: lines of a kind that may be written at once.
            clock: the monotonic clock.
        """
        self._logger = logger
        self._every_s = every_s
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: OrderedDict[str, _Kind] = OrderedDict()
        with _logs_lock:
            _logs.add(self)

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

    def error(self, kind: str, message: str, *arguments: object) -> None:
        """Write an error, if it is time."""
        self._write(logging.ERROR, kind, message, arguments)

    def tell_left_out(self) -> None:
        """Write the last line of each kind of which some were left out, if it is time."""
        now_s = self._clock()
        with self._lock:
            due = [kind for kind in self._kinds.values() if kind.num_left_out and self._may_write(kind, now_s)]
            lines = [(kind.level, kind.text, kind.num_left_out - 1) for kind in due]
            for kind in due:
                kind.num_left_out, kind.text = 0, ""
        for level, text, num_left_out in lines:
            self._logger.log(level, "%s%s", text, _more(num_left_out))

    def _write(self, level: int, kind: str, message: str, arguments: tuple[object, ...]) -> None:
        now_s = self._clock()
        with self._lock:
            known = self._kinds.setdefault(kind, _Kind(float(self._burst), now_s))
            self._kinds.move_to_end(kind)
            if len(self._kinds) > _MAX_KINDS:
                self._kinds.popitem(last=False)
            num_left_out = known.num_left_out
            is_time = self._may_write(known, now_s)
            known.num_left_out = 0 if is_time else num_left_out + 1
            if not is_time:
                known.level, known.text = level, (message % arguments if arguments else message)
        if is_time:
            self._logger.log(level, f"{message}{_more(num_left_out)}", *arguments)

    def _may_write(self, kind: _Kind, now_s: float) -> bool:
        """Say whether one more line may be written, and take it as written."""
        kind.credit = min(self._burst, kind.credit + (now_s - kind.seen_s) / self._every_s)
        kind.seen_s = now_s
        if kind.credit < 1:
            return False
        kind.credit -= 1
        return True


def tell_left_out() -> None:
    """Let every log that has left lines out write the last of them; to be called from time to time."""
    with _logs_lock:
        logs = list(_logs)
    for log in logs:
        log.tell_left_out()


def _more(num_left_out: int) -> str:
    return f" (and {num_left_out} more since the last such line)" if num_left_out else ""
