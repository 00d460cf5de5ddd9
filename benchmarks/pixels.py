"""How long it takes to normalise a tile: compiled kernels against the NumPy reference."""

from __future__ import annotations

import statistics
import time

import numpy as np

import edge_vl_kernels
from benchmarks.progress import report
from benchmarks.result import Bar, Result

MIN_SPEEDUP = 1.5


def run(quick: bool) -> Result:
    """Normalise tiles of three sizes with each instruction set in turn, into the same buffer."""
    num_runs = 50 if quick else 400
    isas = ["reference", *([edge_vl_kernels.status().isa] if edge_vl_kernels.status().compiled else [])]
    table: list[dict[str, str | int | float]] = []
    for side in (64, 384, 512):
        report(f"{side}x{side}, {num_runs} runs of {', '.join(isas)}")
        pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
        out = np.empty((3, side, side), np.float32)
        times_s: dict[str, list[float]] = {isa: [] for isa in isas}
        for _ in range(num_runs):
            for isa in isas:
                started_s = time.perf_counter()
                edge_vl_kernels.normalize_tile(pixels, 1 / 255, (0.5,) * 3, (0.5,) * 3, out=out, isa=isa)
                times_s[isa].append(time.perf_counter() - started_s)
        for isa, times in times_s.items():
            table.append(
                {"tile": side, "isa": isa, "median_ms": statistics.median(times) * 1e3, "min_ms": min(times) * 1e3}
            )
    bars = {}
    if len(isas) == 2:
        slow, fast = (float(row["median_ms"]) for row in table if row["tile"] == 512)
        bars["speedup_512"] = Bar(slow / fast, MIN_SPEEDUP, at_least=True)
    return Result(bars, table)
