"""Tests of what a device profile wants to be pulled."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_vl.device_file import read_device
from edge_vl.profile_library import find_profile, list_profiles
from edge_vl.wanted_by_profile import files_for, wanted_here
from tests.devices import DEVICES


def test_a_cpu_wants_onnx_to_see_with_and_gguf_to_speak_with() -> None:
    wanted = files_for(find_profile("generic-cpu", list_profiles()), lambda name: True)
    assert wanted.vision_forms == ("onnx", "gguf")
    assert wanted.language_forms == ("gguf", "onnx")
    assert wanted.onnx_vision_dtypes[0] == "fp32"
    assert wanted.gguf_language_dtypes[0] == "q8_0"


def test_files_that_only_a_missing_engine_reads_come_last() -> None:
    profile = find_profile("generic-cpu", list_profiles())
    assert files_for(profile, lambda name: name == "onnxruntime").language_forms == ("onnx", "gguf")
    assert files_for(profile, lambda name: name == "llama_cpp").vision_forms == ("gguf", "onnx")


def test_every_profile_wants_something_for_both_lanes() -> None:
    for profile in list_profiles():
        wanted = files_for(profile, lambda name: True)
        assert set(wanted.vision_forms) == set(wanted.language_forms) == {"onnx", "gguf"}, profile.id
        assert "int8" not in wanted.onnx_vision_dtypes[:1], profile.id


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_the_profile_of_the_machine_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "device.toml").write_text(DEVICES[name])
    assert wanted_here(read_device(tmp_path / "device.toml"))[1] == name
