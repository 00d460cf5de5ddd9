"""Tests of `edge-vl profiles`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_vl.profile_library import list_profiles
from tests.cli.conftest import RunCli
from tests.devices import DEVICES
from tests.test_profile import SMALL

IDS = {profile.id for profile in list_profiles()}


def test_list_names_every_profile_and_marks_one(cli: RunCli) -> None:
    rows = json.loads(cli("profiles", "list", "--json").out)
    assert {row["id"] for row in rows} == IDS
    assert sum(row["is_chosen"] for row in rows) == 1
    lines = cli("profiles", "list").out.splitlines()
    assert len(lines) == len(IDS)
    assert sum(line.startswith("*") for line in lines) == 1


def test_a_users_own_profile_is_listed_with_its_file(
    cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text(SMALL)
    monkeypatch.setenv("EDGE_VL_PROFILES_DIR", str(tmp_path))
    assert str(tmp_path / "own.toml") in cli("profiles", "list").out
    assert "no provenance given" in cli("profiles", "show", "own").out


@pytest.mark.parametrize("name", sorted(IDS))
def test_show_gives_every_value_with_its_provenance(cli: RunCli, name: str) -> None:
    shown = json.loads(cli("profiles", "show", name, "--json").out)
    assert shown["id"] == name
    assert all(entry["provenance"] for entry in shown["values"].values())
    text = cli("profiles", "show", name).out
    assert all(f"  {key}" in text for key in shown["values"])
    assert "no provenance given" not in text


def test_show_of_a_misspelt_profile_is_a_usage_error_with_a_hint(cli: RunCli) -> None:
    done = cli("profiles", "show", "jetson-orin-nano")
    assert done.code == 2
    assert "did you mean 'jetson-orin-nano-8gb'" in done.err


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_explain_names_every_profile_and_every_engine_with_a_reason(cli: RunCli, tmp_path: Path, name: str) -> None:
    file = tmp_path / "device.toml"
    file.write_text(DEVICES[name])

    told = json.loads(cli("profiles", "explain", "--device", str(file), "--json").out)

    assert told["profile"] == name
    assert {row["id"] for row in told["profiles"]} == IDS
    assert [row["id"] for row in told["profiles"] if row["is_taken"]] == [name]
    assert all(row["reason"] for row in told["profiles"])
    profile = next(one for one in list_profiles() if one.id == name)
    for lane in (profile.vision, profile.language):
        attempts = told["lanes"]["vision" if lane is profile.vision else "language"]["attempts"]
        assert [attempt["engine"] for attempt in attempts][: len(lane.engines)] == [one.name for one in lane.engines]
        assert all(attempt["reason"] for attempt in attempts)
        assert sum(attempt["outcome"] == "taken" for attempt in attempts) == 1
    text = cli("profiles", "explain", "--device", str(file)).out
    assert all(one in text for one in IDS)
    assert f"* {name}" in text
    assert all(note in text for note in told["notes"])


def test_explain_of_this_machine_obeys_the_options(cli: RunCli) -> None:
    told = json.loads(
        cli(
            "profiles",
            "explain",
            "--json",
            "--profile",
            "riscv64",
            "--vision-engine",
            "onnxruntime",
            "--vision-dtype",
            "int8",
        ).out
    )
    assert told["profile"] == "riscv64"
    assert told["lanes"]["vision"]["options"]["dtype"] == "int8"
    assert any("meant for another device" in note for note in told["notes"])


def test_explain_of_a_broken_device_file_names_the_key(cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "device.toml").write_text('arch = "x86_64"\nmemory_mib = 5\n')
    done = cli("profiles", "explain", "--device", str(tmp_path / "device.toml"))
    assert done.code == 2
    assert "memory_mib: unknown key" in done.err
    assert cli("profiles", "explain", "--device", "missing.toml").code == 2


def test_ask_and_chat_take_a_profile(cli: RunCli, png: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SMALL.replace('"llama_cpp"', '"onnxruntime"').replace('"q4_0", ', ""))
    done = cli("ask", str(png), "What is at the top left?", "--profile", str(tmp_path / "own.toml"))
    assert (done.code, done.out.strip()) == (0, "a red square")
    done = cli("chat", str(png), "--profile", "generic-cpu", stdin=b"What is at the top left?\n")
    assert (done.code, done.out.strip()) == (0, "a red square")
    for command in (("ask", str(png), "What?"), ("chat", str(png))):
        done = cli(*command, "--profile", "generic-cpus")
        assert done.code == 2
        assert "did you mean 'generic-cpu'" in done.err
