"""NEON, on any machine: compiled for AArch64 and emulated, against the portable code and the NumPy reference."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_vl_kernels.kv import Rope
from edge_vl_kernels.kv_format import CacheFormat, KVGeometry, LayerPrecision, PageFormat, Precision
from tests.kernels.recording import record

ROOT = Path(__file__).resolve().parents[2]
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
MISSING = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"needs {' and '.join(MISSING)}; on Debian: g++-aarch64-linux-gnu and qemu-user"
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the kernels and their driver for AArch64, as CMakeLists.txt says."""
    build = tmp_path_factory.mktemp("aarch64")
    target = [
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={COMPILER}",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    options = ["-DEDGE_VL_KERNELS_DRIVER=ON", "-DEDGE_VL_KERNELS_WERROR=ON"]
    cmake = [sys.executable, "-m", "cmake"]
    run([*cmake, "-S", str(ROOT), "-B", str(build), *target, *options])
    run([*cmake, "--build", str(build), "--parallel", "2"])
    return build / "edge_vl_kernels"


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def emulate(driver: Path, *arguments: str) -> str:
    return run([EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(driver), *arguments])


def make_format(layers: list[tuple[Precision, Precision]], open_precision: Precision, **sizes: int) -> CacheFormat:
    """Make a format whose images have the layers in reverse order."""
    num_sinks = sizes.pop("num_sinks")
    geometry = KVGeometry(num_layers=len(layers), **sizes)
    text = tuple(LayerPrecision(*layer) for layer in layers)
    raw = (LayerPrecision(open_precision, open_precision),) * len(layers)
    pages = (PageFormat(geometry, text), PageFormat(geometry, text[::-1]))
    return CacheFormat(pages, PageFormat(geometry, raw), num_sinks)


def rope(rotary_dim: int, is_interleaved: bool) -> Rope:
    angles = np.arange(400)[:, None] * 10000.0 ** (-np.arange(rotary_dim // 2) / (rotary_dim // 2))
    return Rope(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), is_interleaved)


FORMATS = {
    "compressed": (
        make_format(
            [("int8", "int8"), ("int8", "int4"), ("int4", "int4")],
            "f16",
            num_query_heads=6,
            num_kv_heads=2,
            head_dim=64,
            num_sinks=4,
        ),
        None,
    ),
    "turned": (
        make_format(
            [("int4", "int8"), ("f16", "int4")], "f16", num_query_heads=8, num_kv_heads=1, head_dim=160, num_sinks=4
        ),
        rope(96, is_interleaved=False),
    ),
    "interleaved": (
        make_format(
            [("f32", "int8"), ("int8", "f16")], "f32", num_query_heads=2, num_kv_heads=2, head_dim=32, num_sinks=0
        ),
        rope(32, is_interleaved=True),
    ),
    "uncompressed": (
        make_format([("f16", "f16")] * 2, "f16", num_query_heads=3, num_kv_heads=1, head_dim=256, num_sinks=0),
        rope(256, is_interleaved=False),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_neon_holds_the_bytes_and_gives_the_context_of_the_reference(driver: Path, tmp_path: Path, name: str) -> None:
    file_format, turned = FORMATS[name]
    steps = [[150, 1], [1, 63], [0, 1], [64, 0], [1, 2], [3, 130], [1, 1]]
    record(tmp_path / "recording", file_format, steps, rope=turned)

    printed = emulate(driver, "replay", str(tmp_path / "recording"))

    assert printed.splitlines() == [
        f"{isa}, {threads} threads: as recorded" for isa in ("scalar", "neon") for threads in (1, 4)
    ]


def test_a_recording_that_differs_in_one_byte_is_noticed(driver: Path, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    cache_format, _ = FORMATS["uncompressed"]
    record(recording, cache_format, [[3, 70]])
    content = bytearray(recording.read_bytes())
    content[-cache_format.open.nbytes] ^= 1  # the file ends with an open page
    recording.write_bytes(content)

    with pytest.raises(AssertionError, match="differs at byte"):
        emulate(driver, "replay", str(recording))


def test_neon_does_as_the_portable_code_does_in_random_steps(driver: Path) -> None:
    assert emulate(driver, "kv", "1", "10").endswith(" models\n")


def test_the_pool_shares_out_every_task_once_on_aarch64(driver: Path) -> None:
    emulate(driver, "pool", "1")
