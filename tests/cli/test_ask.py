"""Tests of `edge-vl ask` with the bundled model."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edge_vl
from edge_vl.runtime import Runtime
from tests.cli.conftest import RunCli


def test_the_answer_is_all_that_standard_output_gets(cli: RunCli, png: Path) -> None:
    done = cli("ask", str(png), "What is at the top left?")
    assert (done.code, done.out, done.err) == (0, "a red square\n", "")


def test_a_picture_may_come_through_standard_input(cli: RunCli, png: Path) -> None:
    done = cli("ask", "-", "What is at the top left?", stdin=png.read_bytes())
    assert (done.code, done.out) == (0, "a red square\n")


def test_json_has_one_object_with_all_that_a_script_needs(cli: RunCli, png: Path) -> None:
    done = cli("ask", str(png), "What is at the top left?", "--json")
    answer = json.loads(done.out)
    needed = {"text", "finish_reason", "model", "vision_engine", "language_engine", "dtypes", "usage", "timings"}
    assert needed | {"reused", "degraded"} <= set(answer)
    assert answer["text"] == "a red square"
    assert answer["vision_engine"] == answer["language_engine"] == "onnxruntime"


def test_verbose_shows_every_stage_on_standard_error(cli: RunCli, png: Path) -> None:
    done = cli("ask", str(png), "What is at the top left?", "--verbose")
    assert done.out == "a red square\n"
    for stage in ("picture", "tile", "encode", "prefill", "first token", "decode", "tokens/s", "attention: "):
        assert stage in done.err


def test_max_tokens_and_stop_reach_the_runtime(cli: RunCli, png: Path) -> None:
    assert cli("ask", str(png), "What is at the top left?", "--stop", " square").out == "a red\n"
    short = json.loads(cli("ask", str(png), "Describe the picture.", "--max-tokens", "2", "--json").out)
    assert (short["finish_reason"], short["usage"]["completion_tokens"]) == ("length", 2)


def test_the_kv_policy_is_what_the_answer_names(cli: RunCli, png: Path) -> None:
    engine = ("--language-engine", "llama_cpp", "--threads", "1")
    for said, name in (("text=int8", "int8"), ("q4_0", "int4"), ("auto", "f16")):
        done = cli("ask", str(png), "What is at the top left?", "--json", "--kv", said, *engine)
        assert json.loads(done.out)["dtypes"]["kv"] == name, done.err


def test_no_degrade_keeps_every_tile_whatever_the_deadline(
    cli: RunCli, png: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    stream = Runtime.stream

    def note(self: Runtime, *arguments: Any, **options: Any) -> Any:
        asked.append(options["degrade"])
        return stream(self, *arguments, **options)

    monkeypatch.setattr(Runtime, "stream", note)
    for option in ((), ("--no-degrade",), ("--degrade",)):
        assert cli("ask", str(png), "What is at the top left?", *option).out == "a red square\n"
    assert asked == [True, False, True]


def test_the_same_seed_gives_the_same_answer(cli: RunCli, png: Path) -> None:
    options = ("--temperature", "1.5", "--top-p", "0.95", "--seed", "5")
    one, other = (cli("ask", str(png), "Describe the picture.", *options).out for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ask", "only-one.png"], 2, "picture and a question"),
        (["ask"], 2, "PICTURE"),
        (["ask", "-", "-", "What?"], 2, "one picture only"),
        (["ask", "missing.png", "What?"], 3, "missing.png"),
        (["ask", "missing.png", ""], 2, "empty"),
        (["ask", "PNG", "What?", "--model", "bundeld"], 4, "did you mean 'bundled'"),
        (["ask", "PNG", "What?", "--vision-engine", "nope"], 4, "onnxruntime"),
        (["ask", "PNG", "What?", "--language-dtype", "q3"], 4, "q3"),
        (["ask", "PNG", "What?", "--kv", "int5"], 2, "did you mean 'int8'"),
        (["ask", "PNG", "What?", "--kv", "text=int8,image"], 2, "'image' is no part"),
        (["ask", "PNG", "What?", "--language-engine", "llama_cpp", "--kv", "image=int4"], 2, "image cannot be said"),
        (["ask", "PNG", "What?", "--temperature", "-1"], 2, "temperature"),
        (["ask", "PNG", "What?", "--max-tokens", "0"], 2, "max_tokens"),
        (["ask", "PNG", "What?", "--deadline-s", "0.000001"], 6, "deadline"),
        (["ask", "PNG", "long " * 3000], 3, "tokens"),
        (["ask", "PNG", "What?", "--colour"], 2, "--colour"),
        (["sing"], 2, "sing"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_by_the_exit_code(
    cli: RunCli, png: Path, arguments: list[str], code: int, words: str
) -> None:
    done = cli(*(str(png) if argument == "PNG" else argument for argument in arguments))
    assert done.code == code
    assert done.out == ""
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_question_in_the_place_of_a_picture_is_explained(cli: RunCli, png: Path) -> None:
    done = cli("ask", "What is it?", str(png))
    assert done.code == 2
    assert "is a picture" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_code_for_cancelled(png: Path, number: int) -> None:
    command = [sys.executable, "-m", "edge_vl", "chat", str(png)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"/quit" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(20) == 7
        assert process.stderr.read() == b"edge-vl: cancelled\n"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("ask PNG 'Describe the picture.' | true; exit ${PIPESTATUS[0]}", 7, ""),
        ("models info | true; exit ${PIPESTATUS[0]}", 7, ""),
        ("ask PNG 'What is it?' >/dev/full", 70, "cannot be written"),
        ("models info >/dev/full", 70, "cannot be written"),
        ("ask PNG 'Describe the picture.' >&-", 2, "nowhere to write to"),
        ("ask - 'What is it?' <&-", 3, "standard input is closed"),
        ("chat PNG <&-", 0, "/quit"),
        (r"chat PNG < <(printf '\xff\xfe\n')", 0, "/quit"),
        ("ask PNG 'What is it?' 2>&-", 0, ""),
        ("ask /nope 'What is it?' 2>&-", 3, ""),
        ("ask PNG " + "\u8fd9\u662f\u4ec0\u4e48" * 40, 0, ""),
        ("ask PNG What? --model " + "a" * 300, 4, "cannot be a folder"),
    ],
)
def test_odd_streams_and_long_words_are_no_defects(png: Path, line: str, code: int, words: str) -> None:
    command = f"{sys.executable} -m edge_vl {line.replace('PNG', str(png))}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr.decode()
    assert words in done.stderr.decode()
    for sign in (b"Traceback", b"Exception", b"defect"):
        assert sign not in done.stderr
    if "2>&-" in line:
        assert b"edge-vl:" not in done.stdout


def test_an_error_is_an_object_too_where_json_is_wanted(cli: RunCli, png: Path) -> None:
    done = cli("ask", str(png), "What is it?", "--json", "--deadline-s", "0.000001")
    error = json.loads(done.out)["error"]
    assert done.code == 6
    assert error["type"] == "DeadlineExceeded"
    assert error["stage"]
    assert "deadline" in error["message"]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("rtsp://u:geheim@cam/x", "'rtsp://***@cam/x'"),
        ("https://cam/x.jpg", "https://cam/x.jpg"),
        ("synthetic", "synthetic"),
        ("synthetic:320x240@5", "synthetic:320x240@5"),
        ("0", "0"),
        ("/dev/video0", "/dev/video0"),
        ("csi:0", "csi:0"),
    ],
)
def test_a_camera_in_the_place_of_a_picture_is_told_to_be_watched(cli: RunCli, source: str, shown: str) -> None:
    done = cli("ask", source, "What is it?")
    assert (done.code, done.out) == (2, "")
    assert f"edge-vl watch {shown} 'What is it?' --max-answers 1" in done.err
    assert "geheim" not in done.err


def test_a_file_with_the_name_of_a_camera_is_a_picture(
    cli: RunCli, png: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(png, tmp_path / "synthetic")
    monkeypatch.chdir(tmp_path)
    assert cli("ask", "synthetic", "What is at the top left?").code == 0


def test_a_question_without_quotes_is_explained(cli: RunCli, png: Path) -> None:
    done = cli("ask", str(png), "What", "is", "at", "the", "top", "left?")
    assert done.code == 2
    assert "quotes" in done.err


@pytest.fixture
def text_model(tmp_path: Path) -> str:
    """Copy the text model's file of the bundled pair: alone, it reads text only."""
    file = tmp_path / "text.gguf"
    shutil.copy(next((Path(edge_vl.__file__).parent / "bundled_model/gguf").glob("*text*.gguf")), file)
    return str(file)


