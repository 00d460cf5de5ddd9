"""Tests of `edge-vl chat`, `models` and `doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_vl import EngineUnavailable, registry
from edge_vl.engine import EngineStatus
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
