"""ELF files: whether one is all there."""

from __future__ import annotations

import struct
from pathlib import Path

__all__ = ["elf_nbytes"]

_MAGIC = b"\x7fELF"
_PT_LOAD = 1

_HEADERS = {1: "16sHHIIIIIHHHHHH", 2: "16sHHIQQQIHHHHHH"}
"""The file's header, by class: 32 and 64 bits."""

_SEGMENTS = {1: "IIIIIIII", 2: "IIQQQQQQ"}
"""A program header, likewise. Type; offset at 1 or 2; bytes in the file at 4 or 5."""


def elf_nbytes(file: Path) -> int:
    """Say how many bytes an ELF file has by its headers: to the end of its tables and of what is mapped to memory.

    The loader of Linux maps a file that was cut short and dies of SIGBUS when it reads what is not there.

    Returns:
        That many; 0 if it is no ELF file, which is for the loader to say.

    Raises:
        OSError: the file cannot be read.

    Source:
        System V ABI, chapter 4, ELF header, and chapter 5, program header.
    """
    with file.open("rb") as stream:
        identification = stream.read(16)
        if identification[:4] != _MAGIC:
            return 0
        elf_class, order = (identification + bytes(16))[4:6]
        if elf_class not in _HEADERS or order not in (1, 2):
            return 0
        header = struct.Struct("<>"[order - 1] + _HEADERS[elf_class])
        rest = stream.read(header.size - 16)
        if len(rest) < header.size - 16:
            return header.size
        fields = header.unpack(identification + rest)
        segments_at, sections_at = fields[5:7]
        segment_nbytes, num_segments, section_nbytes, num_sections = fields[9:13]
        ends: list[int] = [
            header.size,
            segments_at + segment_nbytes * num_segments,
            sections_at + section_nbytes * num_sections,
        ]
        segment = struct.Struct("<>"[order - 1] + _SEGMENTS[elf_class])
        stream.seek(min(segments_at, 2**62))
        table = stream.read(segment_nbytes * num_segments)
    if segment_nbytes < segment.size or len(table) < segment_nbytes * num_segments:
        return max(ends)
    for at in range(0, len(table), segment_nbytes):
        kind, *places = segment.unpack_from(table, at)
        if kind == _PT_LOAD:
            ends.append(places[elf_class - 1] + places[elf_class + 2])
    return max(ends)
