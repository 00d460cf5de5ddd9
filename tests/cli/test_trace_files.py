"""Tests of `edge-vl ask --trace` and `--waterfall`."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edge_vl.runtime import Runtime
from tests.cli.conftest import RunCli

QUESTION = "What is at the top left?"


def test_both_files_say_what_the_answer_says(cli: RunCli, png: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    trace, picture = folder / "out.json", folder / "out.svg"
    done = cli("ask", str(png), QUESTION, "--json", "--trace", str(trace), "--waterfall", str(picture))
    timings = json.loads(done.out)["timings"]
    assert (done.code, done.err) == (0, "")

    events = json.loads(trace.read_text())["traceEvents"]
    for stage in ("encode", "prefill", "decode"):
        took_us = sum(event["dur"] for event in events if event["ph"] == "X" and event["cat"] == stage)
        assert took_us == pytest.approx(timings["stages_s"][stage] * 1e6, abs=5)
    (first,) = [event for event in events if event["name"] == "first token"]
    assert first["ts"] == pytest.approx(timings["first_token_s"] * 1e6, abs=1)

    root = ElementTree.fromstring(picture.read_text())
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert QUESTION in words
    assert {"caller", "vision", "language", "onnxruntime fp32"} <= set(words)
    assert sorted(path.name for path in folder.iterdir()) == ["out.json", "out.svg"]


@pytest.mark.parametrize("mode", ["serial", "interleaved", "overlapped"])
def test_the_mode_that_is_asked_for_is_in_the_trace(cli: RunCli, png: Path, tmp_path: Path, mode: str) -> None:
    trace = tmp_path / "out.json"
    done = cli("ask", str(png), QUESTION, "--mode", mode, "--trace", str(trace))
    assert (done.code, done.out) == (0, "a red square\n")
    (facts,) = json.loads(trace.read_text())["otherData"].values()
    assert facts["schedule"]["mode"] == mode
    assert (facts["overlap_ratio"] > 0) <= (mode == "overlapped")


def test_an_unknown_mode_is_refused_with_the_known_ones(cli: RunCli, png: Path) -> None:
    done = cli("ask", str(png), QUESTION, "--mode", "parallel")
    assert done.code == 2
    assert "overlapped" in done.err


@pytest.mark.parametrize("option", ["--trace", "--waterfall"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/out", "there is no folder"),
        (".", "it is a folder"),
        ("x" * 300, "too long"),
        ("red.png/out", "there is no folder"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    cli: RunCli, png: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str, words: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(Runtime, "open", fail)
    done = cli("ask", str(png), QUESTION, option, f"{tmp_path}/{name}")
    assert (done.code, done.out) == (2, "")
    assert option in done.err
    assert words in done.err
    assert "Traceback" not in done.err
    error = json.loads(cli("ask", str(png), QUESTION, option, f"{tmp_path}/{name}", "--json").out)["error"]
    assert error["type"] == "RequestError"


def test_one_file_cannot_be_both(cli: RunCli, png: Path, tmp_path: Path) -> None:
    out, same = tmp_path / "out", tmp_path / "." / "out"
    done = cli("ask", str(png), QUESTION, "--trace", str(out), "--waterfall", str(same))
    assert done.code == 2
    assert "same file" in done.err
    assert not out.exists()


def test_a_file_that_is_there_is_replaced_through_its_link_with_its_permissions(
    cli: RunCli, png: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    old, link = folder / "old.svg", tmp_path / "link.svg"
    old.write_text("old")
    old.chmod(0o604)
    link.symlink_to(old)
    assert cli("ask", str(png), QUESTION, "--waterfall", str(link)).code == 0
    assert link.is_symlink()
    assert old.read_text().startswith("<svg")
    assert stat.S_IMODE(old.stat().st_mode) == 0o604
    assert [path.name for path in folder.iterdir()] == ["old.svg"]


def test_a_question_that_came_too_late_shows_how_far_it_came(cli: RunCli, png: Path, tmp_path: Path) -> None:
    trace, picture = tmp_path / "late.json", tmp_path / "late.svg"
    arguments = ("--trace", str(trace), "--waterfall", str(picture), "--deadline-s", "0.000001")
    assert cli("ask", str(png), QUESTION, *arguments).code == 6
    assert json.loads(trace.read_text())["traceEvents"]
    assert "deadline" in picture.read_text()


def test_a_picture_that_cannot_be_used_leaves_the_old_file(cli: RunCli, tmp_path: Path) -> None:
    old, bad = tmp_path / "old.json", tmp_path / "bad.png"
    old.write_text("old")
    bad.write_text("no picture")
    assert cli("ask", str(bad), QUESTION, "--trace", str(old)).code == 3
    assert old.read_text() == "old"
    assert not [path.name for path in tmp_path.iterdir() if "edge-vl" in path.name]


def test_a_full_disk_is_told_behind_the_answer(cli: RunCli, png: Path) -> None:
    done = cli("ask", str(png), QUESTION, "--trace", "/dev/full")
    assert (done.code, done.out) == (70, "a red square\n")
    assert "the trace cannot be written" in done.err
    assert "defect" not in done.err


def test_the_picture_asked_about_is_not_written_over(cli: RunCli, png: Path) -> None:
    before = png.read_bytes()
    done = cli("ask", str(png), QUESTION, "--waterfall", str(png))
    assert done.code == 2
    assert "is the picture asked about" in done.err
    assert png.read_bytes() == before


def test_a_pipe_that_nobody_reads_is_told(cli: RunCli, png: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = cli("ask", str(png), QUESTION, "--trace", str(pipe))
    assert done.out == "a red square\n"
    assert "the trace cannot be written" in done.err
