"""The native library: its import, devices and errors. The only place that imports llama-cpp-python."""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_vl.errors import EngineUnavailable
from edge_vl_llama_cpp.native_log import NativeLog

__all__ = ["ENGINE", "INSTALL", "Device", "Library", "explain", "open_library"]

ENGINE = "llama_cpp"
INSTALL = 'pip install "llama-cpp-python>=0.3.36,<0.4"'

_OLDEST = (0, 3, 36)
_NEWEST = (0, 4)
_GPU_KINDS = {1, 2}  # ggml_backend_dev_type: a GPU, and one that shares the memory of the host


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """Where a model may run.

    Attributes:
        name: as `LaneOptions.device` says it, in lower case.
        pointer: the `ggml_backend_dev_t`; 0 for the CPU.
    """

    name: str
    pointer: int

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.pointer == 0


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """The loaded library.

    Attributes:
        llama: the module `llama_cpp.llama_cpp`.
        mtmd: the module `llama_cpp.mtmd_cpp`.
        ggml: the tensor library below it, whose functions have no declarations.
        log: its log.
        version: of llama-cpp-python.
        devices: the CPU first.
    """

    llama: Any
    mtmd: Any
    ggml: Any
    log: NativeLog
    version: str
    devices: tuple[Device, ...]

    def device(self, wanted: str) -> Device:
        """Turn `auto` into a device that is there, and refuse one that is not.

        Raises:
            EngineUnavailable: this build does not have it.
        """
        if wanted == "auto":
            return next((device for device in self.devices if not device.is_cpu), self.devices[0])
        for device in self.devices:
            if device.name == wanted:
                return device
        known = ", ".join(device.name for device in self.devices)
        raise EngineUnavailable(
            ENGINE,
            f"this build of llama-cpp-python has no device {wanted!r}; it has {known}",
            f'CMAKE_ARGS="-DGGML_CUDA=on" {INSTALL} --force-reinstall --no-cache-dir' if "cuda" in wanted else "",
        )


_lock = threading.Lock()
_opened: list[Library] = []


def open_library() -> Library:
    """Import the backend, once.

    Raises:
        EngineUnavailable: it is missing, does not load, or is of a version that is not understood.
    """
    with _lock:
        if not _opened:
            _opened.append(_open())
        return _opened[0]


def explain(lines: Sequence[str]) -> str:
    """Return what the library's error lines say, in one line; the same thing said twice counts once."""
    kept: list[str] = []
    for line in lines:
        text = " ".join(line.split())
        if text and not any(text in other for other in kept):
            kept.append(text)
    return "; ".join(kept)[:500] or "it does not say why"


def _open() -> Library:
    try:
        package: Any = importlib.import_module("llama_cpp")
        llama: Any = importlib.import_module("llama_cpp.llama_cpp")
        mtmd: Any = importlib.import_module("llama_cpp.mtmd_cpp")
        ggml: Any = importlib.import_module("llama_cpp._ggml").libggml
    except Exception as error:  # a library that does not load raises RuntimeError, FileNotFoundError and others
        raise EngineUnavailable(ENGINE, f"cannot import llama_cpp: {error}", INSTALL) from error
    version = str(package.__version__)
    if not _OLDEST <= _numbers(version) < _NEWEST:
        raise EngineUnavailable(ENGINE, f"llama-cpp-python {version} is not understood", INSTALL)
    log = NativeLog(llama, mtmd)
    llama.llama_backend_init()
    return Library(llama, mtmd, ggml, log, version, _devices(ggml))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _devices(ggml: Any) -> tuple[Device, ...]:
    """Ask the build for its devices."""
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_name.restype = ctypes.c_char_p
    ggml.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_type.restype = ctypes.c_int
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    found = [Device("cpu", 0)]
    for index in range(ggml.ggml_backend_dev_count()):
        pointer = ggml.ggml_backend_dev_get(index)
        if ggml.ggml_backend_dev_type(pointer) in _GPU_KINDS:
            found.append(Device(ggml.ggml_backend_dev_name(pointer).decode("utf-8", "replace").lower(), pointer))
    return tuple(found)
