"""The compiled library: where it lies, whether it fits, and why not."""

from __future__ import annotations

import ctypes
import difflib
import functools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ABI_VERSION", "ISAS", "KernelsStatus", "Library", "load", "open_library", "status"]

ABI_VERSION = 1
"""The `EDGE_VL_KERNELS_ABI_VERSION` of `csrc/edge_vl_kernels.h` that this package calls."""

ISAS = ("auto", "reference", "scalar")
"""What `isa` may be: `auto`, the NumPy reference, or an instruction set of the compiled library."""


@dataclass(frozen=True, slots=True)
class KernelsStatus:
    """Which kernels run, and why.

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


def status(isa: str = "auto") -> KernelsStatus:
    """Say which kernels run.

    Raises:
        ValueError: no instruction set has that name.
        RuntimeError: it was asked for by name and is not there.
    """
    return load(isa).status


@functools.cache
def load(isa: str = "auto") -> Library:
    """Load the compiled library once, or settle for the reference.

    Args:
        isa: one of `ISAS`. Only `auto` falls back: what was asked for by name must be what runs.

    Raises:
        ValueError: no instruction set has that name.
        RuntimeError: it was asked for by name and is not there.
    """
    if isa not in ISAS:
        close = difflib.get_close_matches(isa, ISAS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(ISAS)}"
        raise ValueError(f"unknown instruction set {isa!r}; {hint}")
    if isa == "reference":
        return _reference("the reference was asked for")
    import edge_vl_kernels

    # An editable install keeps the sources in one folder and the library in another; the package's path has both.
    found = open_library(Path(folder) for folder in edge_vl_kernels.__path__)
    if found.functions is None and isa != "auto":
        raise RuntimeError(f"the {isa!r} kernels are not available: {found.status.reason}")
    return found


def open_library(folders: Iterable[Path]) -> Library:
    """Open the library in the first folder that has it.

    Args:
        folders: where to look.

    Returns:
        The library, or the reference with the reason: it is missing, cannot be loaded, or has another ABI.
    """
    file = next((path for folder in folders if (path := folder / _file_name()).is_file()), None)
    if file is None:
        return _reference("the package was installed without a C++ compiler, so it has no compiled library")
    try:
        functions = ctypes.CDLL(str(file))
        abi_version = functions.edge_vl_kernels_abi_version()
    except (OSError, AttributeError) as error:
        return _reference(f"{file} cannot be loaded: {error}")
    if abi_version != ABI_VERSION:
        return _reference(f"{file} has ABI {abi_version}, not {ABI_VERSION}; reinstall edge-vl")
    _declare(functions)
    return Library(KernelsStatus(compiled=True, isa="scalar", library=file, reason=""), functions)


def _reference(reason: str) -> Library:
    return Library(KernelsStatus(compiled=False, isa="reference", library=None, reason=reason), None)


def _file_name() -> str:
    names = {"win32": "edge_vl_kernels.dll", "darwin": "libedge_vl_kernels.dylib"}
    return names.get(sys.platform, "libedge_vl_kernels.so")


def _declare(functions: ctypes.CDLL) -> None:
    """Give every function its C signature (see `csrc/edge_vl_kernels.h`)."""
    size, address = ctypes.c_int64, ctypes.c_void_p
    functions.edge_vl_kernels_normalize_tile.argtypes = [address, size, size, size, size, size, address, address]
    functions.edge_vl_kernels_normalize_tile.restype = None
