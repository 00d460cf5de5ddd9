"""Tests of what is drawn of a trace."""

from __future__ import annotations

from edge_vl.trace import Span
from edge_vl.trace_bars import bars_of, in_rows, reused_of


def at_100_pixels_a_second(at_s: float) -> float:
    return 100 * at_s


def test_a_run_of_tokens_becomes_one_bar() -> None:
    spans = [Span("decode", 0.5 * index, 0.49, 1) for index in range(50)]
    (bar,) = bars_of(spans, at_100_pixels_a_second)
    assert (bar.num_spans, bar.num_tokens, bar.start_s) == (50, 50, 0)
    assert abs(bar.stop_s - 24.99) < 1e-9


def test_a_pause_of_the_answer_stays_visible() -> None:
    spans = [Span("decode", 0.0, 0.5, 1), Span("decode", 1.0, 0.5, 1)]
    assert len(bars_of(spans, at_100_pixels_a_second)) == 2


def test_work_between_tokens_parts_them() -> None:
    spans = [Span("decode", 0.0, 0.5, 1), Span("prefill", 0.5, 0.01, 8), Span("decode", 0.51, 0.5, 1)]
    assert [bar.stage for bar in bars_of(spans, at_100_pixels_a_second)] == ["decode", "prefill", "decode"]


def test_slivers_are_told_together_and_wide_units_apart() -> None:
    slivers = [Span("encode", 0.01 * index, 0.01, 64, f"tile {index}", "vision") for index in range(30)]
    (bar,) = bars_of(slivers, at_100_pixels_a_second)
    assert (bar.num_spans, bar.num_tokens, bar.detail) == (30, 30 * 64, "")
    wide = [Span("encode", float(index), 1.0, 64, f"tile {index}", "vision") for index in range(3)]
    assert [bar.detail for bar in bars_of(wide, at_100_pixels_a_second)] == ["tile 0", "tile 1", "tile 2"]


def test_work_at_the_same_time_gets_rows_of_its_own() -> None:
    spans = [Span("prefill", 0.0, 1.0, 8), Span("decode", 0.5, 1.0, 1), Span("prefill", 1.0, 1.0, 8)]
    rows = in_rows(bars_of(spans, at_100_pixels_a_second))
    assert [[bar.stage for bar in row] for row in rows] == [["prefill", "prefill"], ["decode"]]
    assert in_rows([]) == [[]]


def test_what_was_reused_is_told_by_source_and_moment() -> None:
    spans = [Span("encode", 0.001 * index, 0.0, 64, "tile", "vision", "embeds") for index in range(4)]
    spans += [
        Span("encode", 0.0, 0.0, 64, "tile", "vision", "similar"),
        Span("encode", 0.005, 0.2, 64, "tile", "vision"),
        Span("encode", 5.0, 0.0, 64, "tile", "vision", "embeds"),
    ]
    told = reused_of(spans, at_100_pixels_a_second)
    assert [(one.source, one.num_units, one.num_tokens) for one in told] == [
        ("embeds", 4, 256),
        ("similar", 1, 64),
        ("embeds", 1, 64),
    ]
