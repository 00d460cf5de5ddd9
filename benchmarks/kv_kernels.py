"""Decode attention over a full KV cache, one thread: our kernels against ONNX Runtime's.

One row is appended and attends to all entries of one layer; ONNX Runtime's operator for it is GroupQueryAttention. The
systems take turns call by call, so that none finds its cache where it left it, as in a model of many layers; ratios are
medians over the rounds. ONNX Runtime's node is bound once and writes in place, and its call costs some ten microseconds
besides; ours is one step that is prepared once, as for all layers of a model. All get the same rows, and what they
return is compared before anything is measured.

A figure's limit is what this machine, measured just before, needs for reading the entries or for the multiply-adds in
float32, whichever takes longer. A kernel that multiplies integers could beat it, and so could one whose entries the
last cache of the processor has kept since the last round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import edge_vl_kernels
from benchmarks.gqa_node import CachePrecision, GqaNode
from benchmarks.kv_rows import KVRowsSource, append_rows
from benchmarks.paged_layer import NUM_SINKS, PagedLayer, Row, uniform_format
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from benchmarks.roofline import Roofline, measure_roofline
from edge_vl_kernels.kv import KVKernels
from edge_vl_kernels.kv_format import (
    BLOCK_ENTRIES,
    KVGeometry,
    Precision,
)
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.paged_cache import PagedKVCache

MIN_OF_INT8, MIN_OF_FP32 = 2.5, 4.0
WIDE, NARROW = KVGeometry(1, 16, 4, 128), KVGeometry(1, 9, 3, 64)
SHORT, LONG = 8192, 65536
OURS: tuple[Precision, ...] = ("f32", "f16", "int8", "int4")

TOLERANCES = {"f32": 1e-4, "f16": 2e-3, "int8": 0.03, "int4": 0.4}
"""Relative errors of the result, by precision of the cache: a system beyond it does not do the same work. Normally
distributed entries are the worst that can be quantised."""


class System(Protocol):
    """Attention of one layer over a full cache."""

    @property
    def context(self) -> NDArray[np.float32]:
        """What the last run returned, in any shape."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that a run reads of the cache."""
        ...

    def run(self) -> None:
        """Append the row and attend; the same every time."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured together.

    Attributes:
        geometry: of the layer.
        num_entries: in the cache.
        ours: precisions of our caches.
        theirs: precisions of ONNX Runtime's.
    """

    geometry: KVGeometry
    num_entries: int
    ours: Sequence[Precision]
    theirs: Sequence[CachePrecision]

    @property
    def name(self) -> str:
        """For tables."""
        size = self.geometry
        return f"{size.num_query_heads}q/{size.num_kv_heads}kv/{size.head_dim}, {self.num_entries}"

    @property
    def num_flops(self) -> int:
        """Operations of one row: scores and sums."""
        return 4 * self.num_entries * self.geometry.num_query_heads * self.geometry.head_dim


def run(quick: bool) -> Result:
    """Measure every case, then what it costs to append and to close a block."""
    limits = measure_roofline(1, quick=quick)
    short, long = (1024, 4096) if quick else (SHORT, LONG)
    everything: Sequence[CachePrecision] = ("f32", "int8", "int4")
    cases = (
        Case(WIDE, short, OURS, everything),
        Case(NARROW, short, OURS, everything),
        Case(WIDE, long, OURS[1:], ()),
    )
    num_rounds = 5 if quick else 100
    table: list[dict[str, Cell]] = []
    bars: dict[str, Bar] = {}
    for case in cases:
        report(f"{case.name}, {num_rounds} rounds")
        rounds, nbytes = _measure(case, num_rounds)
        table += _rows(case, rounds, nbytes, limits)
        if case.geometry == WIDE and not quick:
            bars |= _bars(case, rounds)
    for precision in OURS:
        table.append(_appending(precision, num_rounds))
    return Result(bars, table)


def _bars(case: Case, rounds: dict[str, list[float]]) -> dict[str, Bar]:
    int8 = rounds["ours int8"]
    if case.num_entries == SHORT:
        return {
            "int8, speed as a multiple of ONNX Runtime's int8": Bar(
                _ratio(rounds["onnxruntime int8"], int8), MIN_OF_INT8, at_least=True
            ),
            "int8, speed as a multiple of ONNX Runtime's fp32": Bar(
                _ratio(rounds["onnxruntime f32"], int8), MIN_OF_FP32, at_least=True
            ),
        }
    return {
        f"{name}, time as a share of our f16 at {case.num_entries}": Bar(
            _ratio(rounds[f"ours {name}"], rounds["ours f16"]), 1.0
        )
        for name in ("int8", "int4")
    }


