"""The trace of answers as a file that https://ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_vl.trace import LaneName, Span, Timings

__all__ = ["TracedAnswer", "perfetto", "perfetto_of"]

Event = dict[str, Any]

_LANES: tuple[LaneName, ...] = ("caller", "vision", "language")
_TIDS_PER_PROCESS = 1000
_REQUEST_TID = 1
_LANE_TIDS: Mapping[LaneName, int] = {"caller": 100, "vision": 200, "language": 300}
_JITTER_NS = 1000
"""Spans of a lane that overlap by less than this do so by rounding."""


@dataclass(frozen=True, slots=True)
class TracedAnswer:
    """One answer of a file that has several.

    Attributes:
        title: what it is called, such as the question.
        timings: its trace.
        start_s: when its request was made, seconds on a clock that all of the file share.
    """

    title: str
    timings: Timings
    start_s: float = 0.0


def perfetto(timings: Timings, title: str = "answer") -> dict[str, Any]:
    """Return the trace of one answer as Chrome trace events, JSON-ready; see `perfetto_of`."""
    return perfetto_of([TracedAnswer(title, timings)])


def perfetto_of(answers: Sequence[TracedAnswer]) -> dict[str, Any]:
    """Return the traces of several answers as Chrome trace events, JSON-ready.

    Each answer is a process, with a thread for the request and one for each lane. Work is a complete event, what was
    reused and the first token are instants, and three counters grow: entries of the KV cache, image tokens encoded,
    tokens of the answer. Times are microseconds. How the request was scheduled stands in the arguments of the request's
    own event, and under `otherData`.

    Source:
        "Trace Event Format" (Google, 2016): complete (X), instant (i), counter (C) and metadata (M) events. Perfetto
        shows no events of a thread that overlap without one holding the other, so those get a thread of their own.
    """
    events: list[Event] = []
    facts: dict[str, Any] = {}
    for number, answer in enumerate(answers, start=1):
        events += _events(number, answer)
        facts[f"{number} {answer.title}"] = _totals(answer.timings)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _events(pid: int, answer: TracedAnswer) -> Iterator[Event]:
    timings = answer.timings
    start_ns = round(answer.start_s * 1e9)
    tids = pid * _TIDS_PER_PROCESS
    yield _named("process_name", pid, 0, answer.title)
    yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    mode = timings.schedule.get("mode")
    if mode is not None:
        yield _metadata("process_labels", pid, 0, {"labels": str(mode)})

    request = tids + _REQUEST_TID
    yield from _thread(pid, request, "request")
    common = {"pid": pid, "tid": request, "cat": "request"}
    stop_ns = max([_ns(timings.total_s), *(_ns(span.start_s + span.duration_s) for span in timings.spans)])
    yield {
        **_complete(start_ns, start_ns + stop_ns),
        **common,
        "name": answer.title,
        "args": _json_ready(_totals(timings)),
    }
    if timings.first_token_s is not None:
        first_ns = min(_ns(timings.first_token_s), stop_ns)
        yield {**_complete(start_ns, start_ns + first_ns), **common, "name": "until the first token", "args": {}}
        yield {**common, "name": "first token", "ph": "i", "s": "p", "ts": _us(start_ns + first_ns), "args": {}}

    for lane in _LANES:
        spans = [span for span in timings.spans if span.lane == lane]
        for row, placed in enumerate(_rows(spans)):
            tid = tids + _LANE_TIDS[lane] + row
            yield from _thread(pid, tid, lane if not row else f"{lane}, at the same time")
            for span, from_ns, to_ns in placed:
                yield _span_event(span, pid, tid, start_ns + from_ns, start_ns + to_ns)
    yield from _counters(pid, timings, start_ns)


def _rows(spans: Sequence[Span]) -> list[list[tuple[Span, int, int]]]:
    """Spread spans over threads so that none overlap; return each with its beginning and end, nanoseconds."""
    rows: list[list[tuple[Span, int, int]]] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        start_ns, stop_ns = _ns(span.start_s), _ns(span.start_s + span.duration_s)
        if span.source != "computed":  # an instant overlaps nothing
            row = rows[0] if rows else []
            if not rows:
                rows.append(row)
            row.append((span, start_ns, start_ns))
            continue
        for row in rows:
            free_ns = max((to_ns for _, _, to_ns in row), default=0)
            if free_ns <= start_ns + _JITTER_NS:
                start_ns = max(start_ns, free_ns)
                break
        else:
            row = []
            rows.append(row)
        row.append((span, start_ns, max(start_ns, stop_ns)))
    return rows


def _span_event(span: Span, pid: int, tid: int, start_ns: int, stop_ns: int) -> Event:
    args: dict[str, Any] = {"source": span.source}
    if span.num_tokens:
        args["tokens"] = span.num_tokens
    if span.detail:
        args["detail"] = span.detail
    name = span.detail if span.detail.startswith(span.stage) else f"{span.stage} {span.detail}".rstrip()
    if span.source != "computed":
        name, when = f"reused: {name} ({span.source})", {"ph": "i", "s": "t", "ts": _us(start_ns)}
    else:
        when = _complete(start_ns, stop_ns)
    return {**when, "pid": pid, "tid": tid, "cat": span.stage, "name": name, "args": args}


def _counters(pid: int, timings: Timings, start_ns: int) -> Iterator[Event]:
    """Count what there is at the end of each unit of work."""
    grown = {
        "KV cache entries": [
            (span.start_s + span.duration_s, span.num_tokens)
            for span in timings.spans
            if span.stage in ("prefill", "decode")
        ],
        "image tokens encoded": [
            (span.start_s + span.duration_s, span.num_tokens)
            for span in timings.spans
            if span.stage == "encode" and span.source == "computed"
        ],
        "answer tokens": [(at_s, 1) for at_s in timings.token_s],
    }
    for name, steps in grown.items():
        total = 0
        for at_s, num_tokens in [(0.0, 0), *sorted(steps)] if steps else []:
            total += num_tokens
            yield {"ph": "C", "pid": pid, "ts": _us(start_ns + _ns(at_s)), "name": name, "args": {"tokens": total}}


def _totals(timings: Timings) -> dict[str, Any]:
    totals = {
        "first_token_s": timings.first_token_s,
        "total_s": timings.total_s,
        "tokens_per_s": timings.tokens_per_s,
        "overlap_ratio": timings.overlap_ratio,
        "reuse_rate": timings.reuse_rate,
        "schedule": timings.schedule,
    }
    return {name: _json_ready(value) for name, value in totals.items() if value is not None}


def _json_ready(value: Any) -> Any:
    """Return a value without what JSON does not know: infinities, NaN, and types of one's own."""
    if isinstance(value, Mapping):
        return {str(key): _json_ready(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_ready(part) for part in value]
    if isinstance(value, float):
        return round(value, 9) if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def _thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    yield _named("thread_name", pid, tid, name)
    yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return _metadata(kind, pid, tid, {"name": name})


def _metadata(kind: str, pid: int, tid: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}


def _complete(start_ns: int, stop_ns: int) -> Event:
    return {"ph": "X", "ts": _us(start_ns), "dur": _us(stop_ns - start_ns)}


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000
