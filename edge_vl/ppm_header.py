"""PPM headers: text, which Pillow reads byte by byte, checked to be short before it does."""

from __future__ import annotations

import re

from edge_vl.picture_limits import UnusablePicture

__all__ = ["tidy_ppm"]

_MAGIC = re.compile(rb"P[1-6f]\s|PyP\s|P0CMYK|PyRGBA|PyCMYK")  # what Pillow takes; anything else it refuses at once
_COMMENT = re.compile(rb"#[^\r\n]*[\r\n]?")
_THREE_WORDS = re.compile(rb"(?:\S+\s+){2}\S+\s")  # the kind, width and height
_FOUR_WORDS = re.compile(rb"(?:\S+\s+){3}\S+\s")  # and the largest value
_MAX_HEADER_BYTES = 4096


def tidy_ppm(data: bytes) -> bytes:
    """Check that the header of a PPM, PGM or PBM is short; drop the comments of one that is text throughout.

    Pillow takes minutes for a header of 64 MiB of spaces, and time that grows with the square of their number for
    comments among the pixels.

    Returns:
        What decodes to the same picture; data of other kinds as they are.

    Raises:
        UnusablePicture: the header has more than 4096 bytes.
    """
    if not _MAGIC.match(data):
        return data
    if data[1:2] in b"123":
        data = _COMMENT.sub(b"", data)
    head = data[:_MAX_HEADER_BYTES]
    words = _THREE_WORDS if data[1:2] in b"14" else _FOUR_WORDS
    if len(data) > len(head) and not words.match(_COMMENT.sub(b"", head)):
        raise UnusablePicture(
            f"a PPM picture, damaged or cut short: its header has more than {_MAX_HEADER_BYTES} bytes",
            "a PPM picture, damaged",
        )
    return data
