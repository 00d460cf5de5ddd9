"""A machine's nodes of Video4Linux, as the kernel shows them: folders, and a double of `ioctl`."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

__all__ = ["V4l2Machine"]

CAPTURE, CAPTURE_MPLANE, META, M2M = 0x1, 0x1000, 0x800000, 0x8000
STREAMING, DEVICE_CAPS = 0x04000000, 0x80000000


class V4l2Machine:
    """Nodes that were added, by path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._nodes: dict[int, tuple[str, str, int, tuple[str, ...]]] = {}
        self._open: dict[int, tuple[str, str, int, tuple[str, ...]]] = {}
        (root / "dev").mkdir(parents=True)

    def add(
        self,
        number: int,
        name: str,
        driver: str = "uvcvideo",
        *,
        caps: int = CAPTURE | STREAMING,
        formats: tuple[str, ...] = ("MJPG", "YUYV"),
        by_id: str = "",
    ) -> None:
        """Add a node."""
        folder = self.root / f"sys/class/video4linux/video{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        node = self.root / f"dev/video{number}"
        node.touch()
        self._nodes[node.stat().st_ino] = (name, driver, caps, formats)
        if by_id:
            (self.root / "dev/v4l/by-id").mkdir(parents=True, exist_ok=True)
            (self.root / f"dev/v4l/by-id/{by_id}").symlink_to(node)

    def ioctl(self, fd: int, code: int, buffer: bytearray) -> int:
        """Answer as the kernel does."""
        name, driver, caps, formats = self._nodes[os.fstat(fd).st_ino]
        assert len(buffer) == code >> 16 & 0x3FFF, "the size is part of the code"
        if code & 0xFF == 0:
            packed = (driver.encode(), name.encode()[:31], b"usb-1", 0x60000, caps | META | DEVICE_CAPS, caps)
            buffer[:] = struct.pack("=16s32s32s6I", *packed, 0, 0, 0)
            return 0
        index, kind = struct.unpack_from("=II", buffer)
        is_kind = kind == (9 if caps & CAPTURE_MPLANE else 1)
        if not is_kind or index >= len(formats):
            raise OSError(errno.EINVAL, "Invalid argument")
        struct.pack_into("=4s", buffer, 44, formats[index].encode())
        return 0
