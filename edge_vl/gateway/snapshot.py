"""A frame as a small JPEG."""

from __future__ import annotations

import io

from PIL import Image

from edge_vl.frame import Frame

__all__ = ["MAX_SNAPSHOT_BYTES", "snapshot"]

MAX_SNAPSHOT_BYTES = 120_000
"""Brokers of clouds take messages of 128 KB with everything in them."""

_QUALITIES = (85, 70, 50, 30)


def snapshot(frame: Frame, max_px: int) -> bytes:
    """Return a frame as a JPEG of at most 120,000 bytes.

    Args:
        frame: never enlarged.
        max_px: longer edge of the JPEG.
    """
    image = Image.fromarray(frame.pixels)
    edge = max(1, max_px)
    while True:
        image.thumbnail((edge, edge), Image.Resampling.BILINEAR, reducing_gap=2.0)
        for quality in _QUALITIES:
            file = io.BytesIO()
            image.save(file, "JPEG", quality=quality)
            if file.tell() <= MAX_SNAPSHOT_BYTES:
                return file.getvalue()
        edge = max(image.size) // 2
