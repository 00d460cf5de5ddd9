"""EXIF: the one entry of it that matters here, read from raw bytes without complaint."""

from __future__ import annotations

import struct
from typing import Literal

__all__ = ["read_orientation"]

_ORIENTATION_TAG = 0x0112
_PREFIX = b"Exif\0\0"
_ENTRY_BYTES = 12
_VALUE_FORMATS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}  # by the type number of an entry: integers only


def read_orientation(exif: bytes) -> int | None:
    """Find the orientation in EXIF data, with or without its `Exif` prefix.

    Pillow's own reader warns about damaged data, and warnings can neither be silenced for one thread alone nor be left
    to a caller who has turned them into errors.

    Returns:
        The number of tag 0x0112, unchecked; None if there is none or the data are too damaged to tell. Of several the
        last, as Pillow does.
    """
    while exif.startswith(_PREFIX):
        exif = exif[len(_PREFIX) :]
    order: Literal["little", "big"] = "little" if exif[:2] == b"II" else "big"
    if exif[:2] not in (b"II", b"MM") or len(exif) < 8:
        return None
    start = int.from_bytes(exif[4:8], order)
    num_entries = int.from_bytes(exif[start : start + 2], order)
    sign = "<" if order == "little" else ">"
    orientation = None
    for position in range(start + 2, min(start + 2 + num_entries * _ENTRY_BYTES, len(exif)), _ENTRY_BYTES):
        entry = exif[position : position + _ENTRY_BYTES]
        if len(entry) < _ENTRY_BYTES:
            break
        tag, value_type, num_values = struct.unpack(f"{sign}HHI", entry[:8])
        if tag == _ORIENTATION_TAG and num_values == 1 and value_type in _VALUE_FORMATS:
            orientation = int(struct.unpack_from(sign + _VALUE_FORMATS[value_type], entry, 8)[0])
    return orientation
