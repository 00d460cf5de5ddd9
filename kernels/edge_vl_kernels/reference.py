"""The NumPy reference: slow where it must be, and right by definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["normalize_tile", "normalized_values"]


def normalized_values(
    rescale_factor: float, mean: tuple[float, float, float], std: tuple[float, float, float]
) -> NDArray[np.float32]:
    """Tabulate what each of the 256 values of a channel becomes.

    Args:
        rescale_factor: multiplies a pixel value first, mostly 1/255.
        mean: of each channel, after rescaling.
        std: standard deviation of each channel, after rescaling, > 0.

    Returns:
        float32 (3, 256): `(value * rescale_factor - mean) / std` by channel and value.

    Source:
        `rescale` and `normalize` of transformers' image_transforms.py, rounding included: the product in float64, the
        rest in float32.
    """
    rescaled = (np.arange(256, dtype=np.float64) * rescale_factor).astype(np.float32)
    return (rescaled - np.array(mean, np.float32)[:, None]) / np.array(std, np.float32)[:, None]


def normalize_tile(pixels: NDArray[np.uint8], values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Look every pixel value up in its channel's table and write the channels apart.

    Args:
        pixels: uint8 (height, width, 3), any strides.
        values: float32 (3, 256), see `normalized_values`.
        out: float32 (3, height, width), contiguous, written to.
    """
    for channel in range(3):
        # A byte is always within the table; `clip` spares NumPy the copy that it needs to be able to raise.
        np.take(values[channel], pixels[:, :, channel], out=out[channel], mode="clip")
