"""What prefill passes of 16 to 256 tokens cost, and whether the chunk policy chooses a cheap one.

Model: the SmolVLM-256M shape, longest edge 1024; both engines speak. The table is what `edge-vl tune` measures. What
the policy chooses from it is then measured anew, beside the sizes of the table, so that the bar does not judge a table
by itself: it is the median cost per token of the chosen size, as a multiple of the cheapest.
"""

from __future__ import annotations

import math

from benchmarks.models import shape_model
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl.chunk_policy import ChunkCost, chunk_tokens
from edge_vl.costs import Costs
from edge_vl.families import family_of
from edge_vl.lanes import Lanes
from edge_vl.loading import load_lanes
from edge_vl.machine import usable_cores
from edge_vl.models import find_model
from edge_vl.plan import Plan
from edge_vl.profile_choice import decide
from edge_vl.tuning import CHUNK_SIZES, measure_chunks, usual_plan

MODEL = "smolvlm-256m"
LONGEST_EDGE = 1024
LANGUAGE = {"onnxruntime": "fp32", "llama_cpp": "q8_0"}
CONTEXT = 2048
MAX_RATIO = 1.2
QUICK_SIZES = (32, 128, 256)


def run(quick: bool) -> Result:
    """Measure the table of each engine, then what the policy makes of it."""
    num_rounds, sizes = (1, QUICK_SIZES) if quick else (5, CHUNK_SIZES)
    table: list[dict[str, Cell]] = []
    bars: dict[str, Bar] = {}
    for engine, dtype in LANGUAGE.items():
        lanes, plan = _load(engine, dtype)
        try:
            rows = _measure(lanes, plan, sizes, num_rounds)
            table += [_cells(engine, dtype, row, "table") for row in rows]
            chosen = {past: _chosen(rows, plan, past) for past in sorted({row.past for row in rows})}
            report(
                f"{engine}: the policy chooses {', '.join(f'{size} behind {past}' for past, size in chosen.items())}"
            )
            again = _measure(lanes, plan, tuple({*sizes, *chosen.values()}), num_rounds)
            for past, size in chosen.items():
                (row,) = (row for row in again if (row.past, row.num_tokens) == (past, size))
                table.append(_cells(engine, dtype, row, "chosen"))
                name = f"cost per token of the chosen chunk, times the best, {engine}, past {past}"
                bars[name] = Bar(1 / row.utilisation, MAX_RATIO)
        finally:
            lanes.finish()
            lanes.wait()
    return Result(bars, table)


def _load(engine: str, dtype: str) -> tuple[Lanes, Plan]:
    spec = find_model(shape_model(MODEL, longest_edge=LONGEST_EDGE))
    decision = decide(
        spec,
        vision_engine="llama_cpp",  # it encodes nothing here, and is quick to load
        language_engine=engine,
        language_dtype=dtype,
        threads=usable_cores(),
        context_length=CONTEXT,
    )
    lanes = load_lanes(spec, decision)
    family = family_of(spec)
    assert family is not None
    return lanes, usual_plan(family, lanes, spec)


def _measure(lanes: Lanes, plan: Plan, sizes: tuple[int, ...], num_rounds: int) -> tuple[ChunkCost, ...]:
    name = lanes.language.spec.engine
    tenths = {0}

    def show(share: float) -> None:
        if (tenth := math.floor(10 * share)) not in tenths:
            tenths.add(tenth)
            report(f"{name}: {tenth * 10} %")

    return lanes.language_lane.submit(
        measure_chunks, lanes.language, plan, sizes=sizes, num_rounds=num_rounds, on_progress=show
    ).result()


def _chosen(rows: tuple[ChunkCost, ...], plan: Plan, past: int) -> int:
    return chunk_tokens(
        Costs(chunk_table=rows),
        sequence_tokens=past,
        image_tokens=max(chunk.num_tokens for chunk in plan.images),
        text_tokens=plan.num_tokens - plan.num_image_tokens,
        is_answering=False,
        max_stall_s=math.inf,
    )


def _cells(engine: str, dtype: str, row: ChunkCost, kind: str) -> dict[str, Cell]:
    return {
        "engine": engine,
        "dtype": dtype,
        "past": row.past,
        "chunk": row.num_tokens,
        "what": kind,
        "token_ms": round(row.token_s * 1000, 4),
        "utilisation": round(row.utilisation, 3),
        "alignment_tokens": round(row.alignment_tokens, 1),
        "logits_error": float(f"{row.logits_error:.2e}"),
    }
