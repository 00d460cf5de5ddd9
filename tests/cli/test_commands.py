"""Tests of `edge-vl chat`, `models` and `doctor`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_vl import EngineUnavailable, registry
from edge_vl.conversation import Conversation
from edge_vl.engine import EngineStatus
from edge_vl_kernels import available_isas
from tests.cli.conftest import RunCli


def test_a_chat_answers_line_by_line_and_can_change_the_picture(cli: RunCli, png: Path, tmp_path: Path) -> None:
    pixels = np.full((128, 128, 3), 235, np.uint8)
    pixels[80:116, 80:116] = (20, 60, 220)
    Image.fromarray(pixels).save(tmp_path / "blue.png")
    lines = (
        "What is at the top left?\n\nHow many objects are there?\n"
        f"/picture {tmp_path / 'blue.png'}\nWhat is at the bottom right?\n"
        "/nonsense\n/picture missing.png\n/quit\nnever\n"
    )
    done = cli("chat", str(png), stdin=lines.encode())
    assert done.code == 0
    assert done.out.splitlines() == ["a red square", "1", "a blue square"]
    assert "missing.png" in done.err


def test_a_chat_takes_the_mode_the_kv_policy_and_whether_tiles_may_be_left_out(
    cli: RunCli, png: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    stream = Conversation.stream

    def note(self: Conversation, *arguments: Any, **options: Any) -> Any:
        asked = stream(self, *arguments, **options)
        seen.update(asked.answer.to_dict(), degrade=options["degrade"])
        return asked

    monkeypatch.setattr(Conversation, "stream", note)
    options = ("--mode", "interleaved", "--no-degrade", "--language-engine", "llama_cpp", "--kv", "int8")
    done = cli("chat", str(png), "--threads", "1", *options, stdin=b"What is at the top left?\n")

    assert done.code == 0, done.err
    assert seen["degrade"] is False
    assert seen["dtypes"]["kv"] == "int8"
    assert seen["timings"]["schedule"]["mode"] == "interleaved"
    for bad, words in ((("--mode", "sideways"), "overlapped"), (("--kv", "int5"), "did you mean 'int8'")):
        refused = cli("chat", str(png), *bad)
        assert refused.code == 2
        assert words in refused.err


def test_a_chat_refuses_a_bad_picture_before_it_loads_the_model(cli: RunCli) -> None:
    done = cli("chat", "missing.png")
    assert done.code == 3
    assert "missing.png" in done.err


def test_models_list_names_the_bundled_model(cli: RunCli) -> None:
    assert "bundled" in cli("models", "list").out
    [model] = json.loads(cli("models", "list", "--json").out)
    assert (model["name"], model["family"]) == ("bundled", "idefics3")


def test_models_info_shows_settings_and_files(cli: RunCli) -> None:
    facts = json.loads(cli("models", "info", "bundled", "--json").out)
    names = {file["name"] for file in facts["files"]}
    assert "onnx/vision_encoder.onnx" in names
    assert facts["text"]["layers"] > 0
    shown = cli("models", "info").out
    assert "onnx/decoder_model_merged.onnx" in shown
    assert "context" in shown


def test_models_info_of_an_unknown_model_says_what_is_known(cli: RunCli) -> None:
    done = cli("models", "info", "nothing-here")
    assert done.code == 4
    assert "bundled" in done.err


@pytest.mark.parametrize("value", [None, 5, "x", [1]])
def test_models_info_of_a_broken_model_is_an_answer_or_a_model_error(
    cli: RunCli, model_folder: Path, value: object
) -> None:
    for file, key, code in (
        ("preprocessor_config.json", "size", 0),
        ("config.json", "vision_config", 4),
        ("config.json", "text_config", 4),
    ):
        content = json.loads((model_folder / file).read_text())
        (model_folder / file).write_text(json.dumps({**content, key: value}))
        done = cli("models", "info", str(model_folder))
        assert (done.code, "Traceback" in done.err) == (code, False)
        assert code == 0 or f"{key} should be an object" in done.err
        (model_folder / file).write_text(json.dumps(content))


def test_doctor_finds_this_machine_ready(cli: RunCli) -> None:
    done = cli("doctor")
    assert done.code == 0
    assert "ready to answer" in done.out
    facts = json.loads(cli("doctor", "--json").out)
    assert facts["can_answer"] is True
    assert facts["engines"]["onnxruntime"]["is_available"] is True
    assert facts["machine"]["cores"] >= 1


def test_doctor_says_which_kernels_run_on_how_many_threads(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    best = available_isas()[-1]
    facts = json.loads(cli("doctor", "--json").out)["kernels"]
    assert (facts["isa"], facts["compiled"], facts["asked_for"]) == (best, best != "reference", "auto")
    assert facts["threads"] >= 1
    assert not set(facts["missing"]) & set(available_isas())

    monkeypatch.setenv("EDGE_VL_ISA", "reference")
    assert "kernels     reference: the reference was asked for" in cli("doctor").out
    if "scalar" in available_isas():
        monkeypatch.setenv("EDGE_VL_ISA", "scalar")
        assert re.search(r"kernels     scalar, compiled, as EDGE_VL_ISA says, \d+ threads?", cli("doctor").out)


@pytest.mark.skipif("neon" in available_isas(), reason="a machine that has NEON")
def test_doctor_advises_against_kernels_that_are_not_there(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_VL_ISA", "neon")
    out = cli("doctor").out
    assert "kernels     neon: the 'neon' kernels are not available" in out
    assert "advice      leave EDGE_VL_ISA out: the 'neon' kernels are not available" in out
    assert "NumPy kernels are in use" not in out


def test_doctor_says_why_no_better_kernels_run(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_vl_kernels.missing_isas", lambda: {"avx1024": "nobody makes it"})

    if "scalar" in available_isas():
        assert re.search(r"kernels     .*compiled, .*; no avx1024: nobody makes it", cli("doctor").out)


def test_doctor_gives_the_real_reason_why_an_engine_cannot_run(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EngineStatus(False, reason="libfoo.so.1: no such file", install="pip install foo")
    monkeypatch.setattr("edge_vl.doctor.engine_names", lambda: ("broken",))
    monkeypatch.setattr("edge_vl.doctor.engine_status", lambda name: broken)
    done = cli("doctor")
    assert done.code == 4
    assert "libfoo.so.1: no such file" in done.out
    assert "pip install foo" in done.out
    assert "cannot answer yet" in done.out


def test_doctor_tells_a_misspelt_variable(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_VL_CASH_DIR", "/tmp")
    done = cli("doctor")
    assert done.code == 2
    assert "EDGE_VL_CACHE_DIR" in done.err


def test_version_is_shown(cli: RunCli) -> None:
    assert cli("--version").out.startswith("edge-vl 0.")


class _Point:
    def __init__(self, name: str, value: object) -> None:
        self.name, self.value, self._loaded = name, "package:engine", value

    def load(self) -> object:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


def _install(monkeypatch: pytest.MonkeyPatch, **engines: object) -> None:
    points = {name: _Point(name, value) for name, value in engines.items()}
    monkeypatch.setattr(registry, "_points", lambda: points)


def test_a_strangers_engine_that_cannot_be_imported_tells_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, stranger=ImportError("libnpu.so is missing"))
    with pytest.raises(EngineUnavailable, match=r"libnpu\.so is missing"):
        registry.engine_named("stranger")
    assert registry.engine_status("stranger").is_available is False


def test_what_is_no_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, stranger=object())
    with pytest.raises(EngineUnavailable, match="not an engine"):
        registry.engine_named("stranger")
