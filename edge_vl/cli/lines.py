"""Lines that somebody types, or that a program writes, to standard input."""

from __future__ import annotations

import os
import select
import sys

__all__ = ["LineReader"]

_LOOK_EVERY_S = 0.2
_READ_BYTES = 65_536


class LineReader:
    """Reads standard input line by line, and lets a signal in at any time.

    A signal that arrives just before a blocking read is noticed only when the read returns, that is, never where nobody
    types. So this reader never blocks longer than 0.2 s at a time. Where standard input is no file of the system's
    (in tests), or the system cannot wait for it (Windows), it reads the plain way.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._has_ended = sys.stdin is None
        self._fd = _waitable_fd()

    def read(self) -> str | None:
        """Return the next line without its end, or None when there is none any more."""
        if self._fd is None:
            line = "" if self._has_ended else sys.stdin.readline()
            return line.strip() if line else None
        while b"\n" not in self._pending and not self._has_ended:
            if select.select([self._fd], [], [], _LOOK_EVERY_S)[0]:
                read = os.read(self._fd, _READ_BYTES)
                self._pending += read
                self._has_ended = not read
        if not self._pending:
            return None
        line_bytes, _, self._pending = self._pending.partition(b"\n")
        return line_bytes.decode(sys.stdin.encoding, errors="replace").strip()


def _waitable_fd() -> int | None:
    """Return the descriptor of standard input, or None if it cannot be waited for."""
    if sys.stdin is None:
        return None
    try:
        fd = sys.stdin.fileno()
        select.select([fd], [], [], 0)
    except (OSError, ValueError):
        return None
    return fd
