"""Descriptions of devices, one for each shipped profile, as files for `edge-vl profiles explain --device` have them."""

from __future__ import annotations


def board(names: list[str], mib: int, *, board: str = "", flags: str = '"asimd", "asimddp"', gpu: str = "") -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    text = f'arch = "aarch64"\nflags = [{flags}]\ncompatible = [{quoted}]\nmemory_total_mib = {mib}\ncores = 4\n'
    if board:
        text += f'board = "{board}"\n'
    if gpu:
        text += f'[[gpus]]\nname = "{gpu}"\nvendor = "nvidia"\nis_unified = true\n'
    return text


def server(gpu: str, mib: int = 0, *, vendor: str = "nvidia") -> str:
    memory = f"memory_total_mib = {mib}\n" if mib else ""
    return (
        'arch = "x86_64"\nflags = ["avx2", "avx512_vnni"]\nmemory_total_mib = 65536\ncores = 16\n'
        f'[[gpus]]\nname = "{gpu}"\nvendor = "{vendor}"\n{memory}'
    )


ORIN = "NVIDIA Orin (integrated)"
DEVICES = {
    "generic-cpu": 'arch = "x86_64"\nflags = ["avx2"]\nmemory_total_mib = 16384\n',
    "generic-cuda": server("NVIDIA T4", 15360),
    "raspberry-pi-4": board(["raspberrypi,4-model-b", "brcm,bcm2711"], 3793, flags='"asimd"'),
    "raspberry-pi-5": board(["raspberrypi,5-model-b", "brcm,bcm2712"], 8064),
    "jetson-orin-nano-8gb": board(
        ["nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234"], 7620, gpu=ORIN
    ),
    "jetson-orin-nx-8gb": board(
        ["nvidia,p3768-0000+p3767-0001", "nvidia,p3767-0001", "nvidia,tegra234"], 7620, gpu=ORIN
    ),
    "jetson-orin-nx-16gb": board(
        ["nvidia,p3768-0000+p3767-0000", "nvidia,p3767-0000", "nvidia,tegra234"], 15655, gpu=ORIN
    ),
    "jetson-agx-orin-32gb": board(["nvidia,p3737-0000+p3701-0004", "nvidia,tegra234"], 30000, gpu=ORIN),
    "jetson-agx-orin-64gb": board(
        ["nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"], 62800, gpu=ORIN
    ),
    "jetson-thor": board(
        ["nvidia,p4071-0000+p3834-0008", "nvidia,p3834-0008", "nvidia,tegra264"], 125000, gpu="NVIDIA Thor (integrated)"
    ),
    "rtx": server("NVIDIA GeForce RTX 4070", 12282),
    "l4": server("NVIDIA L4", 23034),
    "a10g": server("NVIDIA A10G", 23028),
    "a100": server("NVIDIA A100-SXM4-80GB", 81920),
    "h100": server("NVIDIA H100 80GB HBM3", 81559),
    "h200": server("NVIDIA H200", 143771),
    "mi300x": server("AMD Instinct MI300X", 196592, vendor="amd"),
    "riscv64": 'arch = "riscv64"\nflags = ["rvv"]\nmemory_total_mib = 3900\n',
}
"""By the profile that is meant for them."""
