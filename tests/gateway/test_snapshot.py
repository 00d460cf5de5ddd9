"""Tests of frames as small JPEGs."""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from edge_vl.frame import Frame
from edge_vl.gateway.snapshot import MAX_SNAPSHOT_BYTES, snapshot


def opened(pixels: NDArray[np.uint8], max_px: int) -> tuple[Image.Image, int]:
    data = snapshot(Frame(pixels, 0.0, 0.0), max_px)
    image = Image.open(io.BytesIO(data))
    image.load()
    assert image.format == "JPEG"
    return image, len(data)


@pytest.mark.parametrize(
    ("size", "max_px", "expected"),
    [((480, 640), 320, (320, 240)), ((40, 30), 640, (30, 40)), ((1, 5000), 64, (64, 1)), ((7, 7), 0, (1, 1))],
)
def test_the_longer_edge_is_bounded_and_nothing_is_enlarged(
    size: tuple[int, int], max_px: int, expected: tuple[int, int]
) -> None:
    pixels = np.full((*size, 3), (200, 30, 30), np.uint8)
    image, _ = opened(pixels, max_px)
    assert image.size == expected
    red, green, blue = np.asarray(image).reshape(-1, 3).mean(axis=0)
    assert red > 180
    assert max(green, blue) < 60


def test_even_noise_fits_into_a_message() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (1500, 2000, 3), np.uint8)
    image, num_bytes = opened(pixels, 2000)
    assert num_bytes <= MAX_SNAPSHOT_BYTES
    assert max(image.size) > 200
