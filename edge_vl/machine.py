"""The machine: what this process may use of it, containers' limits included.

Reads `/proc`, `/sys`, `/etc` and the control groups of Linux. Elsewhere what cannot be known is left empty.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_vl.accelerators import Gpu, find_gpus, import_nvml

__all__ = ["FLAGS", "Machine", "available_memory_bytes", "read_machine", "total_memory_bytes", "usable_cores"]

_ROOT = Path("/")
_X86_FLAGS = ("sse4_2", "avx", "avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni")
_X86_FLAGS_LATER = ("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16")
_ARM_FLAGS = ("asimd", "asimdhp", "asimddp", "fphp", "i8mm", "bf16", "sve", "sve2")
_RISCV_FLAGS = ("rvv", "zba", "zbb", "zfh", "zvfh")
FLAGS = frozenset((*_X86_FLAGS, *_X86_FLAGS_LATER, *_ARM_FLAGS, *_RISCV_FLAGS))
"""Instruction sets that are looked for; `rvv` is the vector extension of RISC-V."""

_UNLIMITED_BYTES = 1 << 60  # version 1 of the control groups writes a number near 2**63 for "no limit"


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use.

    Attributes:
        arch: `x86_64`, `aarch64`, ...
        cpu: the processor's own name, empty if unknown.
        board: name from the device tree, such as `Raspberry Pi 5 Model B`; empty where there is none.
        cores: that this process may keep busy, at least 1.
        flags: instruction sets that matter here, sorted.
        memory_total_bytes: of the machine or, where smaller, the container; None if unknown.
        memory_available_bytes: that can be taken without swapping, likewise.
        os: system and release.
        python: implementation and version.
        compatible: the board's names from the device tree, the most special first.
        l4t: release of Jetson Linux, such as `36.4.3`; empty elsewhere.
        gpus: what `edge_vl.accelerators` finds.
        notes: what could not be found out, and what would help.
        load: programs that ran or waited for a core, on average over the last minute; None if unknown.
    """

    arch: str
    cpu: str
    board: str
    cores: int
    flags: tuple[str, ...]
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    os: str
    python: str
    compatible: tuple[str, ...] = ()
    l4t: str = ""
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()
    load: float | None = None


def read_machine(root: Path = _ROOT) -> Machine:
    """Look at the machine as it is now.

    Args:
        root: where `etc`, `proc` and `sys` are. NVML knows this machine only, so it is asked for `/` alone.
    """
    cpu, flags = _read_cpu(root)
    compatible = tuple(name for name in _read_text(root / "proc/device-tree/compatible").split("\0") if name.strip())
    found = find_gpus(root, compatible, import_nvml if root == _ROOT else None)
    return Machine(
        arch=_read_text(root / "proc/sys/kernel/arch").strip() or platform.machine(),
        cpu=cpu or platform.processor(),
        board=_read_text(root / "proc/device-tree/model").rstrip("\0\n"),
        cores=usable_cores(root),
        flags=flags,
        memory_total_bytes=total_memory_bytes(root),
        memory_available_bytes=available_memory_bytes(root),
        os=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        compatible=compatible,
        l4t=_read_l4t(root),
        gpus=found.gpus,
        notes=found.notes,
        load=_read_load(root),
    )


def _read_load(root: Path) -> float | None:
    words = _read_text(root / "proc/loadavg").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return None


def usable_cores(root: Path = _ROOT) -> int:
    """Count the cores that this process may keep busy: its affinity and its container's quota, rounded down.

    Args:
        root: where `proc` and `sys` are.

    Returns:
        At least 1.
    """
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for folder in _cgroup_folders(root, "cpu"):
        words = _read_text(folder / "cpu.max").split() or [
            _read_text(folder / "cpu.cfs_quota_us").strip(),
            _read_text(folder / "cpu.cfs_period_us").strip(),
        ]
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]) > 0:
            cores = min(cores, int(words[0]) // int(words[1]))
    return max(1, cores)


def total_memory_bytes(root: Path = _ROOT) -> int | None:
    """Return the memory of the machine or, where smaller, of the container; None if unknown.

    Args:
        root: where `proc` and `sys` are.
    """
    total = _read_fields(root / "proc/meminfo").get("MemTotal")
    limits = [limit for limit, _ in _memory_limits(root)]
    return min(limits if total is None else [total * 1024, *limits], default=None)


def available_memory_bytes(root: Path = _ROOT) -> int | None:
    """Return the memory that can be taken without swapping, within the container's limit; None if unknown.

    Args:
        root: where `proc` and `sys` are.
    """
    available = _read_fields(root / "proc/meminfo").get("MemAvailable")
    rooms = [max(0, limit - used) for limit, used in _memory_limits(root)]
    return min(rooms if available is None else [available * 1024, *rooms], default=None)


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of every control group around this process. Cached file pages can be dropped."""
    for folder in _cgroup_folders(root, "memory"):
        for limit_name, used_name, cached_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _read_text(folder / limit_name).strip()
            used = _read_text(folder / used_name).strip()
            if limit.isdecimal() and used.isdecimal() and int(limit) < _UNLIMITED_BYTES:
                cached = _read_fields(folder / "memory.stat").get(cached_name, 0)
                yield int(limit), max(0, int(used) - cached)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, innermost first: each may set a lower limit."""
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = Path(path.lstrip("/"))
        # A container sees its own group as the root, whatever the path of the host says: missing folders are no harm.
        for folder in (group, *group.parents):
            yield base / folder


def _read_cpu(root: Path) -> tuple[str, tuple[str, ...]]:
    """Read the processor's name and the flags that matter."""
    name, flags = "", set[str]()
    for line in _read_text(root / "proc/cpuinfo").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("model name", "Model", "Hardware") and not name:
            name = value
        elif key in ("flags", "Features"):
            flags.update(FLAGS.intersection(value.split()))
        elif key == "isa":
            flags.update(_riscv_flags(value))
    return name, tuple(sorted(flags))


def _riscv_flags(isa: str) -> set[str]:
    """Read an ISA string such as `rv64imafdcv_zba_zbb`: single letters, then names behind underlines."""
    letters, *names = isa.lower().split("_")
    vector = {"rvv"} if "v" in letters.removeprefix("rv") else set()
    return vector | FLAGS.intersection(names)


def _read_l4t(root: Path) -> str:
    """Read a line such as `# R36 (release), REVISION: 4.3, GCID: ...`."""
    found = re.match(r"# R(\d+) \(release\), REVISION: ([\d.]+)", _read_text(root / "etc/nv_tegra_release"))
    return f"{found[1]}.{found[2]}" if found else ""


def _read_fields(path: Path) -> dict[str, int]:
    """Read lines such as `MemTotal: 1024 kB` or `inactive_file 4096`."""
    fields = {}
    for line in _read_text(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdecimal():
            fields[words[0]] = int(words[1])
    return fields


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
