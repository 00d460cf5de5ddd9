"""Tests of what the commands print."""

from __future__ import annotations

import pytest

from edge_vl.answer import Answer, Usage
from edge_vl.cli.output import print_timings
from edge_vl.trace import Span, Timings
from tests.traces import overlapped_trace, timings_of


def answer_of(timings: Timings) -> Answer:
    return Answer(
        text="a red square",
        reasoning="",
        finish_reason="stop",
        model="bundled",
        vision_engine="onnxruntime",
        language_engine="llama_cpp",
        dtypes={"vision": "int8", "language": "q8_0"},
        usage=Usage(240, 192, 3),
        timings=timings,
        reused={"kv_tokens": 30, "image_units": 1},
        profile="generic-cpu",
    )


def printed(timings: Timings, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "160")
    print_timings(answer_of(timings), loaded_s=0.5)
    out, err = capfd.readouterr()
    assert out == ""
    return err


def test_the_table_has_each_lane_and_what_was_reused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(overlapped_trace(), capfd, monkeypatch).splitlines()
    (kept,) = [line for line in lines if "from kv" in line]
    assert "language" in kept
    assert "reused" in kept
    (found,) = [line for line in lines if "from embeds" in line]
    assert "vision" in found
    (thumbnail,) = [line for line in lines if "thumbnail" in line]
    assert "100.0 ms" in thumbnail
    assert "vision" in thumbnail
    assert any("decode, 20.0 ms each" in line for line in lines)


def test_mode_reason_overlap_and_reuse_stand_below_the_table(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = overlapped_trace()
    text = printed(timings, capfd, monkeypatch)
    assert "mode overlapped: asked for" in text
    assert f"lanes overlap {timings.overlap_ratio:.0%}, prompt reused {timings.reuse_rate:.0%}" in text


def test_what_a_model_says_early_is_no_markup(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(timings_of([Span("early", 0.0, 0.1, 3, "[bold]a[/nothing] red")]), capfd, monkeypatch)
    assert "[bold]a[/nothing] red" in text
