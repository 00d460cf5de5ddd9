"""The compiled library: found, checked, and where it does not fit, left alone for a reason that can be read."""

from __future__ import annotations

import json
import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_vl_kernels import ISAS, available_isas, missing_isas, status
from edge_vl_kernels.elf import elf_nbytes
from edge_vl_kernels.library import _file_name, load, open_library

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_library = pytest.mark.skipif(not status().compiled, reason="installed without compiled kernels")


def test_the_status_names_the_library_and_the_instruction_set() -> None:
    found = status()

    if found.compiled:
        assert found.library is not None
        assert found.library.is_file()
        assert found.isa == available_isas()[-1] != "reference"
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


@needs_library
def test_what_this_machine_has_can_be_asked_for_and_nothing_else() -> None:
    for isa in ISAS[1:]:
        if isa in available_isas():
            assert status(isa).isa == isa
        else:
            with pytest.raises(RuntimeError, match=f"the '{isa}' kernels are not available: th(is CPU|e library)"):
                status(isa)


@needs_library
def test_a_library_has_a_number_for_each_instruction_set_and_none_for_the_reference() -> None:
    assert load("scalar").number == 0
    with pytest.raises(KeyError, match="reference"):
        _ = load("reference").number


@needs_library
def test_the_compiled_units_are_those_of_this_processor() -> None:
    """A compiler that knows them all built this library, so what is missing is missing in the processor."""
    units = {"x86_64": {"avx2", "avx512"}, "aarch64": {"neon"}, "arm64": {"neon"}}.get(platform.machine(), set())

    assert {*available_isas(), *missing_isas()} == {"reference", "scalar", *units}
    assert not any("built without" in why for why in missing_isas().values())


def emulate(cpu: str) -> Any:
    """Ask what another processor would be used for."""
    code = "import json, edge_vl_kernels as k; print(json.dumps([k.available_isas(), k.missing_isas()]))"
    command = ["qemu-x86_64", "-cpu", cpu, sys.executable, "-c", code]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@needs_library
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-x86_64; on Debian: qemu-user")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library is for another processor")
@pytest.mark.parametrize(
    ("cpu", "has_avx2"),
    [
        ("Nehalem", False),
        ("SandyBridge", False),
        ("Haswell", True),
        ("max", True),
        ("max,-f16c", False),
        ("max,-fma", False),
        ("max,-xsave", False),  # the operating system does not save the wide registers
    ],
)
def test_an_instruction_set_runs_only_where_all_that_its_unit_may_use_is_there(cpu: str, has_avx2: bool) -> None:
    available, missing = emulate(cpu)

    assert available == ["reference", "scalar"] + ["avx2"] * has_avx2
    assert missing["avx512"].startswith("this CPU lacks a feature that they need")
    assert ("avx2" in missing) == (not has_avx2)


@needs_library
@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf; on Debian: binutils")
def test_the_library_needs_nothing_of_the_runtime_of_cpp() -> None:
    dynamic = subprocess.run(
        ["readelf", "--dynamic", str(status().library)], check=True, capture_output=True, text=True
    ).stdout

    assert "NEEDED" in dynamic
    assert "libstdc++" not in dynamic
    assert "libgcc_s" not in dynamic


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
        ('extern "C" int edge_vl_kernels_abi_version() { return 999; }', "has ABI 999, not 2; reinstall"),
        ('extern "C" int edge_vl_kernels_abi_version() { return 2; }', "cannot be loaded"),
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

    monkeypatch.setattr(edge_vl_kernels, "__path__", [str(tmp_path)])
    load.cache_clear()
    try:
        assert not load("auto").status.compiled
        assert available_isas() == ("reference",)
        assert not missing_isas()
        with pytest.raises(RuntimeError, match=r"'scalar' kernels are not available: .* no compiled library"):
            load("scalar")
    finally:
        load.cache_clear()


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="the library is no ELF file")
def test_a_library_that_was_cut_short_falls_back_and_says_so(tmp_path: Path) -> None:
    """The loader itself would end the process; so does this test, where the check is missing."""
    library = status().library
    assert library is not None
    whole = library.read_bytes()
    file = tmp_path / _file_name()

    for kept in (len(whole) - 1, len(whole) // 2, 20_000, 4096, 64, 63, 20):
        file.write_bytes(whole[:kept])
        found = open_library([tmp_path])
        assert found.functions is None
        assert f"is cut short: {kept} of " in found.status.reason, kept
        assert found.status.reason.endswith("bytes; reinstall edge-vl")
    file.write_bytes(b"")
    assert "cannot be loaded" in open_library([tmp_path]).status.reason
    file.write_bytes(whole)
    assert open_library([tmp_path]).status.compiled


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="the library is no ELF file")
def test_a_stripped_library_is_whole_too(tmp_path: Path) -> None:
    """Without its section headers a file ends with what is mapped to memory."""
    library = status().library
    assert library is not None
    whole = bytearray(library.read_bytes())
    sections_at, end = struct.unpack_from("<Q", whole, 40)[0], elf_nbytes(library)
    assert end <= len(whole)
    whole[40:48], whole[60:62] = bytes(8), bytes(2)
    file = tmp_path / _file_name()
    file.write_bytes(whole)
    mapped = elf_nbytes(file)
    assert 4096 < mapped <= sections_at

    # What is loaded stays mapped, so nothing may write to it afterwards.
    file.write_bytes(whole[: mapped - 1])
    assert "is cut short" in open_library([tmp_path]).status.reason
    file.write_bytes(whole[:mapped])
    assert open_library([tmp_path]).status.compiled


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_the_end_of_an_elf_file_is_read_from_its_headers(tmp_path: Path, bits: int, order: str) -> None:
    identification = b"\x7fELF" + bytes([bits // 32, 1 + (order == ">")]) + bytes(10)
    size, entry = (52, 32) if bits == 32 else (64, 56)
    words = "III" if bits == 32 else "QQQ"
    header = struct.pack(f"{order}16sHHI{words}I6H", identification, 3, 0, 1, 0, size, 500, 0, size, entry, 2, 40, 3, 2)
    if bits == 32:
        segments = [struct.pack(f"{order}8I", kind, 700, 0, 0, length, 0, 0, 0) for kind, length in ((6, 99), (1, 50))]
    else:
        segments = [
            struct.pack(f"{order}II6Q", kind, 0, 700, 0, 0, length, 0, 0) for kind, length in ((6, 99), (1, 50))
        ]
    file = tmp_path / "library"

    file.write_bytes(header + b"".join(segments))
    assert elf_nbytes(file) == 750
    file.write_bytes(header + segments[0])
    assert elf_nbytes(file) == 620  # the end of three sections; no segment can be read
    file.write_bytes(header[:-1])
    assert elf_nbytes(file) == size
    file.write_bytes(b"MZ" + header)
    assert elf_nbytes(file) == 0
