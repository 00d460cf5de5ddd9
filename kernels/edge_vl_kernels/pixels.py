"""Pixels: from a picture's bytes to what a vision encoder takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels import reference
from edge_vl_kernels.library import load

__all__ = ["normalize_tile"]


def normalize_tile(
    pixels: NDArray[np.uint8],
    rescale_factor: float,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    out: NDArray[np.float32] | None = None,
    isa: str = "auto",
) -> NDArray[np.float32]:
    """Rescale and normalise a tile and lay its channels apart.

    Args:
        pixels: uint8 (height, width, 3), interleaved, at least one pixel; any strides, so that a crop, a flip or a
            reversed channel order needs no copy.
        rescale_factor: multiplies a pixel value first, mostly 1/255; finite.
        mean: three values, in the order of the channels, after rescaling; finite.
        std: three standard deviations, likewise; > 0.
        out: float32 (3, height, width), C-contiguous, apart from `pixels`; None allocates it.
        isa: one of `edge_vl_kernels.ISAS`; all give the same bits.

    Returns:
        float32 (3, height, width), planar: `(pixels * rescale_factor - mean) / std`; `out` where it was given.

    Raises:
        ValueError: an argument has another type, shape or range.
        RuntimeError: `isa` names one that is not there.

    Source:
        transformers' image_transforms.py, `rescale` and `normalize`. Differs: through a table of 3 x 256 values, so
        that each value is computed once and every implementation gives the same bits.

    A 512x512 tile takes 0.28 ms compiled and 0.69 ms by the reference (`python -m benchmarks pixels`, AMD EPYC).
    """
    _check_pixels(pixels)
    values = _table(float(rescale_factor), tuple(map(float, mean)), tuple(map(float, std)))
    height, width, _ = pixels.shape
    if out is None:
        out = np.empty((3, height, width), np.float32)
    else:
        _check_out(out, pixels)
    functions = load(isa).functions
    if functions is None:
        reference.normalize_tile(pixels, values, out)
    else:
        functions.edge_vl_kernels_normalize_tile(
            pixels.ctypes.data, height, width, *pixels.strides, values.ctypes.data, out.ctypes.data
        )
    return out


def _check_pixels(pixels: NDArray[np.uint8]) -> None:
    if not isinstance(pixels, np.ndarray):
        raise ValueError(f"pixels must be a NumPy array, not {type(pixels).__name__}")
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
        raise ValueError(f"pixels must be uint8 (height, width, 3) and not empty, not {_describe(pixels)}")


def _check_out(out: NDArray[np.float32], pixels: NDArray[np.uint8]) -> None:
    if not isinstance(out, np.ndarray):
        raise ValueError(f"out must be a NumPy array, not {type(out).__name__}")
    height, width, _ = pixels.shape
    if out.dtype != np.float32 or out.shape != (3, height, width):
        raise ValueError(f"out must be float32 (3, {height}, {width}), not {_describe(out)}")
    if not out.flags.carray:
        raise ValueError("out must be C-contiguous, aligned and writable")
    if np.may_share_memory(out, pixels):
        raise ValueError("out must not share memory with pixels")


@functools.lru_cache(maxsize=64)
def _table(rescale_factor: float, mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """Check the three settings and tabulate them: a model uses the same ones for every tile."""
    if len(mean) != 3 or len(std) != 3:
        raise ValueError(f"mean and std must have three values each, not {len(mean)} and {len(std)}")
    if not all(map(math.isfinite, (rescale_factor, *mean, *std))):
        raise ValueError(f"rescale_factor, mean and std must be finite, not {rescale_factor}, {mean} and {std}")
    if min(std) <= 0:
        raise ValueError(f"std must be > 0, not {std}")
    values = reference.normalized_values(rescale_factor, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))
    values.flags.writeable = False
    return values


def _describe(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} {array.shape}"
