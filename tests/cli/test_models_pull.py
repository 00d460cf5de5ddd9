"""Tests of `edge-vl models pull`, `list` and `remove` against a double of the Hub."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_vl.catalog import CatalogEntry
from edge_vl.models import BUNDLED, find_model
from tests.cli.conftest import RunCli
from tests.hub_double import Fault, HubDouble, RepoDouble

REPO, GGUF_REPO = "edge/tiny-VLM", "edge/tiny-VLM-GGUF"
FOLDER = find_model(BUNDLED).path


@pytest.fixture
def double(hub_double: HubDouble, monkeypatch: pytest.MonkeyPatch) -> HubDouble:
    files = RepoDouble.of_folder(FOLDER).files
    hub_double.repos[REPO] = RepoDouble({path: data for path, data in files.items() if not path.startswith("gguf/")})
    hub_double.repos[GGUF_REPO] = RepoDouble.of_folder(FOLDER, under="gguf", card={"license": "mit"})
    entry = CatalogEntry("tiny", "The bundled model, from afar", repo=REPO, gguf=GGUF_REPO)
    monkeypatch.setattr("edge_vl.pull.catalog", lambda: {"tiny": entry})
    return hub_double


def command(double: HubDouble, tmp_path: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return what starts the real command in a process of its own, and its environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "EDGE_VL_"))}
    variables = {
        "HF_ENDPOINT": double.endpoint,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "EDGE_VL_MODELS_DIR": str(tmp_path / "models"),
    }
    return [sys.executable, "-m", "edge_vl", *arguments], kept | variables


def test_a_pull_shows_licences_and_files_first_and_prints_the_folder(
    cli: RunCli, double: HubDouble, tmp_path: Path
) -> None:
    done = cli("models", "pull", "tiny")
    assert (done.code, done.out) == (0, f"{tmp_path / 'models/tiny'}\n")
    assert f"from {REPO} at {double.repos[REPO].commit[:12]}; licence: apache-2.0" in done.err
    assert f"from {GGUF_REPO} at" in done.err
    assert "licence: mit" in done.err
    assert "gguf/edge-vl-bundled-text-f16.gguf" in done.err
    assert "\x1b" not in done.err


def test_what_was_pulled_is_asked_and_listed_without_the_hub(cli: RunCli, double: HubDouble, png: Path) -> None:
    assert cli("models", "pull", "tiny", "--form", "onnx").code == 0
    double.stop()
    engines = ("--vision-engine", "onnxruntime", "--language-engine", "onnxruntime")
    asked = cli("ask", str(png), "What is at the top left?", "--model", "tiny", *engines)
    assert (asked.code, asked.out) == (0, "a red square\n")
    rows = {row["name"]: row for row in json.loads(cli("models", "list", "--json").out)}
    assert rows["tiny"]["licence"] == "apache-2.0"
    assert rows["tiny"]["from"] == [f"{REPO}@{double.repos[REPO].commit[:12]}"]
    assert rows["tiny"]["bytes"] > 1e6
    assert "tiny" in cli("models", "list").out
    assert json.loads(cli("models", "info", "tiny", "--json").out)["name"] == "tiny"


def test_a_list_of_all_names_what_can_be_pulled(cli: RunCli, double: HubDouble) -> None:
    rows = {row["name"]: row for row in json.loads(cli("models", "list", "--all", "--json").out)}
    assert rows["smolvlm-256m"]["pulled"] is False
    assert "to pull" in cli("models", "list", "--all").out
    assert "smolvlm-256m" not in cli("models", "list").out


def test_a_model_whose_files_are_gone_is_listed_with_its_problem(
    cli: RunCli, double: HubDouble, tmp_path: Path
) -> None:
    cli("models", "pull", "tiny", "--form", "onnx")
    (tmp_path / "models/tiny/onnx/embed_tokens.onnx").unlink()
    done = cli("models", "list")
    assert done.code == 0
    assert "embed_tokens.onnx is gone" in done.out


def test_a_dry_run_downloads_nothing(cli: RunCli, double: HubDouble, tmp_path: Path) -> None:
    done = cli("models", "pull", "tiny", "--dry-run", "--json", "--language-dtype", "f16")
    facts = json.loads(done.out)
    assert [source["licence"] for source in facts["sources"]] == ["apache-2.0", "mit"]
    assert facts["bytes"] == sum(file["bytes"] for file in facts["files"])
    assert not (tmp_path / "models").exists()
    assert not (tmp_path / "cache").exists()


def test_json_is_the_manifest_or_the_error(cli: RunCli, double: HubDouble, tmp_path: Path) -> None:
    facts = json.loads(cli("models", "pull", REPO, "--json").out)
    assert (facts["path"], facts["name"]) == (str(tmp_path / "models/edge--tiny-VLM"), "edge--tiny-VLM")
    done = cli("models", "pull", "edge/nothing", "--json")
    assert (done.code, json.loads(done.out)["error"]["type"]) == (4, "ModelError")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nothing-like-it",), 4, "no model is known"),
        (("edge/missing",), 4, "does not exist"),
        (("edge/ bad",), 2, "not the name of a repository"),
        (("tiny", "--form", "torch"), 2, "unknown form"),
        (("tiny", "--vision-dtype", "q9"), 2, "unknown precision"),
        (("tiny", "--language-dtype", "q2_k"), 4, "there are: GGUF f16, ONNX fp32"),
        (("tiny", "--revision", "v1"), 2, "name one of them with --revision"),
        ((REPO, "--revision", "v1"), 4, "no such revision"),
        ((), 2, "Missing argument"),
    ],
)
def test_what_cannot_be_pulled_ends_with_its_code(
    cli: RunCli, double: HubDouble, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = cli("models", "pull", *arguments)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_revision_of_one_repository_is_pulled(cli: RunCli, double: HubDouble) -> None:
    commit = double.repos[GGUF_REPO].commit
    done = cli("models", "pull", GGUF_REPO, "--revision", commit)
    assert done.code == 0
    assert commit[:12] in done.err


def test_a_model_is_removed_and_its_downloads_when_wanted(cli: RunCli, double: HubDouble, tmp_path: Path) -> None:
    cli("models", "pull", "tiny")
    blobs = [tmp_path / f"cache/models--{repo.replace('/', '--')}/blobs" for repo in (REPO, GGUF_REPO)]
    done = cli("models", "remove", "tiny")
    assert (done.code, done.out) == (0, "removed tiny\n")
    assert "stay in the Hub's cache" in done.err
    assert all(list(folder.iterdir()) for folder in blobs)
    assert cli("models", "remove", "tiny").code == 4

    cli("models", "pull", "tiny")
    done = cli("models", "remove", REPO, "--downloads")
    assert (done.code, done.err) == (0, "")
    assert [path for folder in blobs for path in folder.iterdir()] == []


def test_downloads_that_another_model_uses_stay(cli: RunCli, double: HubDouble) -> None:
    cli("models", "pull", "tiny", "--form", "onnx")
    cli("models", "pull", REPO)
    done = cli("models", "remove", "tiny", "--downloads")
    assert done.code == 0
    assert "another model uses them" in done.err
    double.requests.clear()
    assert cli("models", "pull", "tiny", "--form", "onnx").code == 0
    assert double.bodies_of(".onnx") == []


@pytest.mark.parametrize("name", ["bundled", "missing", "..", "a/b"])
def test_what_was_not_pulled_is_not_removed(cli: RunCli, double: HubDouble, name: str) -> None:
    done = cli("models", "remove", name)
    assert done.code == 4
    assert "cannot be removed" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_pull_that_is_stopped_goes_on_where_it_was(double: HubDouble, tmp_path: Path, number: signal.Signals) -> None:
    # Larger than the library's chunks of 10 MiB, which is what may be lost.
    content = double.repos[REPO].files["onnx/decoder_model_merged.onnx"] = bytes(range(256)) * 60_000
    name = f"{hashlib.sha256(content).hexdigest()}.edge_vl.incomplete"
    double.faults["decoder_model_merged.onnx"] = [Fault(pause_s=0.02)]
    arguments, variables = command(double, tmp_path, "models", "pull", REPO)
    process = subprocess.Popen(arguments, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 60
    while not (parts := [part for part in tmp_path.rglob(name) if part.stat().st_size > 0]):
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (7 if number == signal.SIGINT else -number)
    assert ("edge-vl: cancelled" in err) == (number == signal.SIGINT)
    there = parts[0].stat().st_size
    assert 0 < there < len(content)

    double.requests.clear()
    done = subprocess.run(arguments, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'models/edge--tiny-VLM'}\n")
    [rest] = [request for request in double.bodies_of("decoder_model_merged.onnx") if "/cdn/" in request.path]
    assert rest.range == f"bytes={there}-"
    assert (tmp_path / "models/edge--tiny-VLM/onnx/decoder_model_merged.onnx").read_bytes() == content


def test_a_bar_is_drawn_on_a_terminal_on_standard_error(double: HubDouble, tmp_path: Path) -> None:
    arguments, variables = command(double, tmp_path, "models", "pull", REPO)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        arguments, env={**variables, "TERM": "xterm", "COLUMNS": "120"}, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # how Linux tells that the other side is closed
            break
        if not piece:
            break
        drawn += piece
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    assert out.decode() == f"{tmp_path / 'models/edge--tiny-VLM'}\n"
    assert b"MiB" in drawn
    assert b"\x1b[" in drawn
