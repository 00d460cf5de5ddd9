"""The cameras that Linux knows: nodes of Video4Linux, and what they say of themselves."""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ioctl", "V4l2Device", "find_v4l2_devices"]

Ioctl = Callable[[int, int, bytearray], object]
"""`fcntl.ioctl` with a buffer that it changes."""

# Source: linux/videodev2.h. The numbers hold for all processors that we know of but MIPS, PowerPC and SPARC.
_QUERYCAP = 0x80685600
_ENUM_FMT = 0xC0405602
_CAPABILITY = struct.Struct(
    "=16s32s32s6I"
)  # driver, card, bus, version, all capabilities, those of this node, reserved
_FORMAT = struct.Struct("=3I32s5I")  # index, type, flags, description, format, media bus code, reserved
_HAS_DEVICE_CAPS = 0x80000000
_STREAMING = 0x04000000
_CAPTURE_TYPES = {0x00000001: 1, 0x00001000: 9}  # capability -> type of buffer: single-planar, multi-planar
_MAX_FORMATS = 64


@dataclass(frozen=True, slots=True)
class V4l2Device:
    """A node that gives pictures.

    Attributes:
        path: such as `/dev/video0`.
        name: the camera's own name.
        driver: the kernel module's name; empty: it could not be asked.
        bus: where it is plugged in.
        formats: four letters each, such as `MJPG` and `YUYV`.
        stable_path: a name of the same node that stays when others are plugged in; empty: there is none.
        trouble: why it could not be asked; empty: it could.
    """

    path: str
    name: str
    driver: str = ""
    bus: str = ""
    formats: tuple[str, ...] = ()
    stable_path: str = ""
    trouble: str = ""


def find_v4l2_devices(root: Path = Path("/"), ioctl: Ioctl | None = None) -> tuple[V4l2Device, ...]:
    """Ask every node whether it captures pictures; the others (metadata, codecs, outputs) are left out.

    Args:
        root: where `sys` and `dev` are.
        ioctl: how nodes are asked; None: the system's; where there is none, nothing is found.

    Returns:
        By number.
    """
    if ioctl is None:
        try:
            import fcntl
        except ImportError:  # Windows
            return ()
        ioctl = fcntl.ioctl
    stable = _stable_paths(root)
    return tuple(device for node in _nodes(root) if (device := _ask(root, node, stable, ioctl)) is not None)


def _nodes(root: Path) -> list[str]:
    try:
        names = [path.name for path in (root / "sys/class/video4linux").iterdir()]
    except OSError:
        return []
    return sorted((name for name in names if re.fullmatch(r"video\d+", name)), key=lambda name: int(name[5:]))


def _ask(root: Path, node: str, stable: dict[str, str], ioctl: Ioctl) -> V4l2Device | None:
    """Return what a node says; None: it gives no pictures."""
    path, name = f"/dev/{node}", _read_text(root / "sys/class/video4linux" / node / "name").strip() or node
    stable_path = stable.get(node, "")
    try:
        fd = os.open(root / "dev" / node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            return None
        return V4l2Device(path, name, stable_path=stable_path, trouble=_trouble(error, path))
    try:
        answer = bytearray(_CAPABILITY.size)
        ioctl(fd, _QUERYCAP, answer)
        driver, card, bus, _, all_caps, device_caps, *_ = _CAPABILITY.unpack(answer)
        caps = device_caps if all_caps & _HAS_DEVICE_CAPS else all_caps
        kinds = [kind for capability, kind in _CAPTURE_TYPES.items() if caps & capability]
        if not kinds or not caps & _STREAMING:
            return None
        formats = tuple(dict.fromkeys(name for kind in kinds for name in _formats(fd, kind, ioctl)))
        return V4l2Device(path, _text(card) or name, _text(driver), _text(bus), formats, stable_path)
    except OSError as error:
        return V4l2Device(path, name, stable_path=stable_path, trouble=_trouble(error, path))
    finally:
        os.close(fd)


def _formats(fd: int, kind: int, ioctl: Ioctl) -> Iterator[str]:
    for index in range(_MAX_FORMATS):
        answer = bytearray(_FORMAT.pack(index, kind, 0, b"", 0, 0, 0, 0, 0))
        try:
            ioctl(fd, _ENUM_FMT, answer)
        except OSError:  # there are no more
            return
        yield struct.pack("=I", _FORMAT.unpack(answer)[4] & 0x7FFFFFFF).decode("ascii", "replace").strip("\0 ")


def _stable_paths(root: Path) -> dict[str, str]:
    """Return the name by id, or else by path, of each node that has one."""
    stable: dict[str, str] = {}
    for folder in ("dev/v4l/by-path", "dev/v4l/by-id"):
        with suppress(OSError):
            for link in sorted((root / folder).iterdir()):
                stable[link.resolve().name] = f"/{folder}/{link.name}"
    return stable


def _trouble(error: OSError, path: str) -> str:
    if isinstance(error, PermissionError):
        return f"you may not use {path}; add yourself to its group: sudo usermod -aG video $USER, then log in again"
    if error.errno == errno.EBUSY:
        return "another program uses it"
    return error.strerror or str(error)


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace").strip()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
