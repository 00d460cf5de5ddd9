"""The machine: what a process may use, seen through made-up /proc and /sys trees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edge_vl.machine import available_memory_bytes, read_machine, total_memory_bytes, usable_cores

MIB = 1024 * 1024
MEMINFO = f"MemTotal: {8192 * 1024} kB\nMemFree: 1 kB\nMemAvailable: {4096 * 1024} kB\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def test_the_affinity_counts_where_there_is_no_container(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8


def test_other_systems_count_the_cores_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)

    assert usable_cores(tmp_path) == 6


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8), ("bad", 8)],
)
def test_a_container_of_version_2_limits_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": f"{quota}\n"})

    assert usable_cores(root) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_a_container_of_version_1_limits_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    root = tree(
        tmp_path,
        {
            # Inside a container the path is often the host's and does not exist.
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": f"{quota}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )

    assert usable_cores(root) == cores


def test_the_memory_is_that_of_the_machine_where_there_is_no_container(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": MEMINFO})

    assert total_memory_bytes(root) == 8192 * MIB
    assert available_memory_bytes(root) == 4096 * MIB


def test_a_container_of_version_2_limits_the_memory_and_its_page_cache_can_be_dropped(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/memory.max": f"{1024 * MIB}\n",
            "sys/fs/cgroup/outer/memory.current": f"{600 * MIB}\n",
            "sys/fs/cgroup/outer/memory.stat": f"anon 1\ninactive_file {100 * MIB}\n",
            "sys/fs/cgroup/outer/inner/memory.max": "max\n",
            "sys/fs/cgroup/outer/inner/memory.current": f"{600 * MIB}\n",
        },
    )

    assert total_memory_bytes(root) == 1024 * MIB
    assert available_memory_bytes(root) == 524 * MIB


@pytest.mark.parametrize(("limit", "total"), [(2**63 - 4096, 8192 * MIB), (512 * MIB, 512 * MIB)])
def test_a_container_of_version_1_limits_the_memory(tmp_path: Path, limit: int, total: int) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{limit}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{700 * MIB}\n",
        },
    )

    assert total_memory_bytes(root) == total
    assert available_memory_bytes(root) == (4096 * MIB if total == 8192 * MIB else 0)


def test_what_cannot_be_known_is_left_empty(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)

    assert machine.flags == ()
    assert machine.board == ""
    assert machine.memory_total_bytes is None
    assert machine.memory_available_bytes is None
    assert machine.python.startswith("CPython 3.")


def test_a_board_names_itself_and_its_processor(tmp_path: Path) -> None:
    cpuinfo = (
        "processor : 0\nFeatures : fp asimd asimddp crc32\n\nprocessor : 1\nFeatures : fp asimd\n\nModel : A Board\n"
    )
    root = tree(tmp_path, {"proc/cpuinfo": cpuinfo, "proc/device-tree/model": "A Board Rev 1.0\0"})

    machine = read_machine(root)

    assert machine.cpu == "A Board"
    assert machine.board == "A Board Rev 1.0"
    assert machine.flags == ("asimd", "asimddp")


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_this_machine_can_be_read() -> None:
    machine = read_machine()

    assert machine.cores >= 1
    assert machine.memory_total_bytes is not None
    assert machine.memory_available_bytes is not None
    assert 0 < machine.memory_available_bytes <= machine.memory_total_bytes
