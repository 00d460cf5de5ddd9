"""GPUs and boards, found in made-up /proc and /sys trees and through a double of NVML."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_vl.accelerators import Gpu, find_gpus
from edge_vl.machine import read_machine
from edge_vl.profile_library import list_profiles
from edge_vl.profile_match import best_match, match_profile
from tests.test_machine import tree

MEMINFO = "MemTotal: {} kB\nMemAvailable: 1000000 kB\n"


def chosen(root: Path) -> str:
    machine = read_machine(root)
    best = best_match([match_profile(profile, machine) for profile in list_profiles()])
    assert best is not None
    return best.profile.id


def nvidia_files(model: str = "NVIDIA A10G") -> dict[str, str]:
    return {
        "proc/driver/nvidia/gpus/0000:00:1e.0/information": f"Model: \t\t {model}\nIRQ:   \t\t 10\nBus Type: \t PCIe\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024\n",
    }


class Nvml:
    """A double of the module `pynvml`: an integrated GPU knows its name only."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus: tuple[str, int, tuple[int, int] | None]) -> None:
        self.gpus = gpus
        self.is_open = False

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.90.07"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.gpus[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if not self.gpus[handle][1]:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(total=self.gpus[handle][1], free=1)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        capability = self.gpus[handle][2]
        if capability is None:
            raise self.NVMLError("Not Supported")
        return capability


def test_nvml_tells_memory_and_kind_of_every_gpu_and_is_closed_again(tmp_path: Path) -> None:
    nvml = Nvml(("NVIDIA L4", 23 << 30, (8, 9)), ("NVIDIA A10G", 22 << 30, (8, 6)))

    found = find_gpus(tree(tmp_path, nvidia_files()), (), lambda: nvml)

    assert found.gpus == (
        Gpu("NVIDIA L4", "nvidia", 23 << 30, 1, "8.9", driver="550.90.07", source="nvml"),
        Gpu("NVIDIA A10G", "nvidia", 22 << 30, 1, "8.6", driver="550.90.07", source="nvml"),
    )
    assert found.notes == ()
    assert not nvml.is_open


def test_without_nvml_the_drivers_own_list_gives_the_name_and_a_note_says_what_would_help(tmp_path: Path) -> None:
    def absent() -> Any:
        raise ImportError("No module named 'pynvml'")

    found = find_gpus(tree(tmp_path, nvidia_files()), (), absent)

    assert found.gpus == (Gpu("NVIDIA A10G", "nvidia", driver="535.183.01", source="proc"),)
    [note] = found.notes
    assert "No module named 'pynvml'" in note
    assert "pip install nvidia-ml-py" in note


def test_an_nvml_that_fails_gives_its_own_error(tmp_path: Path) -> None:
    nvml = Nvml(("NVIDIA L4", 1, None))

    def broken() -> Any:
        raise nvml.NVMLError("Driver Not Loaded")

    found = find_gpus(tree(tmp_path, nvidia_files()), (), broken)

    assert [gpu.source for gpu in found.gpus] == ["proc"]
    assert "NVMLError: Driver Not Loaded" in found.notes[0]
    assert "pip install" not in found.notes[0]


def test_a_machine_without_nvidia_says_nothing_about_nvml(tmp_path: Path) -> None:
    def absent() -> Any:
        raise ImportError("No module named 'pynvml'")

    assert find_gpus(tmp_path, (), absent) == find_gpus(tmp_path, (), None)
    assert find_gpus(tmp_path, (), absent).notes == ()


def test_an_integrated_gpu_that_nvml_knows_by_name_only_is_completed_from_the_device_tree(tmp_path: Path) -> None:
    nvml = Nvml(("Orin (nvgpu)", 0, None))

    [gpu] = find_gpus(tmp_path, ("nvidia,p3767-0000", "nvidia,tegra234"), lambda: nvml).gpus

    assert gpu == Gpu("Orin (nvgpu)", "nvidia", None, None, "8.7", True, "550.90.07", "nvml")


