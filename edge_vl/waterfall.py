"""The trace of an answer as a picture: which lane did what, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from edge_vl.svg import SvgDrawing, clean_text, fitted, text_width, wrapped
from edge_vl.time_axis import TimeAxis, clock_text, time_axis
from edge_vl.trace import LaneName, Span, Stage, Timings
from edge_vl.waterfall_lane import (
    GREY,
    INK,
    LEFT,
    MARGIN,
    REUSED_COLOURS,
    RIGHT,
    RULE,
    STAGE_COLOURS,
    STAGE_NAMES,
    WIDTH,
    LaneRows,
    count_text,
    number_text,
)

__all__ = ["waterfall"]

_TICK_SPACING = 64
_SHADE, _RED = "#f6f8fa", "#cf222e"

_LANES: tuple[LaneName, ...] = ("caller", "vision", "language")


def waterfall(
    timings: Timings, title: str = "", *, subtitle: str = "", engines: Mapping[str, str] | None = None
) -> str:
    """Draw where the time of an answer went.

    One group of rows per lane, bars coloured by stage; what was reused is hatched and took no time. Where the work up
    to the first token would be a small part of the picture, waiting and answering are drawn tighter, and it says so.

    Args:
        timings: the trace.
        title: heading, such as the question; any text.
        subtitle: second line, such as the model and the device.
        engines: what works in a lane, by `vision` and `language`.

    Returns:
        SVG, a file of its own with a white ground. No text overlaps another in the fonts of `edge_vl.svg` or narrower
        ones.
    """
    drawing = SvgDrawing(WIDTH)
    stop_s = max([timings.total_s, *(span.start_s + span.duration_s for span in timings.spans)])
    axis = time_axis(
        stop_s, work_s=_work_s(timings, stop_s), first_token_s=timings.first_token_s, left=LEFT, right=RIGHT
    )
    top = _draw_heading(drawing, timings, clean_text(title) or "edge-vl", clean_text(subtitle))
    lanes = [lane for lane in _LANES if any(span.lane == lane for span in timings.spans)]
    plans = [LaneRows(lane, timings, axis, clean_text((engines or {}).get(lane, ""))) for lane in lanes]
    lanes_top = top + (40 if len(axis.pieces) > 1 else 24)
    tops = list(accumulate((plan.height for plan in plans), initial=lanes_top))
    _draw_axis(drawing, axis, top, lanes_top, tops[-1], has_token=timings.first_token_s is not None)
    for plan, y in zip(plans, tops, strict=False):
        plan.draw_bars(drawing, axis, y)
    end = _draw_marks(drawing, axis, timings, lanes_top - 4, tops[-1])
    for plan, y in zip(plans, tops, strict=False):  # above the line of the first token, so that it crosses no text
        plan.draw_reused(drawing, y)
    height = _draw_legend(drawing, timings, end + 14)
    return drawing.finish(height, title=title or "edge-vl", description=_in_words(timings))


def _work_s(timings: Timings, stop_s: float) -> float:
    """Return when waiting ended, if the request waited long beside the work up to its first token; else 0."""
    waits = [span for span in timings.spans if span.stage == "queue"]
    end_s = max((span.start_s + span.duration_s for span in waits), default=0.0)
    first_s = stop_s if timings.first_token_s is None else timings.first_token_s
    return end_s if sum(span.duration_s for span in waits) > (first_s - end_s) / 2 else 0.0


def _draw_heading(drawing: SvgDrawing, timings: Timings, title: str, subtitle: str) -> float:
    """Draw titles and totals; return where they end."""
    room = WIDTH - 2 * MARGIN
    y = 36.0
    drawing.text(MARGIN, y, fitted(title, room, 18, is_bold=True), size=18, is_bold=True)
    if subtitle:
        y += 20
        drawing.text(MARGIN, y, fitted(subtitle, room, 12), size=12, fill=GREY)
    y += 14
    cards = _totals(timings)
    width = (room - 10 * (len(cards) - 1)) / len(cards)
    for number, (label, value) in enumerate(cards):
        left = MARGIN + number * (width + 10)
        drawing.rectangle(left, y, width, 52, fill=_SHADE, stroke=RULE, radius=6)
        drawing.text(left + 10, y + 18, fitted(label, width - 20, 11), size=11, fill=GREY)
        ink = _RED if label == "first token" and timings.first_token_s is not None else INK
        drawing.text(left + 10, y + 41, fitted(value, width - 20, 17, is_bold=True), size=17, fill=ink, is_bold=True)
    y += 52
    reason = clean_text(str(timings.schedule.get("reason", "")))
    for line in wrapped(f"Why {timings.schedule.get('mode', 'so')}: {reason}", room, 12, max_lines=2) if reason else ():
        y += 18
        drawing.text(MARGIN, y, line, size=12, fill=GREY)
    return y + 18


def _totals(timings: Timings) -> list[tuple[str, str]]:
    first_s, rate = timings.first_token_s, timings.tokens_per_s
    return [
        ("first token", "none" if first_s is None else clock_text(first_s)),
        ("whole answer", clock_text(timings.total_s)),
        (
            "answering",
            number_text(rate) + (" tokens/s" if rate < 1000 else "/s")
            if rate
            else count_text(len(timings.token_s), "token"),
        ),
        ("lanes overlap", f"{timings.overlap_ratio:.0%}"),
        ("prompt reused", f"{timings.reuse_rate:.0%}"),
        ("mode", clean_text(str(timings.schedule.get("mode", "not noted")))),
    ]


def _draw_axis(
    drawing: SvgDrawing, axis: TimeAxis, top: float, lanes_top: float, bottom: float, *, has_token: bool
) -> None:
    """Draw captions of the pieces, ticks and their lines."""
    taken = 0.0
    borders = [piece.left for piece in axis.pieces[1:]]
    for index, piece in enumerate(axis.pieces):
        width = piece.right - piece.left
        if index != axis.work:
            drawing.rectangle(piece.left, top + 4, width, bottom - top - 4, fill=_SHADE)
        for caption in _captions(axis, index, has_token=has_token):
            if text_width(caption, 11) + 12 <= width:
                x = piece.left + width / 2
                drawing.text(x, top + 14, caption, size=11, fill=GREY, anchor="middle")
                break
        for at_s, text in axis.ticks(index, spacing=_TICK_SPACING):
            x, half = axis.place(at_s), text_width(text, 11) / 2
            drawing.line(x, lanes_top - 4, x, bottom, stroke=RULE)
            is_torn = any(abs(x - border) < half + 3 for border in borders)
            if x - half >= taken and x + half <= WIDTH and not is_torn:
                drawing.text(x, lanes_top - 9, text, size=11, fill=GREY, anchor="middle")
                taken = x + half + 8
    for border in borders:
        num_steps = max(2, round((bottom - lanes_top) / 8))
        points = [(border + (2.5 if step % 2 else -2.5), lanes_top - 4 + 8.0 * step) for step in range(num_steps)]
        drawing.path([*points, (border, bottom)], stroke="#8c959f")


def _captions(axis: TimeAxis, index: int, *, has_token: bool) -> list[str]:
    if len(axis.pieces) == 1:
        return []
    if index == axis.work:
        return ["until the first token"] if has_token else ["work"]
    tighter = f"time drawn {number_text(axis.tightness(index), 2)} times tighter"
    name = "before the work" if index < axis.work else "answering"
    return [f"{name}, {tighter}", tighter, tighter.removeprefix("time drawn ")]


def _draw_marks(drawing: SvgDrawing, axis: TimeAxis, timings: Timings, top: float, bottom: float) -> float:
    """Draw the lines of the first token and of the end, with their times; return where they end."""
    drawing.line(MARGIN, bottom, RIGHT, bottom, stroke=RULE)
    marks = [(timings.total_s, f"whole answer {clock_text(timings.total_s)}", GREY, 1.0)]
    if timings.first_token_s is not None:
        marks.insert(0, (timings.first_token_s, f"first token {clock_text(timings.first_token_s)}", _RED, 1.8))
    taken: list[tuple[float, float]] = []
    y = bottom + 18
    for at_s, text, colour, width in marks:
        x, room = axis.place(at_s), text_width(text, 12, is_bold=True)
        is_left = x + 5 + room > WIDTH
        left = x - 5 - room if is_left else x + 5
        if any(left < other_right + 8 and other_left - 8 < left + room for other_left, other_right in taken):
            y += 17
        taken.append((left, left + room))
        drawing.line(x, top, x, y + 3, stroke=colour, width=width, dashes="" if colour == _RED else "4 3")
        drawing.text(
            x - 5 if is_left else x + 5,
            y,
            text,
            size=12,
            fill=colour,
            anchor="end" if is_left else "start",
            is_bold=True,
        )
    return y


def _draw_legend(drawing: SvgDrawing, timings: Timings, y: float) -> float:
    """Explain the colours, with each stage's total; return where the picture ends."""
    x = MARGIN
    y += 18
    spans = [span for span in timings.spans if span.source == "computed"]
    for stage, (colour, _) in STAGE_COLOURS.items():
        own = [span for span in spans if span.stage == stage]
        if own:
            text = _legend_text(stage, own)
            x, y = _legend_entry(drawing, x, y, text, colour, GREY if stage == "queue" else colour)
    for lane in _LANES:
        if any(span.lane == lane and span.source != "computed" for span in timings.spans):
            colour, text = REUSED_COLOURS[lane], "reused: took no time" if lane == "language" else "reused: not encoded"
            x, y = _legend_entry(drawing, x, y, text, drawing.hatch(colour), colour)
    return y + 20


def _legend_entry(drawing: SvgDrawing, x: float, y: float, text: str, fill: str, stroke: str) -> tuple[float, float]:
    width = 20 + text_width(text, 12) + 18
    if x + width > WIDTH - MARGIN and x > MARGIN:
        x, y = MARGIN, y + 22
    drawing.rectangle(x, y - 11, 14, 14, fill=fill, stroke=stroke, radius=2)
    drawing.text(x + 20, y, text, size=12)
    return x + width, y


def _legend_text(stage: Stage, spans: Sequence[Span]) -> str:
    took = clock_text(sum(span.duration_s for span in spans))
    name = STAGE_NAMES.get(stage, stage)
    if stage == "encode":
        return f"{name} {took}, {count_text(len(spans), 'unit')}"
    num_tokens = sum(span.num_tokens for span in spans)
    return f"{name} {took}, {count_text(num_tokens, 'token')}" if num_tokens else f"{name} {took}"


def _in_words(timings: Timings) -> str:
    """Return the totals as a sentence, for those who do not see the picture."""
    return "; ".join(f"{label}: {value}" for label, value in _totals(timings))
