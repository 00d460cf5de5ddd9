"""`edge-vl tune`, with the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import RunCli

ARGUMENTS = (
    "tune", "--threads", "1", "--rounds", "1", "--context-length", "512",
    "--vision-engine", "onnxruntime", "--language-engine", "onnxruntime",
)  # fmt: skip


def test_people_get_a_table_and_what_follows_from_it(cli: RunCli, costs_folder: Path) -> None:
    done = cli(*ARGUMENTS)

    assert done.code == 0, done.err
    for heading in ("past", "chunk", "ms/token", "of best", "waits for", "logits error"):
        assert heading in done.out
    assert done.out.count("100%") >= 2, "each past has a best size"
    assert "behind 0 entries a pass takes " in done.out
    assert "behind 256 entries a pass takes " in done.out
    assert "kept for later runs" in done.out
    assert len(list(costs_folder.iterdir())) == 1


def test_json_is_one_object_with_every_row(cli: RunCli, costs_folder: Path) -> None:
    done = cli(*ARGUMENTS, "--json")

    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["model"], facts["language_engine"], facts["threads"]) == ("bundled", "onnxruntime", "1+1")
    assert [(row["past"], row["num_tokens"]) for row in facts["chunks"]] == [
        (past, size) for past in (0, 256) for size in (16, 32, 64, 128, 256)
    ]
    assert all(row["token_s"] > 0 for row in facts["chunks"])
    assert {choice["past"] for choice in facts["chosen"]} == {0, 256}
    assert all(16 <= choice["num_tokens_while_answering"] <= 64 for choice in facts["chosen"])
    assert Path(facts["file"]).parent == costs_folder


def test_a_kv_policy_has_a_table_of_its_own(cli: RunCli, costs_folder: Path) -> None:
    arguments = [argument.replace("onnxruntime", "llama_cpp") for argument in ARGUMENTS]
    for kv in ("int8", "f16"):
        done = cli(*arguments, "--json", "--kv", kv)
        assert done.code == 0, done.err
        assert json.loads(done.out)["language_dtype"] == f"fp16 KV {kv}"
    assert len(list(costs_folder.iterdir())) == 2


def test_an_unknown_model_is_told_in_json_too(cli: RunCli) -> None:
    done = cli("tune", "--model", "bundlet", "--json")

    assert done.code == 4
    assert json.loads(done.out)["error"]["type"] == "ModelError"
    assert "did you mean 'bundled'" in done.err


def test_no_rounds_at_all_are_a_usage_error(cli: RunCli) -> None:
    assert cli("tune", "--rounds", "0").code == 2
