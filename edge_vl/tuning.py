"""Measuring what prefill passes of various sizes cost on this device: the chunk table."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.chunk_policy import ChunkCost, chunk_tokens
from edge_vl.cost_store import CostKey, CostStore
from edge_vl.costs import CostBook, Costs
from edge_vl.engine import KVCache, LanguageModel
from edge_vl.errors import Cancelled, EngineFault, RequestError
from edge_vl.kv_policy import KVPolicy, parse_kv_policy
from edge_vl.plan import ImageChunk, Plan, TextChunk

if TYPE_CHECKING:
    from edge_vl.engine import Engine
    from edge_vl.families import Family
    from edge_vl.lanes import Lanes
    from edge_vl.model_spec import ModelSpec

__all__ = ["CHUNK_SIZES", "NUM_ROUNDS", "Tuning", "measure_chunks", "tune", "usual_plan", "waiting_tokens"]

CHUNK_SIZES = (16, 32, 64, 128, 256)
"""Sizes that are measured, in tokens."""

NUM_ROUNDS = 5
"""Rounds whose median counts."""

_LONG_PAST = 1024  # entries in the cache for the second half of the table, where the context has room for them
_PICTURE_HEIGHT, _PICTURE_WIDTH = 480, 640  # of the plan that the table is for: what most cameras send
_QUESTION = "What has changed since the last picture?"
_TEXT = (
    "The camera looks at a door, two boxes on a shelf and a red lamp. At noon somebody takes the smaller box away, and "
    "the lamp turns green. Nothing else moves until the evening, when the door stands open for a while. "
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was measured, and what follows from it.

    Attributes:
        key: what it was measured on.
        costs: everything that is known about it now, the new chunk table included.
        num_rounds: rounds whose median counts.
        unit_tokens: tokens of the largest image unit of a usual prompt.
        text_tokens: its text tokens.
        profile: id of the device profile that chose the engines.
        notes: what is not as that profile wants it.
        file: where the table is kept; None: it could not be.
    """

    key: CostKey
    costs: Costs
    num_rounds: int
    unit_tokens: int
    text_tokens: int
    profile: str
    notes: tuple[str, ...]
    file: Path | None

    def chosen(self, *, past: int, is_answering: bool) -> int:
        """Return how many tokens a pass of a usual prompt will take.

        Args:
            past: entries that the cache holds.
            is_answering: whether an answer is running meanwhile.
        """
        return chunk_tokens(
            self.costs,
            sequence_tokens=past,
            image_tokens=self.unit_tokens,
            text_tokens=self.text_tokens,
            is_answering=is_answering,
            max_stall_s=float("inf"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        pasts = sorted({row.past for row in self.costs.chunk_table})
        return {
            **asdict(self.key),
            "profile": self.profile,
            "num_rounds": self.num_rounds,
            "unit_tokens": self.unit_tokens,
            "text_tokens": self.text_tokens,
            "chunks": [asdict(row) for row in self.costs.chunk_table],
            "chosen": [
                {
                    "past": past,
                    "num_tokens": self.chosen(past=past, is_answering=False),
                    "num_tokens_while_answering": self.chosen(past=past, is_answering=True),
                }
                for past in pasts
            ],
            "file": None if self.file is None else str(self.file),
        }


def tune(
    model: str | Path = "bundled",
    *,
    profile: str | Path = "auto",
    vision_engine: str | Engine = "auto",
    language_engine: str | Engine = "auto",
    vision_dtype: str = "auto",
    language_dtype: str = "auto",
    kv: str | Mapping[str, str] | KVPolicy = "auto",
    threads: int | None = None,
    context_length: int | None = None,
    num_rounds: int = NUM_ROUNDS,
    store: CostStore | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Tuning:
    """Load a model, measure its chunk table and keep it for every later run of the same on this device.

    Args:
        model: as `Runtime.open` takes it, and so are the engines, precisions, threads and the context.
        profile: device profile.
        vision_engine: engine of the vision lane; it encodes nothing, but costs are kept per pair of lanes.
        language_engine: engine of the language lane.
        vision_dtype: precision of the vision encoder.
        language_dtype: precision of the language model.
        kv: in what precision the KV cache is kept.
        threads: CPU threads of a lane.
        context_length: most tokens of a sequence.
        num_rounds: rounds whose median counts, at least 1.
        store: where it is kept; None: the usual place.
        on_progress: called with the share that is done, on the language lane's thread.

    Raises:
        RequestError: a setting makes no sense.
        EdgeVLError: whatever `Runtime.open` raises.
    """
    from edge_vl.loading import load_lanes, native_family
    from edge_vl.memory_plan import check_memory
    from edge_vl.models import find_model
    from edge_vl.option_checks import require_whole_number
    from edge_vl.profile_choice import decide

    for field, number in (("threads", threads), ("context_length", context_length), ("num_rounds", num_rounds)):
        if number is not None:
            require_whole_number(number, field, 1)
    policy = parse_kv_policy(kv)
    spec = find_model(model)
    decision = decide(
        spec,
        profile=profile,
        vision_engine=vision_engine,
        language_engine=language_engine,
        vision_dtype=vision_dtype,
        language_dtype=language_dtype,
        threads=threads,
        context_length=context_length,
        kv=policy,
    )
    check_memory(spec, decision)
    store = CostStore() if store is None else store
    is_cancelled = threading.Event()
    lanes = load_lanes(spec, decision)
    try:
        from edge_vl.families import family_of

        plan = usual_plan(family_of(spec) or native_family(spec, lanes), lanes, spec)
        table = lanes.language_lane.submit(
            measure_chunks,
            lanes.language,
            plan,
            num_rounds=num_rounds,
            on_progress=on_progress,
            is_cancelled=is_cancelled.is_set,
        ).result()
        vision = lanes.vision
        key = CostKey.of(spec, decision, None if vision is None else vision.spec, lanes.language.spec)
    finally:
        is_cancelled.set()
        lanes.finish()
        lanes.wait()
    costs = _with_table(store.load(key), table)
    is_kept = store.save(key, costs)
    return Tuning(
        key=key,
        costs=costs,
        num_rounds=num_rounds,
        unit_tokens=max((chunk.num_tokens for chunk in plan.images), default=0),
        text_tokens=plan.num_tokens - plan.num_image_tokens,
        profile=decision.profile.id,
        notes=decision.notes,
        file=store.folder / key.file_name if is_kept and store.folder is not None else None,
    )


def usual_plan(family: Family, lanes: Lanes, model: ModelSpec) -> Plan:
    """Lay out a short question about one camera picture of 640x480, or about nothing for a model that reads text only.

    Raises:
        EdgeVLError: the model cannot lay it out.
    """
    from edge_vl.message import Message
    from edge_vl.pictures import load_picture

    parts: tuple[Any, ...] = (_QUESTION,)
    if model.has_vision or lanes.vision is not None:
        rows = np.linspace(0, 255, _PICTURE_HEIGHT, dtype=np.uint8)[:, None, None]
        pixels = np.broadcast_to(rows, (_PICTURE_HEIGHT, _PICTURE_WIDTH, 3))
        parts = (family.tile(load_picture(np.ascontiguousarray(pixels))), _QUESTION)
    return family.layout([Message("user", parts)], lanes.language.tokenizer)


def waiting_tokens(plan: Plan, num_tokens: int) -> float:
    """Return how many tokens wait, on average, between the end of an image unit and the next border of a chunk.

    Args:
        plan: a prompt; its chunks of `num_tokens` begin at its first token, and the last one ends with it.
        num_tokens: of a chunk.

    Returns:
        0 or more, less than `num_tokens`; 0 for a plan without pictures.
    """
    waits, end = [], 0
    for chunk in plan.chunks:
        end += chunk.num_tokens
        if isinstance(chunk, ImageChunk):
            waits.append(min(-end % num_tokens, plan.num_tokens - end))
    return statistics.fmean(waits) if waits else 0.0


def measure_chunks(
    language: LanguageModel,
    plan: Plan,
    *,
    sizes: Sequence[int] = CHUNK_SIZES,
    num_rounds: int = NUM_ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[float], None] | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> tuple[ChunkCost, ...]:
    """Prefill the same tokens in passes of each size, on an empty cache and behind a longer past.

    The sizes take turns within a round, so that a change of the machine's speed meets all of them. A first round warms
    up and is not counted.

    Args:
        language: a loaded language model; the caller is on its thread.
        plan: a real prompt of the model, for the alignment.
        sizes: tokens of a pass; those that do not fit into the context are left out.
        num_rounds: rounds whose median counts.
        clock: seconds that only go forward.
        on_progress: called with the share that is done.
        is_cancelled: asked between passes.

    Returns:
        Rows by past, then by size.

    Raises:
        RequestError: the context is too short for any size.
        EngineFault: the model failed.
        Cancelled: `is_cancelled` said so.
    """
    context = language.spec.context_length
    sizes = sorted(size for size in sizes if size <= context)
    if not sizes:
        raise RequestError(f"a context of {context} tokens is too short to measure in", field="context_length")
    total = sizes[-1]
    long_past = min(_LONG_PAST, context - total) // total * total
    pasts = (0, long_past) if long_past else (0,)
    ids = _token_ids(language, long_past + total)
    num_steps = len(pasts) * (num_rounds + 1) * len(sizes)
    num_done = 0
    rows: list[ChunkCost] = []
    for past in pasts:
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        logits: dict[int, NDArray[np.float32]] = {}
        base = language.new_cache()
        try:
            for start in range(0, past, total):
                _check(is_cancelled)
                _prefill(language, base, ids, start, start + total, total)
            for turn in range(num_rounds + 1):
                for size in sizes:
                    _check(is_cancelled)
                    taken_s, logits[size] = _time(language, base, ids, size, total, clock)
                    if turn:
                        seconds[size].append(taken_s / total)
                    num_done += 1
                    if on_progress is not None:
                        on_progress(num_done / num_steps)
        finally:
            base.close()
        medians_s = {size: statistics.median(times) for size, times in seconds.items()}
        best_s = min(medians_s.values())
        rows += [
            ChunkCost(
                num_tokens=size,
                token_s=medians_s[size],
                utilisation=best_s / medians_s[size],
                alignment_tokens=waiting_tokens(plan, size),
                logits_error=_deviation(logits[size], logits[total]),
                past=past,
            )
            for size in sizes
        ]
    return tuple(rows)


def _time(
    language: LanguageModel, base: KVCache, ids: Sequence[int], size: int, total: int, clock: Callable[[], float]
) -> tuple[float, NDArray[np.float32]]:
    """Return the seconds that passes of one size over `total` tokens take behind a cache, and the last logits."""
    cache = base.fork()
    try:
        began_s = clock()
        logits = _prefill(language, cache, ids, base.num_tokens, base.num_tokens + total, size)
        taken_s = clock() - began_s
    finally:
        cache.close()
    if logits is None or not np.isfinite(logits.max()):
        raise EngineFault(language.spec.engine, "prefill", "no finite logits came back")
    return taken_s, logits


def _prefill(
    language: LanguageModel, cache: KVCache, ids: Sequence[int], start: int, stop: int, size: int
) -> NDArray[np.float32] | None:
    """Prefill tokens `start` to `stop` in passes of one size; return the last logits."""
    logits = None
    for first in range(start, stop, size):
        behind = min(first + size, stop)
        chunk = TextChunk(tuple(ids[first:behind]), first)
        logits = language.prefill(cache, [chunk], want_logits=behind == stop)
    return logits


def _token_ids(language: LanguageModel, num_tokens: int) -> list[int]:
    ids = language.tokenizer.encode_text(_TEXT) or [0]
    return list(islice(cycle(ids), num_tokens))


def _deviation(logits: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Return the largest deviation, relative to the range of the reference. Logits of -inf count as equal."""
    is_known = np.isfinite(logits) & np.isfinite(reference)
    spread = float(np.ptp(reference[is_known]))
    return float(np.abs(logits[is_known] - reference[is_known]).max()) / spread if spread else 0.0


def _check(is_cancelled: Callable[[], bool]) -> None:
    if is_cancelled():
        raise Cancelled(stage="prefill")


def _with_table(known: Costs | None, table: tuple[ChunkCost, ...]) -> Costs:
    """Put a chunk table in the place of an older one; where no pass was seen yet, the table stands for passes."""
    book = CostBook()
    if known is not None:
        book.load(known)
    if book.snapshot().prefill_token_s is None:
        for row in table:
            if row.past == 0:
                book.note_prefill(row.num_tokens, row.num_tokens * row.token_s)
    return replace(book.snapshot(), chunk_table=table)
