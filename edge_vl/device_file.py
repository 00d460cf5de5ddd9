"""A device described in a file, so that profiles can be tried for a machine that is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_vl.accelerators import Gpu
from edge_vl.machine import Machine
from edge_vl.toml_file import Kind, flag, names, read_toml, text, whole

__all__ = ["DEVICE_KEYS", "read_device"]

_MAX_MIB = 1 << 24
_MIB = 1024**2

DEVICE_KEYS: Mapping[str, Kind] = {
    "arch": text(is_required=True),
    "cpu": text(),
    "board": text(),
    "cores": whole(1, 4096),
    "flags": names(),
    "memory_total_mib": whole(1, _MAX_MIB),
    "memory_available_mib": whole(0, _MAX_MIB),
    "os": text(),
    "compatible": names(),
    "l4t": text(),
    "gpus[].name": text(is_required=True),
    "gpus[].vendor": text("nvidia|amd", "`nvidia` or `amd`", is_required=True),
    "gpus[].memory_total_mib": whole(1, _MAX_MIB),
    "gpus[].memory_free_mib": whole(0, _MAX_MIB),
    "gpus[].compute_capability": text(),
    "gpus[].is_unified": flag(),
    "gpus[].driver": text(),
}
"""The fields of `Machine` and `Gpu`, memory in MiB; what is left out is unknown. `docs/profiles.md` lists them."""


def read_device(path: Path) -> Machine:
    """Read the description of a device.

    Args:
        path: of the TOML file.

    Raises:
        ProfileError: it cannot be read, or something in it is unknown, missing or out of range.
    """
    content = read_toml(path, DEVICE_KEYS)
    return Machine(
        arch=content["arch"],
        cpu=content.get("cpu", ""),
        board=content.get("board", ""),
        cores=content.get("cores", 1),
        flags=tuple(sorted(content.get("flags", ()))),
        memory_total_bytes=_bytes(content, "memory_total_mib"),
        memory_available_bytes=_bytes(content, "memory_available_mib"),
        os=content.get("os", ""),
        python="",
        compatible=tuple(content.get("compatible", ())),
        l4t=content.get("l4t", ""),
        gpus=tuple(_gpu(gpu) for gpu in content.get("gpus", ())),
    )


def _gpu(content: Mapping[str, Any]) -> Gpu:
    return Gpu(
        name=content["name"],
        vendor=content["vendor"],
        memory_total_bytes=_bytes(content, "memory_total_mib"),
        memory_free_bytes=_bytes(content, "memory_free_mib"),
        compute_capability=content.get("compute_capability", ""),
        is_unified=content.get("is_unified", False),
        driver=content.get("driver", ""),
        source="file",
    )


def _bytes(content: Mapping[str, Any], key: str) -> int | None:
    mib = content.get(key)
    return None if mib is None else mib * _MIB
