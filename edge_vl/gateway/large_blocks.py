"""Memory of large pictures given back to the system as soon as it is free."""

from __future__ import annotations

import contextlib
import ctypes
import sys

__all__ = ["return_large_blocks"]

_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 8 << 20


def return_large_blocks() -> bool:
    """Let the C library give blocks of 8 MiB and more back when they are freed. For the whole process.

    glibc raises its threshold to the largest block that was ever freed, up to 32 MiB, and keeps what is smaller for the
    thread that had it: pictures that are decoded one after the other, each on another thread, then take as much memory
    as if they were decoded at the same time. Setting the threshold stops that.

    Source: mallopt(3) of Linux, M_MMAP_THRESHOLD.

    Returns:
        Whether there is such a C library.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):  # another C library, such as musl
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES))
    return False
