"""What is drawn of a trace: bars for work, marks for what was reused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from edge_vl.trace import Source, Span, Stage

__all__ = ["Bar", "Reused", "bars_of", "in_rows", "reused_of"]

MAX_GAP = 8.0
"""Tokens that are no further apart than this are drawn as one bar, pixels."""
MIN_WIDTH = 3.0
"""Other work is drawn as one bar with its neighbour where both are narrower than this, pixels."""
MAX_APART = 24.0
"""What was reused from one source is told in one mark where it is no further apart than this, pixels."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Consecutive work of one stage.

    Attributes:
        stage: of all of it.
        start_s: when it began.
        stop_s: when it ended.
        num_spans: units of work in it.
        num_tokens: of all of them.
        detail: of the unit; empty where there are several.
    """

    stage: Stage
    start_s: float
    stop_s: float
    num_spans: int
    num_tokens: int
    detail: str

    @property
    def duration_s(self) -> float:
        """From its beginning to its end."""
        return self.stop_s - self.start_s


@dataclass(frozen=True, slots=True)
class Reused:
    """What one source saved at one moment.

    Attributes:
        source: which.
        at_s: when, seconds after the request was made.
        num_units: how many units or runs.
        num_tokens: of all of them.
    """

    source: Source
    at_s: float
    num_units: int
    num_tokens: int


def bars_of(spans: Iterable[Span], place: Callable[[float], float]) -> list[Bar]:
    """Return the computed work of one lane as bars; a long run of tokens, or of slivers, becomes one.

    Args:
        spans: of one lane, in order of time.
        place: says where a moment stands, pixels.
    """
    bars: list[Bar] = []
    for span in spans:
        if span.source != "computed":
            continue
        bar = Bar(span.stage, span.start_s, span.start_s + span.duration_s, 1, span.num_tokens, span.detail)
        if bars and _belong_together(bars[-1], bar, place):
            last = bars[-1]
            bars[-1] = replace(
                last,
                stop_s=max(last.stop_s, bar.stop_s),
                num_spans=last.num_spans + 1,
                num_tokens=last.num_tokens + bar.num_tokens,
                detail="",
            )
        else:
            bars.append(bar)
    return bars


def _belong_together(last: Bar, bar: Bar, place: Callable[[float], float]) -> bool:
    gap = place(bar.start_s) - place(last.stop_s)
    if last.stage != bar.stage or gap > MAX_GAP:
        return False
    if bar.stage == "decode":
        return True
    widths = [place(one.stop_s) - place(one.start_s) for one in (last, bar)]
    return widths[1] < MIN_WIDTH and (widths[0] < MIN_WIDTH or last.num_spans > 1)


def in_rows(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Spread bars over as few rows as show them without overlap."""
    rows: list[list[Bar]] = []
    for bar in bars:
        row = next((row for row in rows if row[-1].stop_s <= bar.start_s + 1e-6), None)
        if row is None:
            rows.append([bar])
        else:
            row.append(bar)
    return rows or [[]]


def reused_of(spans: Iterable[Span], place: Callable[[float], float]) -> list[Reused]:
    """Return what was reused in one lane, told together where it is drawn at about the same place.

    Args:
        spans: of one lane, in order of time.
        place: says where a moment stands, pixels.
    """
    told: list[Reused] = []
    latest: dict[Source, int] = {}
    for span in spans:
        if span.source == "computed":
            continue
        index = latest.get(span.source)
        if index is not None and place(span.start_s) - place(told[index].at_s) <= MAX_APART:
            one = told[index]
            told[index] = replace(one, num_units=one.num_units + 1, num_tokens=one.num_tokens + span.num_tokens)
        else:
            latest[span.source] = len(told)
            told.append(Reused(span.source, span.start_s, 1, span.num_tokens))
    return told
