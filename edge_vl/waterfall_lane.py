"""The rows of one lane in a waterfall: its name, its bars, and what was reused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_vl.svg import SvgDrawing, clean_text, fitted, text_width
from edge_vl.time_axis import TimeAxis, clock_text
from edge_vl.trace import LaneName, Source, Stage, Timings
from edge_vl.trace_bars import Bar, Reused, bars_of, in_rows, reused_of

__all__ = [
    "GREY",
    "INK",
    "LEFT",
    "MARGIN",
    "REUSED_COLOURS",
    "RIGHT",
    "RULE",
    "STAGE_COLOURS",
    "STAGE_NAMES",
    "WIDTH",
    "LaneRows",
    "count_text",
    "number_text",
]

WIDTH = 1120.0
MARGIN = 24.0
LEFT = 168.0
"""Where time begins, pixels; the names of the lanes stand before it."""
RIGHT = WIDTH - 40.0
"""Where time ends."""

INK, GREY, RULE = "#1f2328", "#57606a", "#d8dee4"

_BAR = 26.0
_ROW = 30.0
_CHIP = 22.0
_PAD = 5.0

STAGE_COLOURS: Mapping[Stage, tuple[str, str]] = {
    "picture": ("#4f5964", "#ffffff"),
    "tile": ("#7d8894", "#ffffff"),
    "layout": ("#b4bdc7", INK),
    "queue": ("#ffffff", GREY),
    "encode": ("#0072b2", "#ffffff"),
    "prefill": ("#e69f00", INK),
    "decode": ("#2fb78c", INK),
    "early": ("#cc79a7", INK),
}
"""Colour of a stage's bars, and of the text on them. Told apart by people who see few colours: after Okabe and Ito,
Color Universal Design (2008)."""

STAGE_NAMES: Mapping[Stage, str] = {"queue": "waiting", "early": "early tokens", "tile": "cut into tiles"}
REUSED_COLOURS: Mapping[LaneName, str] = {"caller": "#4f5964", "vision": "#0072b2", "language": "#e69f00"}


class LaneRows:
    """The rows of one lane."""

    def __init__(self, lane: LaneName, timings: Timings, axis: TimeAxis, engine: str) -> None:
        spans = [span for span in timings.spans if span.lane == lane]
        self._lane = lane
        self._notes = [*([engine] if engine else []), f"busy {clock_text(timings.lane_s(lane))}"]
        self._rows = in_rows(bars_of(spans, axis.place))
        self._chips = _chip_rows(reused_of(spans, axis.place), axis)
        wanted = _ROW * len(self._rows) + (_CHIP + 6) * len(self._chips) + 12
        self.height = max(wanted, 26.0 + 14 * len(self._notes))

    def draw_bars(self, drawing: SvgDrawing, axis: TimeAxis, y: float) -> None:
        """Draw its name and its bars, from `y` on."""
        drawing.line(MARGIN, y, RIGHT, y, stroke=RULE)
        drawing.text(MARGIN, y + 18, self._lane, size=13, is_bold=True)
        for number, note in enumerate(self._notes):
            drawing.text(MARGIN, y + 34 + 14 * number, fitted(note, LEFT - MARGIN - 8, 11), size=11, fill=GREY)
        for number, row in enumerate(self._rows):
            for bar in row:
                _draw_bar(drawing, axis, bar, y + 7 + _ROW * number)

    def draw_reused(self, drawing: SvgDrawing, y: float) -> None:
        """Draw what was reused, below its bars."""
        colour = REUSED_COLOURS[self._lane]
        y += 7 + _ROW * len(self._rows)
        for number, chips in enumerate(self._chips):
            for at, left, width, text in chips:
                above = y + (_CHIP + 6) * number
                drawing.line(at, above - 4, at, above, stroke=colour, width=2)
                drawing.rectangle(left, above, width, _CHIP, fill="#ffffff", stroke=colour, radius=4)
                drawing.rectangle(left + 4, above + 4, 14, 14, fill=drawing.hatch(colour), stroke=colour, radius=2)
                drawing.text(left + 23, above + 15, text, size=11)


def _draw_bar(drawing: SvgDrawing, axis: TimeAxis, bar: Bar, y: float) -> None:
    left, right = axis.place(bar.start_s), axis.place(bar.stop_s)
    width = max(1.2, right - left - (0.8 if right - left > 3 else 0))
    colour, ink = STAGE_COLOURS[bar.stage]
    stroke = GREY if bar.stage == "queue" else "none"
    drawing.rectangle(left, y, width, _BAR, fill=colour, stroke=stroke, radius=2 if width > 8 else 0, tip=_tip(bar))
    for label in _labels(bar):
        if text_width(label, 11) + 2 * _PAD <= width:
            drawing.text(left + width / 2, y + _BAR / 2 + 4, label, size=11, fill=ink, anchor="middle")
            return


def _labels(bar: Bar) -> list[str]:
    """Return what may be written on a bar, the most telling first."""
    name = STAGE_NAMES.get(bar.stage, bar.stage)
    if bar.stage == "decode":
        count = count_text(bar.num_tokens, "token")
        rate = f"{number_text(bar.num_tokens / bar.duration_s)}/s" if bar.duration_s > 0 and bar.num_spans > 1 else ""
        return [*([f"{count}, {rate}"] if rate else []), count, str(bar.num_tokens)]
    if bar.num_spans > 1:
        times = f"{bar.num_spans}x"
        tokens = [f"{name} {times}, {count_text(bar.num_tokens, 'token')}"] if bar.num_tokens else []
        return [*tokens, f"{name} {times}", times]
    detail = clean_text(bar.detail)
    if not detail:
        return [name]
    short = detail.removeprefix("picture 1 ") if bar.stage == "encode" else detail
    full = short if short.startswith(name) else f"{name} {short}"
    if bar.stage == "encode":
        return [full, short, short.removeprefix("tile ")]
    return [full, short, count_text(bar.num_tokens, "token"), str(bar.num_tokens)] if bar.num_tokens else [full, short]


def _tip(bar: Bar) -> str:
    """Return what a viewer shows under the pointer."""
    tokens = f", {count_text(bar.num_tokens, 'token')}" if bar.num_tokens else ""
    times = f" in {bar.num_spans} steps" if bar.num_spans > 1 else ""
    return f"{bar.stage} {bar.detail}: {clock_text(bar.start_s)} + {clock_text(bar.duration_s)}{times}{tokens}"


def _chip_rows(told: Sequence[Reused], axis: TimeAxis) -> list[list[tuple[float, float, float, str]]]:
    """Return rows of what was reused, as (moment, left edge, width, text), in pixels."""
    rows: list[list[tuple[float, float, float, str]]] = []
    for one in told:
        text = _reused_text(one.source, one.num_units, one.num_tokens)
        at, width = axis.place(one.at_s), text_width(text, 11) + 30
        left = min(at - 3, RIGHT - width)
        row = next((row for row in rows if row[-1][1] + row[-1][2] + 6 <= left), None)
        if row is None:
            row = []
            rows.append(row)
        row.append((at, left, width, text))
    return rows


def _reused_text(source: Source, num_units: int, num_tokens: int) -> str:
    if source == "kv":
        return f"{count_text(num_tokens, 'token')} kept in the KV cache"
    if source == "graft":
        return f"{count_text(num_tokens, 'token')} taken from another cache"
    if source == "similar":
        return f"{count_text(num_units, 'unit')} looked the same"
    return f"{count_text(num_units, 'unit')} encoded before"


def number_text(value: float, num_digits: int = 3) -> str:
    """Return a number with at least so many digits, and without an exponent."""
    return f"{value:,.0f}" if value >= 10**num_digits else f"{value:.{num_digits}g}"


def count_text(number: int, noun: str) -> str:
    """Return how many there are of something."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
