"""The compiled library: where it lies, whether it fits, and why not."""

from __future__ import annotations

import ctypes
import difflib
import functools
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from edge_vl_kernels import kv_abi
from edge_vl_kernels.elf import elf_nbytes

__all__ = [
    "ABI_VERSION",
    "ISAS",
    "KernelsStatus",
    "Library",
    "available_isas",
    "load",
    "missing_isas",
    "open_library",
    "status",
]

ABI_VERSION = 2
"""The `EDGE_VL_KERNELS_ABI_VERSION` of `csrc/edge_vl_kernels.h` that this package calls."""

ISAS = ("auto", "reference", "scalar", "avx2", "avx512", "neon")
"""What `isa` may be: `auto`, the NumPy reference, or an instruction set of the compiled library, the best one last."""

_NUMBERS = {"scalar": 0, "avx2": 1, "avx512": 2, "neon": 3}
"""`EDGE_VL_KERNELS_ISA_*` of the C ABI."""

_VECTOR_ISAS = {
    "x86_64": ("avx2", "avx512"),
    "amd64": ("avx2", "avx512"),
    "aarch64": ("neon",),
    "arm64": ("neon",),
}
"""By `platform.machine()`: what a compiled library for that processor may have beside `scalar`."""


@dataclass(frozen=True, slots=True)
class KernelsStatus:
    """Which kernels run, and why.

    Functions that have no code of their own for an instruction set are the portable ones in each of them.

    Attributes:
        compiled: the compiled library is in use.
        isa: the instruction set in use, `reference` for NumPy.
        library: the file in use; None for NumPy.
        reason: why the compiled library is not in use; empty when it is.
    """

    compiled: bool
    isa: str
    library: Path | None
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """What `load` found.

    Attributes:
        status: which kernels run, and why.
        functions: the compiled functions; None: use the reference.
    """

    status: KernelsStatus
    functions: ctypes.CDLL | None

    @property
    def number(self) -> int:
        """The instruction set's number in the C ABI.

        Raises:
            KeyError: it is the reference, which has none.
        """
        return _NUMBERS[self.status.isa]


def status(isa: str = "auto") -> KernelsStatus:
    """Say which kernels run.

    Raises:
        ValueError: no instruction set has that name.
        RuntimeError: it was asked for by name and is not there.
    """
    return load(isa).status


def available_isas() -> tuple[str, ...]:
    """Return what can be asked for by name on this machine, in the order of `ISAS`."""
    functions = load().functions
    compiled = () if functions is None else _usable(functions)
    return ("reference", *compiled)


def missing_isas() -> dict[str, str]:
    """Say which instruction sets for this kind of processor cannot be used, and why not; none without a library."""
    functions = load().functions
    if functions is None:
        return {}
    whys = {isa: _why_not(functions, isa) for isa in _VECTOR_ISAS.get(platform.machine().lower(), ())}
    return {isa: why for isa, why in whys.items() if why}


@functools.cache
def load(isa: str = "auto") -> Library:
    """Load the compiled library once, or settle for the reference.

    Args:
        isa: one of `ISAS`. `auto` is the best that the library and this CPU have, and only it falls back: what was
            asked for by name must be what runs.

    Raises:
        ValueError: no instruction set has that name.
        RuntimeError: it was asked for by name and is not there.
    """
    if isa not in ISAS:
        close = difflib.get_close_matches(str(isa), ISAS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(ISAS)}"
        raise ValueError(f"unknown instruction set {isa!r}; {hint}")
    if isa == "reference":
        return _reference("the reference was asked for")
    if isa == "auto":
        import edge_vl_kernels

        # An editable install keeps the sources in one folder and the library in another; the package's path has both.
        return open_library(Path(folder) for folder in edge_vl_kernels.__path__)
    best = load()
    why = best.status.reason if best.functions is None else _why_not(best.functions, isa)
    if why:
        raise RuntimeError(f"the {isa!r} kernels are not available: {why}")
    return replace(best, status=replace(best.status, isa=isa))


def open_library(folders: Iterable[Path]) -> Library:
    """Open the library in the first folder that has it.

    Args:
        folders: where to look.

    Returns:
        The library with the best instruction set that it and this CPU have, or the reference with the reason: it is
        missing, cut short, cannot be loaded, or has another ABI.
    """
    file = next((path for folder in folders if (path := folder / _file_name()).is_file()), None)
    if file is None:
        return _reference("the package was installed without a C++ compiler, so it has no compiled library")
    try:
        nbytes, expected = file.stat().st_size, elf_nbytes(file)
        if nbytes < expected:
            return _reference(f"{file} is cut short: {nbytes} of {expected} bytes; reinstall edge-vl")
        functions = ctypes.CDLL(str(file))
        abi_version = functions.edge_vl_kernels_abi_version()
        if abi_version != ABI_VERSION:
            return _reference(f"{file} has ABI {abi_version}, not {ABI_VERSION}; reinstall edge-vl")
        _declare(functions)
    except (OSError, AttributeError) as error:
        return _reference(f"{file} cannot be loaded: {error}")
    return Library(KernelsStatus(compiled=True, isa=_usable(functions)[-1], library=file, reason=""), functions)


def _usable(functions: ctypes.CDLL) -> tuple[str, ...]:
    return tuple(isa for isa in _NUMBERS if not _why_not(functions, isa))


def _why_not(functions: ctypes.CDLL, isa: str) -> str:
    """Say why a library cannot run an instruction set here; empty if it can."""
    answer = functions.edge_vl_kernels_has_isa(_NUMBERS[isa])
    if answer < 0:
        return "this CPU lacks a feature that they need, or its operating system lets no program use it"
    if not answer:
        return "the library was built without them (for another processor, or by a compiler that lacks them)"
    return ""


def _reference(reason: str) -> Library:
    return Library(KernelsStatus(compiled=False, isa="reference", library=None, reason=reason), None)


def _file_name() -> str:
    names = {"win32": "edge_vl_kernels.dll", "darwin": "libedge_vl_kernels.dylib"}
    return names.get(sys.platform, "libedge_vl_kernels.so")


def _declare(functions: ctypes.CDLL) -> None:
    """Give every function its C signature (see `csrc/edge_vl_kernels.h`)."""
    number, size, address = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
    functions.edge_vl_kernels_has_isa.restype = number
    functions.edge_vl_kernels_has_isa.argtypes = [number]
    functions.edge_vl_kernels_normalize_tile.restype = None
    functions.edge_vl_kernels_normalize_tile.argtypes = [address, size, size, size, size, size, address, address]
    kv_abi.declare(functions)
