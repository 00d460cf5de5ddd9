"""Reading encoded pictures: bytes from a path, a buffer or an open file, never more than the limits allow."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from edge_vl.picture_limits import PictureLimits, UnusablePicture

__all__ = ["BinaryReader", "read_buffer", "read_path", "read_stream"]


@runtime_checkable
class BinaryReader(Protocol):
    """An open binary file, or anything that reads like one."""

    def read(self, size: int = -1, /) -> bytes | None:
        """Return up to `size` bytes, none at the end."""
        ...


def read_buffer(buffer: bytes | bytearray | memoryview, limits: PictureLimits) -> bytes:
    """Copy bytes, of a memoryview in the order of its elements.

    Raises:
        UnusablePicture: there are too many, or the memoryview was released.
    """
    try:
        limits.check_file(memoryview(buffer).nbytes)
        return bytes(buffer)
    except ValueError as error:
        raise UnusablePicture(f"it cannot be read: {error}", "a released memoryview") from error


def read_path(path: str | os.PathLike[str], limits: PictureLimits) -> bytes:
    """Read a regular file. Never opens a pipe or a device, which could block for ever.

    Raises:
        UnusablePicture: there is no such file, it cannot be read or is too large.
    """
    name = _path_name(path)
    if not name:
        raise UnusablePicture("the path is empty", "an empty path")
    try:
        _check_regular(Path(name).stat().st_mode)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(name, flags), "rb") as file:
            status = os.fstat(file.fileno())
            _check_regular(status.st_mode)
            limits.check_file(status.st_size)
            data = file.read(limits.max_file_bytes + 1)
    except OSError as error:
        raise _unreadable_path(name, error) from error
    except ValueError as error:  # a zero character
        raise UnusablePicture(f"the path is not valid: {error}", "an invalid path") from error
    limits.check_file(len(data))
    return data


def read_stream(stream: BinaryReader, limits: PictureLimits) -> bytes:
    """Read an open file to its end, or until it is too large.

    Raises:
        UnusablePicture: it is too large, gives no bytes, or raised something, which is the cause.
    """
    blocks: list[bytes] = []
    num_bytes = 0
    try:
        while block := stream.read(min(1 << 20, limits.max_file_bytes + 1)):
            if not isinstance(block, (bytes, bytearray, memoryview)):
                raise UnusablePicture(f"it reads {type(block).__name__}, not bytes; open it in mode 'rb'", "text")
            blocks.append(bytes(block))
            num_bytes += len(blocks[-1])
            limits.check_file(num_bytes)
    except UnusablePicture:
        raise
    except UnicodeDecodeError as error:
        raise UnusablePicture("it was opened in text mode; open it in mode 'rb'", "text") from error
    except Exception as error:  # a caller's reader may raise anything: zlib.error, http.client.IncompleteRead
        reason = f"it cannot be read: {_describe(error)}"
        raise UnusablePicture(reason, "an open file that cannot be read") from error
    return b"".join(blocks)


def _path_name(path: str | os.PathLike[str]) -> str:
    try:
        name: Any = os.fspath(path)
        return os.fsdecode(name)
    except Exception as error:  # a caller's class may raise or return anything
        raise UnusablePicture(f"its path cannot be told: {_describe(error)}", "an invalid path") from error


def _describe(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # a caller's class, as broken as it likes
        return type(error).__name__


def _check_regular(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
    found = next((name for is_kind, name in kinds if is_kind(mode)), "a device")
    hint = "" if found == "a directory" else "; read it yourself and pass the bytes"
    raise UnusablePicture(f"it is {found}, not a file{hint}", found)


def _unreadable_path(path: str, error: OSError) -> UnusablePicture:
    if "://" in path or path.startswith("data:"):
        return UnusablePicture("it is a URL, not a file; fetch it and pass the bytes", "a URL")
    found = {
        errno.ENOENT: "a missing file",
        errno.ENOTDIR: "a missing file",
        errno.EACCES: "a file that may not be read",
        errno.EPERM: "a file that may not be read",
    }.get(error.errno or 0, "a file that cannot be read")
    return UnusablePicture(f"it is {found} ({error.strerror or error})", found)
