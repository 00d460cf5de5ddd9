"""Memory and descriptors of this process, from Linux's /proc."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

__all__ = ["anonymous_kib", "growth", "num_descriptors"]


def anonymous_kib() -> int:
    """Return the resident memory that no file backs, in KiB.

    Raises:
        RuntimeError: this kernel does not tell.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise RuntimeError("this kernel does not tell RssAnon; the benchmark needs Linux")


def num_descriptors() -> int:
    """Return how many files, sockets and pipes are open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def growth(readings: Sequence[float]) -> float:
    """Return the relative growth between the medians of the first and the last fifth.

    Single readings jump with what the allocator keeps.
    """
    window = max(1, len(readings) // 5)
    first, last = statistics.median(readings[:window]), statistics.median(readings[-window:])
    return (last - first) / first
