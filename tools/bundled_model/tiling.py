"""What the model sees of a picture: four tiles and a thumbnail.

The same steps as transformers' Pillow-backed Idefics3 image processor with `size.longest_edge` 128 and
`max_image_size.longest_edge` 64, for pictures between 1:2 and 2:1 (all of them become 2 x 2 tiles).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

TILE = 64
LONGEST_EDGE = 128


def tiles(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cut a picture into tiles.

    Args:
        pixels: uint8 (height, width, 3), RGB.

    Returns:
        uint8 (num_tiles, 64, 64, 3), row by row, the thumbnail last.
    """
    height, width = pixels.shape[:2]
    if width >= height:
        wide, high = LONGEST_EDGE, _even(int(LONGEST_EDGE * height / width))
    else:
        wide, high = _even(int(LONGEST_EDGE * width / height)), LONGEST_EDGE
    columns, rows = math.ceil(wide / TILE), math.ceil(high / TILE)
    picture = Image.fromarray(pixels).resize((wide, high), Image.Resampling.LANCZOS)
    picture = picture.resize((columns * TILE, rows * TILE), Image.Resampling.LANCZOS)
    grid = np.asarray(picture).reshape(rows, TILE, columns, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3)
    thumbnail = np.asarray(picture.resize((TILE, TILE), Image.Resampling.LANCZOS))
    return np.concatenate([grid, thumbnail[None]])


def _even(length: int) -> int:
    return max(length + length % 2, 1)
