"""Tests of the picture of a trace: what stands where, and that no text overlaps another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.svg import text_width
from edge_vl.trace import LaneName, Source, Span, Stage, Timings
from edge_vl.waterfall import waterfall
from tests.traces import overlapped_trace, timings_of

SVG = "{http://www.w3.org/2000/svg}"
RED, BLUE, ORANGE, GREEN = "#cf222e", "#0072b2", "#e69f00", "#2fb78c"


@dataclass(frozen=True)
class Box:
    text: str
    left: float
    top: float
    right: float
    bottom: float


def texts_of(svg: str) -> list[Box]:
    boxes = []
    for element in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        text, size = element.text or "", float(element.attrib["font-size"])
        width = text_width(text, size, is_bold=element.get("font-weight") == "700")
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib["text-anchor"]]
        left, line = float(element.attrib["x"]) - share * width, float(element.attrib["y"])
        boxes.append(Box(text, left, line - 0.78 * size, left + width, line + 0.22 * size))
    return boxes


def words_of(svg: str) -> str:
    return " | ".join(box.text for box in texts_of(svg))


def bars_of(svg: str, colour: str) -> list[tuple[float, float]]:
    """Return the edges of the bars of a colour; swatches of the legend have no tip."""
    return [
        (float(bar.attrib["x"]), float(bar.attrib["x"]) + float(bar.attrib["width"]))
        for bar in ElementTree.fromstring(svg).iter(f"{SVG}rect")
        if bar.attrib["fill"] == colour and bar.find(f"{SVG}title") is not None
    ]


def check_texts(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = texts_of(svg)
    for box in boxes:
        assert -1 <= box.left <= box.right <= width + 1, box
        assert 0 <= box.top <= box.bottom <= height, box
    for one, other in combinations(boxes, 2):
        is_apart = (
            one.right <= other.left + 0.1
            or other.right <= one.left + 0.1
            or one.bottom <= other.top + 0.1
            or other.bottom <= one.top + 0.1
        )
        assert is_apart, (one, other)


STAGES: dict[LaneName, tuple[Stage, ...]] = {
    "caller": ("picture", "tile", "layout", "queue"),
    "vision": ("encode",),
    "language": ("prefill", "decode", "early"),
}
SOURCES: tuple[Source, ...] = ("computed", "computed", "computed", "kv", "embeds", "similar", "graft")


@st.composite
def any_timings(draw: st.DrawFn) -> Timings:
    spans: list[Span] = []
    for lane, stages in STAGES.items():
        at_s = draw(st.floats(0, 10))
        for _ in range(draw(st.integers(0, 12))):
            source = draw(st.sampled_from(SOURCES))
            duration_s = 0.0 if source != "computed" else draw(st.floats(0, 100) | st.floats(0, 1e-3))
            detail = draw(st.text(max_size=30) | st.just("picture 1 tile 1,2"))
            spans.append(
                Span(draw(st.sampled_from(stages)), at_s, duration_s, draw(st.integers(0, 9999)), detail, lane, source)
            )
            at_s += draw(st.just(duration_s) | st.floats(0, 20))
    tokens = sorted(draw(st.lists(st.floats(0, 1000), max_size=5)))
    return replace(timings_of(spans, tokens=tokens), schedule={"mode": draw(st.text()), "reason": draw(st.text())})


@given(any_timings(), st.text(), st.text(), st.text())
@settings(max_examples=150, deadline=None)
def test_no_text_overlaps_another_or_leaves_the_picture(
    timings: Timings, title: str, subtitle: str, engine: str
) -> None:
    check_texts(waterfall(timings, title, subtitle=subtitle, engines={"vision": engine, "language": engine}))


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0, 60.0, 3600.0])
@pytest.mark.parametrize("num_tokens", [1, 20, 3000])
def test_short_and_long_answers_are_readable(scale: float, num_tokens: int) -> None:
    svg = waterfall(overlapped_trace(scale=scale, num_tokens=num_tokens), "What is it?", subtitle="bundled")
    check_texts(svg)
    assert len(bars_of(svg, GREEN)) == 1
    assert "first token" in words_of(svg)
    assert len(svg) < 20_000


def test_every_lane_and_every_total_is_there() -> None:
    timings = overlapped_trace()
    words = words_of(waterfall(timings, "What is it?", subtitle="bundled", engines={"vision": "onnxruntime int8"}))
    for word in ("What is it?", "bundled", "caller", "vision", "language", "onnxruntime int8", "busy 200 ms"):
        assert word in words
    assert "first token | 271 ms" in words
    assert "whole answer | 671 ms" in words
    assert f"lanes overlap | {timings.overlap_ratio:.0%}" in words
    assert f"prompt reused | {timings.reuse_rate:.0%}" in words
    assert "mode | overlapped" in words
    assert "Why overlapped: asked for" in words
    assert "20 tokens, 50/s" in words


def test_bars_stand_where_their_time_is() -> None:
    svg = waterfall(overlapped_trace())
    encodes, prefills, (decode,) = bars_of(svg, BLUE), bars_of(svg, ORANGE), bars_of(svg, GREEN)
    assert (len(encodes), len(prefills)) == (2, 3)
    assert encodes[1][0] == pytest.approx(prefills[1][0])  # the thumbnail and the prefill of the tile before it
    width = decode[1] - decode[0]
    assert encodes[0][1] - encodes[0][0] == pytest.approx(width / 4, abs=1)  # 0.1 s and 0.4 s
    lines = [line for line in ElementTree.fromstring(svg).iter(f"{SVG}line") if line.attrib["stroke"] == RED]
    assert float(lines[0].attrib["x1"]) == pytest.approx(decode[0], abs=0.1)
    assert float(lines[0].attrib["x1"]) == pytest.approx(prefills[-1][1], abs=1)


def test_what_was_reused_is_hatched_and_no_bar() -> None:
    svg = waterfall(overlapped_trace())
    words = words_of(svg)
    assert "30 tokens kept in the KV cache" in words
    assert "1 unit encoded before" in words
    root = ElementTree.fromstring(svg)
    hatches = {f"url(#{pattern.attrib['id']})" for pattern in root.iter(f"{SVG}pattern")}
    used = [rect.attrib["fill"] for rect in root.iter(f"{SVG}rect") if rect.attrib["fill"] in hatches]
    assert len(hatches) == 2  # one for each lane that reused something
    assert len(used) == 4  # each of them there, and in the legend


def test_nothing_reused_leaves_no_hatch() -> None:
    assert "<pattern" not in waterfall(timings_of([Span("prefill", 0.0, 1.0, 8)]))


def test_a_long_answer_does_not_hide_the_work_before_it() -> None:
    svg = waterfall(overlapped_trace(num_tokens=5000))
    assert "answering, time drawn" in words_of(svg) or "times tighter" in words_of(svg)
    encodes = bars_of(svg, BLUE)
    assert all(right - left > 100 for left, right in encodes)


def test_waiting_for_others_does_not_hide_the_work_behind_it() -> None:
    spans = [Span("queue", 0.0, 60.0, 0, "", "caller"), Span("encode", 60.0, 1.0, 64, "picture 1 thumbnail", "vision")]
    spans.append(Span("prefill", 61.0, 0.5, 80, "16 text + 64 image"))
    svg = waterfall(timings_of(spans, tokens=[61.5]))
    assert "waiting" in words_of(svg)
    ((left, right),) = bars_of(svg, BLUE)
    assert right - left > 300


def test_a_trace_without_spans_or_tokens_is_a_picture_too() -> None:
    svg = waterfall(Timings((), None, 0.0, ()), "")
    check_texts(svg)
    assert "first token | none" in words_of(svg)


def test_names_from_outside_are_no_markup() -> None:
    title = "<script>alert('x')</script> & \"left\"\x00\x1b[0m"
    spans = [Span("encode", 0.0, 1.0, 64, "</title><svg onload='x'>", "vision")]
    svg = waterfall(timings_of(spans, tokens=[1.0]), title, subtitle="</text>", engines={"vision": "<b>"})
    root = ElementTree.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "defs", "pattern", "rect", "line", "path", "text",
    }  # fmt: skip
    assert root.findtext(f"{SVG}title") == "<script>alert('x')</script> & \"left\" [0m"


def test_the_ground_is_white_and_nothing_is_loaded_from_elsewhere() -> None:
    svg = waterfall(overlapped_trace())
    root = ElementTree.fromstring(svg)
    ground = next(child for child in root if child.tag == f"{SVG}rect")
    assert ground.attrib == {"width": root.attrib["width"], "height": root.attrib["height"], "fill": "#ffffff"}
    assert "href" not in svg
    assert svg.count("http") == 1  # the name space


def test_ticks_that_would_touch_are_left_out() -> None:
    """A tick's text, such as `2 h 29 min 50 s`, may be wider than the distance of two ticks."""
    spans = [Span("queue", 0.0, 8988.0, 0, "", "caller"), Span("encode", 8988.0, 8.0, 64, "thumbnail", "vision")]
    svg = waterfall(timings_of(spans))
    check_texts(svg)
    assert "2 h 29 min" in words_of(svg)
