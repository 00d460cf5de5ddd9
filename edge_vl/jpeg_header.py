"""JPEG headers: checked and thinned before Pillow sees them, so that no small file costs much time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edge_vl.picture_limits import PictureLimits, UnusablePicture

__all__ = ["split_jpeg"]

_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # not a stuffed zero, a restart or padding
_SOI, _EOI, _SOS, _APP1, _APP2 = 0xD8, 0xD9, 0xDA, 0xE1, 0xE2
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_HUFFMAN_SIZES = frozenset({0xC0, 0xC1, 0xC2})

# Huffman codes have one bit or more, a block of 8x8 at least one code: a true JPEG has at most 512 pixels for each
# byte (a flat grey one of Pillow's: 256). Twice that is refused; it would be decoded, as grey, for a second or more.
_MAX_PIXELS_PER_BYTE = 1024
_MAX_SCANS = 100  # each is a pass over the whole picture; encoders write up to about 20
_MAX_SEGMENTS = 10_000


def split_jpeg(data: bytes, limits: PictureLimits) -> tuple[bytes, bytes]:
    """Check a JPEG's header and take from it what Pillow would parse in vain, with warnings.

    That is EXIF, of which Pillow reads the resolution, and the index of further pictures (MPO). Bytes between segments
    are dropped too: Pillow skips them one by one. The result decodes to the same pixels.

    Returns:
        The picture without these, and the EXIF data, empty if there are none.

    Raises:
        UnusablePicture: it has no picture data, more pixels than the limits or its bytes allow, or far too many scans.
    """
    kept = [b"\xff\xd8"]
    exif: list[bytes] = []
    for marker, start, stop in _segments(data):
        if marker == _SOS:
            kept.append(data[start:])
            _check_scans(data, start)
            return b"".join(kept), b"".join(exif)
        if marker in _SIZES:
            _check_size(data, marker, start, limits)
        if marker == _APP1 and data.startswith(b"Exif\0\0", start + 4):
            exif.append(data[start + 10 : stop])
        elif not (marker == _APP2 and data.startswith(b"MPF\0", start + 4)):
            kept.append(data[start:stop])
    raise _damaged("it ends before its pixels begin")


def _segments(data: bytes, position: int = 2) -> Iterator[tuple[int, int, int]]:
    """Yield the marker, start and end of every segment up to the end of the picture, the first that is not whole."""
    num_segments = 0
    while found := _MARKER.search(data, position):
        num_segments += 1
        if num_segments > _MAX_SEGMENTS:
            raise _damaged(f"it has more than {_MAX_SEGMENTS} segments")
        marker, start, position = found[0][1], found.start(), found.end()
        if marker == _EOI:
            return
        if marker < min(_SIZES) or marker == _SOI:  # has no length, or none that decoders believe
            continue
        length = int.from_bytes(data[position : position + 2])
        if length < 2 or position + length > len(data):
            return
        position += length
        yield marker, start, position


def _check_size(data: bytes, marker: int, start: int, limits: PictureLimits) -> None:
    height, width = int.from_bytes(data[start + 5 : start + 7]), int.from_bytes(data[start + 7 : start + 9])
    limits.check_size(width, height)
    if marker in _HUFFMAN_SIZES and width * height > _MAX_PIXELS_PER_BYTE * len(data):
        raise _damaged(f"{len(data)} bytes cannot hold the {width}x{height} pixels that it declares")


def _check_scans(data: bytes, start: int) -> None:
    if data.count(b"\xff\xda", start) <= _MAX_SCANS:  # counts too many rather than too few: what follows it, a video
        return
    num_scans = sum(marker == _SOS for marker, _, _ in _segments(data, start))
    if num_scans > _MAX_SCANS:
        raise _damaged(f"it has {num_scans} scans and at most {_MAX_SCANS} are taken")


def _damaged(why: str) -> UnusablePicture:
    return UnusablePicture(f"a JPEG picture, damaged or cut short: {why}", "a JPEG picture, damaged")
