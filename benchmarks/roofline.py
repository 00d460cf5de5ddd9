"""How fast this machine reads memory and multiplies: the limits of every kernel.

Memory is read by NumPy's `max` over arrays far larger than any cache, which does nothing else as fast. Arithmetic is
measured with a C loop of fused float32 multiply-adds on registers where there is a compiler, otherwise with a matrix
product, which reaches somewhat less: the fraction of the limit then comes out too high, and the table says so. The best
of several repetitions counts, since a limit is what nothing exceeds. Several threads work on arrays of their own.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.progress import report
from benchmarks.result import Cell, Result
from edge_vl.machine import usable_cores

__all__ = ["Roofline", "measure_roofline"]

_SOURCE = Path(__file__).with_name("fma_peak.c")
_COMPILE_TIMEOUT_S = 60
_READ_BYTES = 256 * 2**20
_FMA_ROUNDS = 1_000_000
_PRODUCT_SIDE = 1024
_COMPILED, _PRODUCT = "multiply-adds on registers", "a matrix product"


@dataclass(frozen=True, slots=True)
class Roofline:
    """What a number of threads reach together.

    Attributes:
        threads: how many.
        read_bytes_per_s: from memory.
        flops_per_s: float32; a multiply-add is two.
        flops_from: what measured them.
    """

    threads: int
    read_bytes_per_s: float
    flops_per_s: float
    flops_from: str = _COMPILED

    def limit_s(self, num_bytes: float, num_flops: float) -> float:
        """Return the least time for reading so many bytes and computing so much, both at once."""
        return max(num_bytes / self.read_bytes_per_s, num_flops / self.flops_per_s)

    def limited_by(self, num_bytes: float, num_flops: float) -> str:
        """Say which of the two takes longer: `memory` or `arithmetic`."""
        is_memory = num_bytes / self.read_bytes_per_s > num_flops / self.flops_per_s
        return "memory" if is_memory else "arithmetic"


def measure_roofline(threads: int, *, quick: bool = False) -> Roofline:
    """Measure both limits with so many threads at once."""
    repetitions = 3 if quick else 10
    arrays = [np.zeros(_READ_BYTES // threads // 4, np.float32) for _ in range(threads)]
    for array in arrays:
        array.fill(1)  # pages of zeros that nobody wrote to are all the same one
    with ThreadPoolExecutor(threads) as workers, _arithmetic(threads) as (compute, source):
        read_s = [_together(workers, threads, lambda i: arrays[i].max()) for _ in range(repetitions)]
        flops_per_s = []
        for _ in range(repetitions):
            counted: list[int] = []
            took_s = _together(workers, threads, lambda i: counted.append(compute(i)))  # noqa: B023
            flops_per_s.append(sum(counted) / took_s)
    return Roofline(threads, sum(array.nbytes for array in arrays) / min(read_s), max(flops_per_s), source)


def run(quick: bool) -> Result:
    """Measure one thread, and all of them."""
    table: list[dict[str, Cell]] = []
    for threads in sorted({1, usable_cores()}):
        found = measure_roofline(threads, quick=quick)
        report(f"{threads} threads: {found.read_bytes_per_s / 1e9:.1f} GB/s, {found.flops_per_s / 1e9:.0f} GFLOP/s")
        table.append(
            {
                "threads": threads,
                "read_gb_per_s": round(found.read_bytes_per_s / 1e9, 2),
                "gflop_per_s": round(found.flops_per_s / 1e9, 1),
                "measured_with": found.flops_from,
            }
        )
    return Result({}, table)


def _together(workers: ThreadPoolExecutor, threads: int, work: Callable[[int], object]) -> float:
    """Return the seconds until the last of the threads is done."""
    started_s = time.perf_counter()
    list(workers.map(work, range(threads)))
    return time.perf_counter() - started_s


@contextmanager
def _arithmetic(threads: int) -> Iterator[tuple[Callable[[int], int], str]]:
    """Give what a thread is to compute, which returns how many operations that was, and its name."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = _compiled(Path(folder) / "fma_peak.so")
        if compiled is not None:
            yield lambda thread: int(compiled(_FMA_ROUNDS)), _COMPILED
            return
    sides = [np.full((_PRODUCT_SIDE, _PRODUCT_SIDE), 0.5, np.float32) for _ in range(threads)]

    def multiply(thread: int) -> int:
        np.matmul(sides[thread], sides[thread])
        return 2 * _PRODUCT_SIDE**3

    yield multiply, _PRODUCT


def _compiled(library: Path) -> Callable[[int], int] | None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    flags = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
    command = [compiler, *flags, str(_SOURCE), "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_COMPILE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    function = ctypes.CDLL(str(library)).fma_peak
    function.restype, function.argtypes = ctypes.c_longlong, [ctypes.c_longlong]
    return function