def test_a_jetson_is_known_by_its_device_tree(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/sys/kernel/arch": "aarch64\n",
            "proc/device-tree/model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0",
            "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0nvidia,tegra234\0",
            "proc/cpuinfo": "Features : fp asimd asimddp\n",
            "proc/meminfo": MEMINFO.format(7650336),
            "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
        },
    )

    machine = read_machine(root)

    assert machine.arch == "aarch64"
    assert machine.compatible == ("nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234")
    assert machine.l4t == "36.4.3"
    assert machine.gpus == (Gpu("NVIDIA Orin (integrated)", "nvidia", None, None, "8.7", True, "", "device tree"),)
    assert chosen(root) == "jetson-orin-nano-8gb"


def test_a_module_on_somebody_elses_carrier_is_known_by_its_boards_name_and_memory(tmp_path: Path) -> None:
    files = {
        "proc/sys/kernel/arch": "aarch64\n",
        "proc/device-tree/model": "Jetson AGX Orin on a carrier of our own\0",
        "proc/device-tree/compatible": "carrier,x1\0nvidia,tegra234\0",
        "proc/meminfo": MEMINFO.format(62800 * 1024),
    }
    assert chosen(tree(tmp_path, files)) == "jetson-agx-orin-64gb"


def test_a_raspberry_pi_5_has_no_gpu_for_us(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/sys/kernel/arch": "aarch64\n",
            "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
            "proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0",
            "proc/cpuinfo": "Features : fp asimd asimdhp asimddp\nModel : Raspberry Pi 5 Model B Rev 1.0\n",
            "proc/meminfo": MEMINFO.format(8256464),
        },
    )

    machine = read_machine(root)

    assert machine.gpus == ()
    assert machine.flags == ("asimd", "asimddp", "asimdhp")
    assert chosen(root) == "raspberry-pi-5"


def test_amds_compute_nodes_are_read_from_sysfs(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    gpu = "simd_count 1216\ngfx_target_version 90402\nvendor_id 4098\ndevice_id 29857\n"
    root = tree(
        tmp_path,
        {
            f"{nodes}/0/properties": "cpu_cores_count 128\nsimd_count 0\ngfx_target_version 0\nvendor_id 4098\n",
            f"{nodes}/10/properties": gpu.replace("29857", "1"),
            f"{nodes}/2/properties": gpu,
            f"{nodes}/2/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 206141652992\nflags 0\n",
            "sys/module/amdgpu/version": "6.8.5\n",
        },
    )

    first, second = read_machine(root).gpus

    assert first == Gpu("AMD Instinct MI300X", "amd", 206141652992, None, "gfx942", False, "6.8.5", "kfd")
    assert (second.name, second.memory_total_bytes) == ("AMD GPU 0x0001", None)
    assert chosen(root) == "mi300x"


def test_an_nvidia_card_is_chosen_for_by_the_name_that_its_driver_lists(tmp_path: Path) -> None:
    assert chosen(tree(tmp_path, nvidia_files("NVIDIA H200"))) == "h200"


@pytest.mark.parametrize(
    ("isa", "flags"),
    [
        ("rv64imafdcv_zicbom_zba_zbb_zvfh", ("rvv", "zba", "zbb", "zvfh")),
        ("rv64imafdc", ()),
        ("rv64imafdc_svinval_zba", ("zba",)),
    ],
)
def test_risc_v_tells_its_extensions_in_one_word(tmp_path: Path, isa: str, flags: tuple[str, ...]) -> None:
    root = tree(
        tmp_path, {"proc/sys/kernel/arch": "riscv64\n", "proc/cpuinfo": f"processor : 0\nisa : {isa}\nmmu : sv39\n"}
    )

    assert read_machine(root).flags == flags
    assert chosen(root) == "riscv64"
