"""Memory, descriptors, threads and CPU time of a process, from Linux's /proc and its clocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["anonymous_kib", "cpu_s", "growth", "num_descriptors", "num_threads"]


def anonymous_kib(process_id: int | None = None) -> int:
    """Return the resident memory that no file backs, in KiB, of this process or another one.

    Raises:
        RuntimeError: this kernel does not tell.
    """
    return _number("RssAnon", process_id)


def num_descriptors(process_id: int | None = None) -> int:
    """Return how many files, sockets and pipes are open."""
    return len(list((_folder(process_id) / "fd").iterdir()))


def num_threads(process_id: int | None = None) -> int:
    """Return how many threads there are.

    Raises:
        RuntimeError: this kernel does not tell.
    """
    return _number("Threads", process_id)


def cpu_s(process_id: int) -> float:
    """Return the processor time that a process has taken so far with all its threads, to the nanosecond.

    Source:
        Linux, include/linux/posix-timers.h: the clock of a process is its id, inverted, and the kind of clock (2).
    """
    return time.clock_gettime(~process_id << 3 | 2)


def growth(readings: Sequence[float]) -> float:
    """Return the relative growth between the medians of the first and the last fifth.

    Single readings jump with what the allocator keeps.
    """
    window = max(1, len(readings) // 5)
    first, last = statistics.median(readings[:window]), statistics.median(readings[-window:])
    return (last - first) / first


def _folder(process_id: int | None) -> Path:
    return Path("/proc") / ("self" if process_id is None else str(process_id))


def _number(field: str, process_id: int | None) -> int:
    for line in (_folder(process_id) / "status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise RuntimeError(f"this kernel does not tell {field}; the benchmark needs Linux")
