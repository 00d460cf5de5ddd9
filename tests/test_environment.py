"""The environment: read in one place, checked there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edge_vl.environment import cache_dir, disable_onnxruntime_telemetry, quiet_opencv, read_environment
from edge_vl.errors import RequestError


def test_nothing_set_gives_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))

    environment = read_environment({})

    assert environment.isa == "auto"
    assert environment.cache_dir == tmp_path / ".cache/edge_vl"


def test_an_own_cache_folder_comes_before_the_users(tmp_path: Path) -> None:
    variables = {"EDGE_VL_CACHE_DIR": str(tmp_path / "own"), "XDG_CACHE_HOME": "/elsewhere"}

    assert read_environment(variables).cache_dir == tmp_path / "own"


def test_a_relative_cache_folder_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert read_environment({"EDGE_VL_CACHE_DIR": "here"}).cache_dir == tmp_path / "here"


def test_the_users_cache_folder_is_used_when_it_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert read_environment({"XDG_CACHE_HOME": "/xdg"}).cache_dir == Path("/xdg/edge_vl")
    assert read_environment({"XDG_CACHE_HOME": "xdg"}).cache_dir == tmp_path / ".cache/edge_vl"


@pytest.mark.parametrize(
    ("platform", "expected"), [("darwin", "Library/Caches/edge_vl"), ("win32", "AppData/Local/edge_vl/cache")]
)
def test_other_systems_have_folders_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert read_environment({}).cache_dir == tmp_path / expected


def test_a_file_cannot_be_the_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(RequestError, match=r"EDGE_VL_CACHE_DIR is .* not a folder"):
        read_environment({"EDGE_VL_CACHE_DIR": str(tmp_path / "file")})


def test_an_unknown_user_in_the_cache_folder_is_an_error() -> None:
    with pytest.raises(RequestError, match="EDGE_VL_CACHE_DIR"):
        read_environment({"EDGE_VL_CACHE_DIR": "~no-such-user-here/cache"})


def test_a_folder_of_profiles_is_absolute_and_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)

    assert read_environment({}).profiles_dir is None
    assert read_environment({"EDGE_VL_PROFILES_DIR": "own"}).profiles_dir == tmp_path / "own"
    for name in ("missing", "file"):
        with pytest.raises(RequestError, match=f"EDGE_VL_PROFILES_DIR is '{name}', which is not"):
            read_environment({"EDGE_VL_PROFILES_DIR": name})


def test_without_a_home_only_the_cache_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("EDGE_VL_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    assert read_environment({}).cache_dir is None
    with pytest.raises(RequestError, match="set EDGE_VL_CACHE_DIR"):
        cache_dir()


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_VL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EDGE_VL_ISA", "reference")

    assert cache_dir() == tmp_path
    assert read_environment().isa == "reference"


def test_an_empty_variable_counts_as_unset() -> None:
    assert read_environment({"EDGE_VL_ISA": ""}).isa == "auto"


@pytest.mark.parametrize(
    ("value", "hint"), [("referense", "did you mean 'reference'"), ("mmx", "known: auto, reference, scalar")]
)
def test_an_unknown_instruction_set_is_an_error_with_a_hint(value: str, hint: str) -> None:
    with pytest.raises(RequestError, match=f"EDGE_VL_ISA is '{value}'; {hint}") as caught:
        read_environment({"EDGE_VL_ISA": value})

    assert caught.value.field == "EDGE_VL_ISA"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("EDGE_VL_CACHEDIR", "did you mean EDGE_VL_CACHE_DIR"), ("EDGE_VL_XYZ", "known: EDGE_VL_CACHE_DIR")],
)
def test_an_unknown_variable_is_an_error_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(RequestError, match=f"unknown environment variable {name}; {hint}"):
        read_environment({name: "1"})


@pytest.mark.parametrize(("value", "is_off"), [(None, True), ("1", True), ("0", False)])
def test_telemetry_is_off_unless_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None, is_off: bool
) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", value or "")
    if value is None:
        monkeypatch.delenv("ORT_DISABLE_TELEMETRY")

    assert disable_onnxruntime_telemetry() is is_off
    assert os.environ["ORT_DISABLE_TELEMETRY"] == (value or "1")


def test_pulled_models_are_in_the_cache_folder_or_where_they_are_wanted(tmp_path: Path) -> None:
    cache = {"EDGE_VL_CACHE_DIR": str(tmp_path / "cache")}
    assert read_environment(cache).models_dir == tmp_path / "cache/models"
    own = read_environment({**cache, "EDGE_VL_MODELS_DIR": str(tmp_path / "own")})
    assert own.models_dir == tmp_path / "own"
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"EDGE_VL_MODELS_DIR .* not a folder"):
        read_environment({"EDGE_VL_MODELS_DIR": str(tmp_path / "file")})


def test_the_hubs_address_is_the_one_that_its_own_variable_names() -> None:
    assert read_environment({}).hub_endpoint == ""
    assert read_environment({"HF_ENDPOINT": "https://mirror.example/"}).hub_endpoint == "https://mirror.example"


@pytest.mark.parametrize("name", ["OPENCV_FFMPEG_LOGLEVEL", "OPENCV_LOG_LEVEL"])
def test_opencv_prints_nothing_unless_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")  # puts back what it was in the end
    monkeypatch.delenv(name)
    quiet_opencv()
    assert os.environ[name] in ("-8", "ERROR")

    monkeypatch.setenv(name, "INFO")
    quiet_opencv()

    assert os.environ[name] == "INFO"
