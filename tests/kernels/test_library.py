"""The compiled library: found, checked, and where it does not fit, left alone for a reason that can be read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edge_vl_kernels import status
from edge_vl_kernels.library import _file_name, open_library

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def test_the_status_names_the_library_and_the_instruction_set() -> None:
    found = status()

    if found.compiled:
        assert found.library is not None
        assert found.library.is_file()
        assert found.isa == "scalar"
        assert not found.reason
    else:
        assert found.isa == "reference"
        assert found.reason


def test_the_reference_can_be_asked_for() -> None:
    found = status("reference")

    assert not found.compiled
    assert found.isa == "reference"
    assert found.library is None
    assert "asked for" in found.reason


def test_a_missing_library_falls_back_and_says_so(tmp_path: Path) -> None:
    found = open_library([tmp_path])

    assert found.functions is None
    assert found.status.isa == "reference"
    assert "without a C++ compiler" in found.status.reason


def test_a_file_that_is_no_library_falls_back_and_says_so(tmp_path: Path) -> None:
    (tmp_path / _file_name()).write_bytes(b"not a library")

    found = open_library([tmp_path])

    assert found.functions is None
    assert "cannot be loaded" in found.status.reason


@needs_compiler
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('extern "C" int edge_vl_kernels_abi_version() { return 999; }', "has ABI 999, not 1; reinstall"),
        ("int unrelated;", "cannot be loaded"),
    ],
)
def test_a_library_of_another_version_falls_back_and_says_so(tmp_path: Path, source: str, reason: str) -> None:
    (tmp_path / "stranger.cpp").write_text(source)
    command = ["g++", "-shared", "-fPIC", "-o", str(tmp_path / _file_name()), str(tmp_path / "stranger.cpp")]
    subprocess.run(command, check=True)

    found = open_library([tmp_path / "not there", tmp_path])

    assert found.functions is None
    assert reason in found.status.reason


def test_what_was_asked_for_by_name_is_never_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import edge_vl_kernels
    from edge_vl_kernels.library import load

    monkeypatch.setattr(edge_vl_kernels, "__path__", [str(tmp_path)])
    load.cache_clear()
    try:
        assert not load("auto").status.compiled
        with pytest.raises(RuntimeError, match=r"'scalar' kernels are not available: .* no compiled library"):
            load("scalar")
    finally:
        load.cache_clear()
