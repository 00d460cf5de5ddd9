"""The doctor: device, profile, what would run, and what would make it better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge_vl import EdgeVLError, doctor
from edge_vl.accelerators import Gpu
from edge_vl.device_file import read_device
from edge_vl.engine import EngineStatus
from edge_vl.engine_choice import EngineFacts
from edge_vl.machine import Machine, read_machine
from edge_vl.testing import FakeEngine
from tests.cli.conftest import RunCli
from tests.devices import DEVICES
from tests.test_profile import SMALL


def on(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> doctor.Diagnosis:
    monkeypatch.setattr(doctor, "read_machine", lambda: machine)
    return doctor.diagnose()


def described(tmp_path: Path, name: str) -> Machine:
    file = tmp_path / "device.toml"
    file.write_text(DEVICES[name])
    return read_device(file)


def test_the_profile_and_both_lanes_of_the_bundled_model_are_told() -> None:
    found = doctor.diagnose()

    assert found.profile
    assert found.profile_reason
    assert set(found.lanes) == {"vision", "language"}
    assert "onnxruntime, dtype auto" in found.lanes["vision"]


def test_on_a_jetson_it_tells_what_the_profile_would_rather_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = on(monkeypatch, described(tmp_path, "jetson-orin-nano-8gb"))

    assert found.profile == "jetson-orin-nano-8gb"
    assert "the device tree says" in found.profile_reason
    [advice] = [advice for advice in found.advice if "tensorrt" in advice]
    assert "prefers tensorrt for vision and language (no installed package offers it" in advice
    assert any("it offers cpu here, not cuda" in advice for advice in found.advice)


def test_the_command_that_installs_a_preferred_engine_is_in_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = EngineStatus(False, reason="No module named 'llama_cpp'", install="pip install llama-cpp-python")
    here = FakeEngine(name="onnxruntime")
    known = EngineFacts(EngineStatus(True, devices=("cpu",)), here, {"vision": ("fp32",), "language": ("fp32",)})
    monkeypatch.setattr(
        "edge_vl.profile_choice._look", lambda name, model: known if name == "onnxruntime" else EngineFacts(missing)
    )
    monkeypatch.setattr(doctor, "engine_names", lambda: ("llama_cpp", "other"))
    monkeypatch.setattr(doctor, "engine_status", lambda name: missing)

    found = on(monkeypatch, replace(read_machine(), gpus=(), compatible=(), arch="x86_64"))

    assert found.advice[0] == (
        "the device's profile prefers llama_cpp for language of models above 100 MiB (No module named 'llama_cpp'): "
        "pip install llama-cpp-python"
    )
    assert sum("engine llama_cpp" in advice for advice in found.advice) == 0, "it is told once"
    assert any(advice.startswith("engine other cannot run") for advice in found.advice)


def test_the_processors_features_are_told_with_what_they_are_good_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on(monkeypatch, described(tmp_path, "raspberry-pi-5")).features == {"int8 vision on onnxruntime": "asimddp"}
    assert on(monkeypatch, described(tmp_path, "raspberry-pi-4")).features == {}


def test_accelerators_are_shown_and_what_is_unknown_of_them_is_advice(
    monkeypatch: pytest.MonkeyPatch, cli: RunCli
) -> None:
    gpu = Gpu("NVIDIA L4", "nvidia", 23 << 30, compute_capability="8.9", source="nvml")
    machine = replace(
        read_machine(), gpus=(gpu, Gpu("Orin", "nvidia", is_unified=True)), notes=("ask NVML",), l4t="36.4"
    )
    monkeypatch.setattr(doctor, "read_machine", lambda: machine)

    shown = cli("doctor").out

    assert "NVIDIA L4, 23.0 GiB of memory, compute capability 8.9 (from nvml)" in shown
    assert "Orin, the machine's memory" in shown
    assert "Jetson Linux 36.4" in shown
    assert "ask NVML" in shown
    assert "profile     l4: " in shown


def test_a_broken_profile_of_the_users_is_told_and_the_rest_still_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: RunCli
) -> None:
    (tmp_path / "own.toml").write_text(SMALL.replace("schema = 1", "schema = 9"))
    monkeypatch.setenv("EDGE_VL_PROFILES_DIR", str(tmp_path))

    done = cli("doctor")

    assert done.code == 0
    assert "own.toml: schema should be" in done.out
    assert "profile     none" in done.out


def test_a_broken_bundled_model_leaves_the_lanes_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: object) -> None:
        raise EdgeVLError("its files are gone")

    monkeypatch.setattr(doctor, "find_model", broken)

    found = doctor.diagnose()

    assert found.lanes == {}
    assert found.models == {"bundled": "its files are gone"}
    assert not found.can_answer
