"""`edge-vl verify`, with the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from edge_vl.cli.exit_codes import ANSWERED, BAD_INPUT, DIFFERENT, USAGE
from tests.cli.conftest import RunCli
from tests.test_verify import weak_folder

ARGUMENTS = (
    "verify", "--threads", "1", "--prompts", "1", "--vision-engine", "onnxruntime", "--language-engine", "onnxruntime",
)  # fmt: skip

__all__ = ["weak_folder"]


def test_people_get_both_sides_the_layers_and_one_verdict(cli: RunCli, tmp_path: Path) -> None:
    picture = tmp_path / "layers.png"

    done = cli(*ARGUMENTS, "--kv", "int4", "--heat-map", str(picture))

    assert done.code == ANSWERED, done.err
    assert "KV cache f32" in done.out
    assert "KV cache int4" in done.out
    assert "of the entries of each" in done.out
    assert "coverage" in done.out
    assert done.out.count("same answers:") == 1
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert image.size[1] > 100


def test_json_is_one_object_with_the_verdict(cli: RunCli, png: Path) -> None:
    done = cli(*ARGUMENTS, "--kv", "int8", "--json", str(png))

    assert done.code == ANSWERED, done.err
    facts = json.loads(done.out)
    assert facts["verdict"] in ("yes", "nearly")
    assert len(facts["layers"]["layers"]) == 4
    assert facts["compressed_share"] > 0.8
    assert facts["candidate"]["kv"] == "int8"


def test_other_answers_are_an_exit_code_of_their_own_and_are_shown(
    cli: RunCli,
    weak_folder: Path,
) -> None:
    done = cli(*ARGUMENTS, "--model", str(weak_folder), "--language-dtype", "q4")

    assert done.code == DIFFERENT == 8
    assert "same answers: no" in done.out
    assert " became " in done.out


def test_a_context_without_room_for_a_picture_and_a_question_is_refused(cli: RunCli) -> None:
    done = cli(*ARGUMENTS, "--kv", "int8", "--context-length", "100")

    assert done.code == BAD_INPUT
    assert "the context holds 100, 32 of them for the answer" in done.err


def test_prompts_that_the_context_keeps_short_are_said_to_be(cli: RunCli) -> None:
    done = cli(*ARGUMENTS, "--kv", "int8", "--context-length", "150")

    assert done.code == ANSWERED, done.err
    assert "shorter than 512" in done.out


def test_an_engine_without_layers_says_so_and_draws_nothing(cli: RunCli, tmp_path: Path) -> None:
    picture = tmp_path / "layers.png"
    arguments = [argument.replace("onnxruntime", "llama_cpp") for argument in ARGUMENTS]

    done = cli(*arguments, "--kv", "int8", "--heat-map", str(picture))

    assert done.code == ANSWERED, done.err
    assert "does not show what its cache holds" in done.out
    assert "no heat map" in done.out
    assert not picture.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to compare"),
        (("--kv", "int9"), "did you mean 'int8'"),
        (("--kv", "int8", "--heat-map", "layers.jpg"), "ends in .png"),
        (("--kv", "int8", "--heat-map", "missing/layers.png"), "there is no folder"),
        (("--kv", "int8", "--prompts", "0"), "prompts"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_loaded(cli: RunCli, arguments: tuple[str, ...], words: str) -> None:
    done = cli(*ARGUMENTS, *arguments)
    assert done.code == USAGE
    assert words in done.err


def test_errors_are_json_where_that_is_wanted(cli: RunCli) -> None:
    done = cli(*ARGUMENTS, "--json")
    assert done.code == USAGE
    assert json.loads(done.out)["error"]["type"] == "RequestError"
