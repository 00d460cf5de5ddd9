"""Tests of the trace as Chrome trace events."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.perfetto import TracedAnswer, perfetto, perfetto_of
from edge_vl.trace import LaneName, Span
from tests.traces import overlapped_trace, timings_of

Event = dict[str, Any]
LANES: tuple[LaneName, ...] = ("caller", "vision", "language")


def events_of(trace: dict[str, Any], phase: str) -> list[Event]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def thread_names(trace: dict[str, Any]) -> dict[tuple[int, int], str]:
    named = [event for event in events_of(trace, "M") if event["name"] == "thread_name"]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


def counts(trace: dict[str, Any], name: str) -> list[tuple[float, int]]:
    return [(event["ts"], event["args"]["tokens"]) for event in events_of(trace, "C") if event["name"] == name]


def check_nesting(trace: dict[str, Any]) -> None:
    """Check that of two events of a thread one holds the other, or they are apart: Perfetto shows no others."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events_of(trace, "X"):
        start_ns, length_ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
        threads[event["pid"], event["tid"]].append((start_ns, start_ns + length_ns))
    for spans in threads.values():
        for (start, stop), (later_start, later_stop) in pairwise(sorted(spans, key=lambda span: (span[0], -span[1]))):
            assert later_start >= stop or (later_start >= start and later_stop <= stop)


def test_every_span_is_an_event_of_its_lane_in_microseconds() -> None:
    timings = overlapped_trace()
    trace = perfetto(timings, "What is it?")
    names = thread_names(trace)
    for lane in LANES:
        spans = [span for span in timings.spans if span.lane == lane and span.source == "computed"]
        events = [event for event in events_of(trace, "X") if names[event["pid"], event["tid"]] == lane]
        assert len(events) == len(spans) > 0
        for span, event in zip(spans, events, strict=True):
            assert event["ts"] == pytest.approx(span.start_s * 1e6, abs=0.01)
            assert event["dur"] == pytest.approx(span.duration_s * 1e6, abs=0.01)
            assert event["cat"] == span.stage
            assert event["args"].get("tokens", 0) == span.num_tokens
            assert event["args"].get("detail", "") == span.detail
            assert event["args"]["source"] == "computed"


def test_what_was_reused_and_the_first_token_are_instants() -> None:
    trace = perfetto(overlapped_trace())
    instants = events_of(trace, "i")
    names = thread_names(trace)
    told = {(event["name"], names[event["pid"], event["tid"]], event["s"]) for event in instants}
    assert told == {
        ("first token", "request", "p"),
        ("reused: prefill 30 of 240 (kv)", "language", "t"),
        ("reused: encode picture 1 tile 1,1 (embeds)", "vision", "t"),
    }
    (first,) = [event for event in instants if event["name"] == "first token"]
    assert first["ts"] == pytest.approx(271_000)


def test_counters_end_at_what_there_is() -> None:
    timings = overlapped_trace(num_tokens=20)
    trace = perfetto(timings)
    entries = counts(trace, "KV cache entries")
    assert list(entries[0]) == [0, 0]
    assert entries[-1][1] == 30 + 66 + 66 + 78 + 20
    assert counts(trace, "image tokens encoded")[-1][1] == 128  # what was reused was not encoded
    assert counts(trace, "answer tokens")[-1][1] == len(timings.token_s)
    for name in ("KV cache entries", "image tokens encoded", "answer tokens"):
        moments = counts(trace, name)
        assert moments == sorted(moments)


def test_how_it_was_scheduled_stands_at_the_request_and_in_the_file() -> None:
    timings = overlapped_trace()
    trace = perfetto(timings, "What is it?")
    whole = next(event for event in events_of(trace, "X") if event["name"] == "What is it?")
    assert whole["args"]["schedule"] == dict(timings.schedule)
    assert whole["args"]["overlap_ratio"] == pytest.approx(timings.overlap_ratio)
    assert trace["otherData"]["1 What is it?"] == whole["args"]
    labels = [event["args"]["labels"] for event in events_of(trace, "M") if event["name"] == "process_labels"]
    assert labels == ["overlapped"]


def test_several_answers_are_processes_on_one_clock() -> None:
    timings = overlapped_trace()
    answers = [TracedAnswer("one", timings), TracedAnswer("other", timings, start_s=2.5)]
    trace = perfetto_of(answers)
    named = {event["pid"]: event["args"]["name"] for event in events_of(trace, "M") if event["name"] == "process_name"}
    assert named == {1: "one", 2: "other"}
    pictures = {event["pid"]: event["ts"] for event in events_of(trace, "X") if event["cat"] == "picture"}
    assert pictures[2] - pictures[1] == pytest.approx(2.5e6)
    assert len(trace["otherData"]) == 2
    tids = list(thread_names(trace))
    assert len({tid for _, tid in tids}) == len(tids)


def test_work_of_a_lane_at_the_same_time_gets_a_thread_of_its_own() -> None:
    spans = [Span("prefill", 0.0, 1.0, 8), Span("prefill", 0.5, 1.0, 8), Span("decode", 1.0, 0.5, 1)]
    trace = perfetto(timings_of(spans))
    check_nesting(trace)
    assert sorted(thread_names(trace).values()) == ["language", "language, at the same time", "request"]


@given(
    st.lists(
        st.builds(
            Span,
            st.sampled_from(["picture", "queue", "encode", "prefill", "decode"]),
            st.floats(0, 10),
            st.floats(0, 2),
            st.integers(0, 500),
            st.text(max_size=20),
            st.sampled_from(LANES),
            st.sampled_from(["computed", "computed", "kv", "graft"]),
        ),
        max_size=25,
    ),
    st.text(),
)
@settings(max_examples=150, deadline=None)
def test_any_trace_is_json_whose_events_nest_in_named_threads(spans: list[Span], title: str) -> None:
    trace = perfetto(timings_of(spans), title)
    again = json.loads(json.dumps(trace, allow_nan=False))
    check_nesting(again)
    names = thread_names(again)
    for event in again["traceEvents"]:
        if event["ph"] in "Xi":
            assert (event["pid"], event["tid"]) in names
            assert event["ts"] >= 0
            assert event.get("dur", 0) >= 0
    assert len(events_of(again, "X")) == 1 + sum(span.source == "computed" for span in spans)


def test_facts_that_json_does_not_know_become_text() -> None:
    timings = replace(
        overlapped_trace(), schedule={"mode": "auto", "numbers": {"a": math.inf, "b": math.nan, "c": {1, 2}, "d": (1,)}}
    )
    numbers = json.loads(json.dumps(perfetto(timings, "x"), allow_nan=False))["otherData"]["1 x"]["schedule"]["numbers"]
    assert numbers == {"a": "inf", "b": "nan", "c": "{1, 2}", "d": [1]}


def test_a_trace_without_a_token_has_no_first_one() -> None:
    trace = perfetto(timings_of([Span("encode", 0.0, 1.0, 64, "", "vision")]))
    assert not events_of(trace, "i")
    assert "first_token_s" not in trace["otherData"]["1 answer"]
