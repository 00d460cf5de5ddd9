"""The header of a GGUF file: its metadata and its list of tensors, without the weights.

Source:
    docs/gguf.md of ggml-org/ggml (versions 2 and 3, little endian). Differs: counts and lengths are bounded by the size
    of the file, and long arrays of numbers are skipped.
"""

from __future__ import annotations

import math
import mmap
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_vl.errors import ModelError

__all__ = ["GGUFHeader", "GGUFTensor", "read_gguf_header"]

_MAGIC = b"GGUF"
_LFS_POINTER = b"version https://git-lfs"
_MAX_DIMENSIONS = 4
_MAX_NUMBERS = 4096  # longer arrays of numbers, such as the scores of a vocabulary, are skipped
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
}
"""Name, elements of a block and bytes of a block, by ggml's number of the type."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor, not read.

    Attributes:
        name: as llama.cpp names it.
        shape: fastest dimension first, as GGUF writes it.
        dtype: ggml's name in lower case, such as `q8_0`; `type 99` for one that is not known here.
        offset: of its data from the beginning of the file, in bytes.
        nbytes: 0 for a type that is not known here.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GGUFHeader:
    """What a file says about itself.

    Attributes:
        path: the file.
        metadata: by key; an array of more than 4096 numbers is left out.
        tensors: in file order.
        kinds: GGUF's number of each value's type, by key: 4 is uint32, 6 float32, 7 bool, 8 a string, 9 an array.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GGUFTensor, ...]
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """What llama.cpp calls the kind of model; `clip` for a vision encoder's file (mmproj)."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def is_projector(self) -> bool:
        """Whether it is a vision encoder's file."""
        return self.architecture == "clip"

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def dtype(self) -> str:
        """The type that most bytes have."""
        by_type: dict[str, int] = {}
        for tensor in self.tensors:
            by_type[tensor.dtype] = by_type.get(tensor.dtype, 0) + tensor.nbytes
        return max(by_type, key=by_type.__getitem__, default="")

    def number(self, key: str) -> int:
        """Return a whole number of the architecture's section, such as `embedding_length`; 0 if there is none.

        Some are lists with a number for each layer; then it is the largest.
        """
        value = self.metadata.get(f"{self.architecture}.{key}", 0)
        if isinstance(value, list):
            value = max((entry for entry in value if isinstance(entry, int)), default=0)
        return value if isinstance(value, int) else 0


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read the header of a GGUF file.

    Raises:
        ModelError: it cannot be read, is no GGUF file, or is shorter than its header says.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would never end
            raise ModelError(f"{path} cannot be read: it is no ordinary file", file=str(path))
        size = status.st_size
        with path.open("rb") as file:
            head = file.read(len(_LFS_POINTER))
            if not head.startswith(_MAGIC):
                raise ModelError(f"{path} {_what_it_is(head)}", file=str(path))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data, size).read()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}", file=str(path)) from error


def _what_it_is(head: bytes) -> str:
    if not head:
        return "is empty; download it again"
    if head == _LFS_POINTER:
        return "is a Git LFS pointer, not the model; run `git lfs pull`"
    return f"is not a GGUF file: it begins with {head[:4]!r}"


class _Reader:
    """Walks through the bytes once."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._at = 4

    def read(self) -> GGUFHeader:
        version = self._number("I")
        if version not in (2, 3):
            raise self._broken(f"is of GGUF version {version}; 2 and 3 are understood")
        num_tensors, num_entries = self._number("Q"), self._number("Q")
        if num_tensors + num_entries > self._size // 8:
            raise self._broken(f"names {num_tensors} tensors and {num_entries} entries, more than it can hold")
        metadata: dict[str, Any] = {}
        kinds: dict[str, int] = {}
        for _ in range(num_entries):
            key = self._string()
            kinds[key] = self._number("I")
            value = self._value(kinds[key])
            if value is not None:
                metadata[key] = value
        entries = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise self._broken(f"has an alignment of {alignment!r}")
        begin = math.ceil(self._at / alignment) * alignment
        tensors = tuple(
            GGUFTensor(name, shape, dtype, begin + offset, nbytes) for name, shape, dtype, offset, nbytes in entries
        )
        end = max((tensor.offset + tensor.nbytes for tensor in tensors), default=self._at)
        if end > self._size:
            raise self._broken(f"has {self._size} bytes and should have {end}: it is cut off; download it again")
        return GGUFHeader(self._path, metadata, tensors, kinds)

    def _tensor(self) -> tuple[str, tuple[int, ...], str, int, int]:
        name = self._string()
        num_dimensions = self._number("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise self._broken(f"gives tensor {name!r:.80} {num_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(num_dimensions))
        kind, offset = self._number("I"), self._number("Q")
        dtype, block, block_bytes = _TYPES.get(kind, (f"type {kind}", 1, 0))
        return name, shape, dtype, offset, math.prod(shape) // block * block_bytes

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self._broken(f"has a value of the unknown type {kind}")
        return self._number(_SCALARS[kind])

    def _array(self) -> list[Any] | None:
        kind, length = self._number("I"), self._number("Q")
        if length > self._size:
            raise self._broken(f"has an array of {length} values, more than it can hold")
        if kind == _STRING:
            return [self._string() for _ in range(length)]
        if kind not in _SCALARS:
            raise self._broken(f"has an array of the unknown type {kind}")
        layout = struct.Struct(f"<{length}{_SCALARS[kind]}")
        values = self._take(layout.size)
        return list(layout.unpack(values)) if length <= _MAX_NUMBERS else None

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "replace")

    def _number(self, code: str) -> Any:
        layout = struct.Struct(f"<{code}")
        return layout.unpack(self._take(layout.size))[0]

    def _take(self, length: int) -> bytes:
        if length > self._size - self._at:
            raise self._broken("ends within its header: it is cut off; download it again")
        piece = self._data[self._at : self._at + length]
        self._at += length
        return piece

    def _broken(self, what: str) -> ModelError:
        return ModelError(f"{self._path} {what}", file=str(self._path))
