"""GPUs: what the machine has, asked of NVML where it is installed and of `/proc` and `/sys` otherwise.

Nothing here needs CUDA or ROCm, and nothing is started on a GPU.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["NVML_INSTALL", "Gpu", "Gpus", "find_gpus", "import_nvml"]

NVML_INSTALL = "pip install nvidia-ml-py"

_AMD_VENDOR_ID = 0x1002
_AMD_NAMES = {
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74A8: "AMD Instinct MI308X HF",
    0x74A9: "AMD Instinct MI300X HF",
    0x74B5: "AMD Instinct MI300X VF",
    0x74BD: "AMD Instinct MI300X HF",
}
"""By PCI device id. Source: data/amdgpu.ids of libdrm."""

_TEGRA = {
    "nvidia,tegra234": ("NVIDIA Orin (integrated)", "8.7"),
    "nvidia,tegra264": ("NVIDIA Thor (integrated)", "11.0"),
}
"""Name and compute capability by the chip's name in the device tree. Source: jetson_stats, its table of CUDA arches."""

_KFD_DEVICE_MEMORY = (1, 2)  # heap types of a memory bank: public and private memory of the GPU itself


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as its driver calls it.
        vendor: `nvidia` or `amd`.
        memory_total_bytes: of its own memory; None if unknown or if it shares the machine's.
        memory_free_bytes: likewise.
        compute_capability: `8.6` for NVIDIA, the target such as `gfx942` for AMD; empty if unknown.
        is_unified: whether it shares the machine's memory.
        driver: version of the driver, empty if unknown.
        source: who said so: `nvml`, `proc`, `kfd` or `device tree`.
    """

    name: str
    vendor: str
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: str = ""
    is_unified: bool = False
    driver: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Gpus:
    """What was found.

    Attributes:
        gpus: in the order in which their drivers number them.
        notes: what could not be found out, and what would help.
    """

    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()


def find_gpus(root: Path, compatible: tuple[str, ...], nvml: Callable[[], Any] | None) -> Gpus:
    """Look for GPUs.

    Args:
        root: where `proc` and `sys` are.
        compatible: the board's names from the device tree.
        nvml: imports the module `pynvml`; None: there is none to ask, as for a root that is not this machine's.
    """
    tegra = next((chip for chip in compatible if chip in _TEGRA), "")
    by_proc = tuple(_nvidia_by_proc(root))
    nvidia: tuple[Gpu, ...] = ()
    trouble = ""
    if nvml is not None:
        try:
            nvidia = tuple(_nvidia_by_nvml(nvml()))
        except ImportError as error:
            trouble = f"NVML's module is missing ({error}): {NVML_INSTALL}"
        except Exception as error:  # NVML's errors are of a class of its own
            trouble = f"NVML cannot be asked ({type(error).__name__}: {error})"
    if tegra:
        nvidia = (_with_tegra(nvidia[0] if nvidia else None, tegra), *nvidia[1:])
        trouble = ""  # the device tree has told what matters
    elif not nvidia:
        nvidia = by_proc
    notes: tuple[str, ...] = ()
    if trouble and nvidia:
        notes = (f"memory and kind of the NVIDIA GPU are unknown: {trouble}",)
    return Gpus((*nvidia, *_amd_by_kfd(root)), notes)


def import_nvml() -> Any:
    """Import NVML's Python module.

    Raises:
        ImportError: it is not installed.
    """
    import pynvml

    return pynvml


def _nvidia_by_nvml(nvml: Any) -> Iterator[Gpu]:
    nvml.nvmlInit()
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = Gpu(_text(nvml.nvmlDeviceGetName(handle)), "nvidia", driver=driver, source="nvml")
            # An integrated GPU knows some of these only.
            with contextlib.suppress(nvml.NVMLError):
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                gpu = replace(gpu, memory_total_bytes=int(memory.total), memory_free_bytes=int(memory.free))
            with contextlib.suppress(nvml.NVMLError):
                major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
                gpu = replace(gpu, compute_capability=f"{major}.{minor}")
            yield gpu
    finally:
        nvml.nvmlShutdown()


def _with_tegra(gpu: Gpu | None, chip: str) -> Gpu:
    """Add to an integrated GPU what its chip is known for; its memory is the machine's."""
    name, compute_capability = _TEGRA[chip]
    gpu = gpu or Gpu(name, "nvidia", source="device tree")
    return replace(
        gpu,
        memory_total_bytes=None,
        memory_free_bytes=None,
        is_unified=True,
        compute_capability=gpu.compute_capability or compute_capability,
    )


def _nvidia_by_proc(root: Path) -> Iterator[Gpu]:
    """Yield what NVIDIA's kernel driver lists: names only."""
    version = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", _read(root / "proc/driver/nvidia/version"))
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        for line in _read(file).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model" and value.strip():
                yield Gpu(value.strip(), "nvidia", driver=version[1] if version else "", source="proc")


def _amd_by_kfd(root: Path) -> Iterator[Gpu]:
    """Yield the compute nodes of AMD's kernel driver; nodes without SIMDs are processors."""
    nodes = [node for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*") if node.name.isdecimal()]
    driver = _read(root / "sys/module/amdgpu/version").strip()
    for node in sorted(nodes, key=lambda node: int(node.name)):
        fields = _numbers(node / "properties")
        if fields.get("vendor_id") != _AMD_VENDOR_ID or not fields.get("simd_count"):
            continue
        device_id = fields.get("device_id", 0)
        banks = [_numbers(bank) for bank in sorted((node / "mem_banks").glob("*/properties"))]
        memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _KFD_DEVICE_MEMORY)
        yield Gpu(
            _AMD_NAMES.get(device_id, f"AMD GPU {device_id:#06x}"),
            "amd",
            memory_total_bytes=memory or None,
            compute_capability=_gfx(fields.get("gfx_target_version", 0)),
            driver=driver,
            source="kfd",
        )


def _gfx(version: int) -> str:
    """Name a target: 90402 is gfx942; minor and stepping are hexadecimal digits."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _numbers(path: Path) -> dict[str, int]:
    """Read lines such as `simd_count 1216`."""
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
