"""Another process's wall clock, set back and ahead while it runs, without touching this machine's.

A small library is put before libc: it shifts what CLOCK_REALTIME tells, and leaves the monotonic clock alone.
libfaketime does more, but its version 0.9.10 breaks the sleep of Python 3.11 and later.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

__all__ = ["WallClock", "has_compiler"]

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t shift_s(void) {
  static volatile int64_t *shared;
  if (!shared) {
    const char *path = getenv("WALL_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    void *found = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED) return 0;
    shared = found;
  }
  return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
  int code = (int)syscall(SYS_clock_gettime, clock, found);
  if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += shift_s();
  return code;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
  int code = (int)syscall(SYS_gettimeofday, found, zone);
  if (!code && found) found->tv_sec += shift_s();
  return code;
}

time_t time(time_t *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found) *found = now.tv_sec;
  return now.tv_sec;
}
"""


def has_compiler() -> bool:
    """Whether the library can be made here."""
    return shutil.which("gcc") is not None


class WallClock:
    """The clock of the processes that are started with `environment`.

    Attributes:
        environment: variables that such a process needs.
    """

    def __init__(self, folder: Path) -> None:
        """Make the library in a folder."""
        source, library, self._file = folder / "wall_clock.c", folder / "wall_clock.so", folder / "wall_clock"
        source.write_text(_SOURCE)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self._file.write_bytes(struct.pack("=q", 0))
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._file)}

    def shift(self, seconds: int) -> None:
        """Set the clock so many seconds ahead of the true time, or back; at once."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:8] = struct.pack("=q", seconds)