def test_a_model_that_reads_text_only_is_asked_without_a_picture(cli: RunCli, png: Path, text_model: str) -> None:
    done = cli("ask", "Hello, who are you?", "--model", text_model, "--threads", "1")
    assert done.code == 0
    assert done.out.strip()
    refused = cli("ask", str(png), "What is at the top left?", "--model", text_model)
    assert (refused.code, refused.out) == (3, "")
    assert "reads text only" in refused.err


def test_a_chat_with_a_model_that_reads_text_only_needs_no_picture(cli: RunCli, png: Path, text_model: str) -> None:
    done = cli("chat", "--model", text_model, "--threads", "1", stdin=b"Hello, who are you?\n")
    assert done.code == 0
    assert done.out.strip()
    assert cli("chat", str(png), "--model", text_model).code == 3
    assert cli("chat").code == 2


def test_what_runs_instead_of_a_missing_engine_is_said_on_standard_error(
    cli: RunCli, png: Path, tmp_path: Path
) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text(
        'schema = 1\nid = "mine"\nname = "Mine"\n[[vision.engines]]\nname = "llamacpp"\n'
        '[[vision.engines]]\nname = "onnxruntime"\n[[language.engines]]\nname = "onnxruntime"\n'
    )
    done = cli("ask", str(png), "What is at the top left?", "--profile", str(profile))
    assert (done.code, done.out) == (0, "a red square\n")
    assert "note: vision: profile mine prefers llamacpp" in done.err
    assert "did you mean 'llama_cpp'?" in done.err
    answer = json.loads(cli("ask", str(png), "What is this?", "--profile", str(profile), "--json").out)
    assert answer["profile"] == "mine"
    assert len(answer["notes"]) == 1