def _ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of the rounds."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def _measure(case: Case, num_rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the seconds of every call and the bytes that it reads, by system."""
    geometry = case.geometry
    source = KVRowsSource(1, geometry.num_kv_heads, geometry.head_dim, max_entries=case.num_entries)
    random = np.random.default_rng(1)
    query, key, value = (
        random.standard_normal((heads, geometry.head_dim), np.float32)
        for heads in (geometry.num_query_heads, geometry.num_kv_heads, geometry.num_kv_heads)
    )
    row = (query, key, value)
    keys, values = (source.entries(0, is_value, case.num_entries) for is_value in (False, True))
    ours = {f"ours {kind}": PagedLayer(geometry, source, case.num_entries, kind, row) for kind in case.ours}
    systems: dict[str, System] = dict(ours)
    for kind in case.theirs:
        node = GqaNode(geometry, keys, values, kind)
        node.set_row(*row)
        systems[f"onnxruntime {kind}"] = node
    _check_equal(systems, _expected(keys, values, row))
    rounds: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(num_rounds + 2):
        for name, system in systems.items():
            took_s = _seconds(system.run)
            if number >= 2:  # the first ones warm up
                rounds[name].append(took_s)
    nbytes = {name: system.nbytes for name, system in systems.items()}
    for layer in ours.values():
        layer.close()
    return rounds, nbytes


def _expected(keys: NDArray[np.float32], values: NDArray[np.float32], row: Row) -> NDArray[np.float32]:
    """Return the context of the row, float32 (num_kv_heads, group, head_dim), by plain NumPy."""
    query, key, value = row
    keys, values = (np.concatenate([old, new[:, None]], axis=1) for old, new in ((keys, key), (values, value)))
    scores = query.reshape(len(keys), -1, keys.shape[2]) @ keys.swapaxes(1, 2) * np.float32(keys.shape[2] ** -0.5)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context: NDArray[np.float32] = shares @ values / shares.sum(axis=-1, keepdims=True)
    return context


def _check_equal(systems: dict[str, System], expected: NDArray[np.float32]) -> None:
    """Run every system once.

    Raises:
        RuntimeError: one of them returns something else.
    """
    for name, system in systems.items():
        system.run()
        error = np.linalg.norm(system.context.ravel() - expected.ravel()) / np.linalg.norm(expected)
        if not error < TOLERANCES[name.split()[-1]]:
            raise RuntimeError(f"{name} is off by {error:.3g} of the result")


def _rows(
    case: Case, rounds: dict[str, list[float]], nbytes: dict[str, int], limits: Roofline
) -> list[dict[str, Cell]]:
    table: list[dict[str, Cell]] = []
    for name, times_s in rounds.items():
        median_s = statistics.median(times_s)
        table.append(
            {
                "case": case.name,
                "system": name,
                "isa": edge_vl_kernels.status().isa if name.startswith("ours") else None,
                "median_us": round(median_s * 1e6, 1),
                "lowest_us": round(min(times_s) * 1e6, 1),
                "gb_per_s": round(nbytes[name] / median_s / 1e9, 2),
                "gflop_per_s": round(case.num_flops / median_s / 1e9, 1),
                "limited_by": limits.limited_by(nbytes[name], case.num_flops),
                "share_of_limit": round(limits.limit_s(nbytes[name], case.num_flops) / median_s, 3),
                "of_our_f16": round(_ratio(times_s, rounds["ours f16"]), 3),
            }
        )
    return table


def _appending(precision: Precision, num_rounds: int) -> dict[str, Cell]:
    """Return a row of the table: appending one entry to a layer, with its 64th part of closing the block."""
    num_entries = NUM_SINKS + BLOCK_ENTRIES
    source = KVRowsSource(1, WIDE.num_kv_heads, WIDE.head_dim, max_entries=num_entries)
    layout = uniform_format(WIDE, precision)
    kernels = KVKernels(layout, scale=WIDE.head_dim**-0.5)
    pool = PagePool()
    cache = PagedKVCache(pool, kernels, layout, pool, num_entries + 1)
    append_rows(cache, kernels, source, layout.num_sinks + 1)
    row = np.ones((1, WIDE.num_kv_heads, WIDE.head_dim), np.float32)
    rows = kernels.rows(None, row, row, None)
    step = kernels.step([cache.begin(1)])
    append_s = [_seconds(step.run, 0, rows) for _ in range(10 * num_rounds)]
    cache.abort()
    close_s = [0.0]
    if layout.num_sinks:
        append_rows(cache, kernels, source, num_entries - cache.num_tokens)
        full = cache.begin(1)
        arguments = (0, 0, full.open_pages[0], full.blocks[0])
        close_s = [_seconds(kernels.close_block, *arguments) for _ in range(10 * num_rounds)]
        cache.abort()
    cache.close()
    pool.close()
    kernels.close()
    entry_s = statistics.median(append_s) + statistics.median(close_s) / BLOCK_ENTRIES
    return {
        "case": f"{WIDE.num_kv_heads}kv/{WIDE.head_dim}, append 1",
        "system": f"ours {precision}",
        "isa": kernels.isa,
        "median_us": round(entry_s * 1e6, 3),
        "lowest_us": round((min(append_s) + min(close_s) / BLOCK_ENTRIES) * 1e6, 3),
        **dict.fromkeys(("gb_per_s", "gflop_per_s", "limited_by", "share_of_limit", "of_our_f16")),
    }


def _seconds(call: Callable[..., object], *arguments: Any) -> float:
    started_s = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started_s
