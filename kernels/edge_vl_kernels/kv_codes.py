"""Codes, scales and zeros: how the NumPy reference makes few bits of numbers, and numbers of them again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["dequantize", "pack_halves", "quantize_int4", "quantize_int8", "unpack_halves"]


def quantize_int8(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Quantise symmetrically to 8 bits.

    Args:
        values: float32 (..., elements that share a scale), within ±65504.

    Returns:
        int8 codes of the same shape, -127 to 127, and float16 scales (..., 1): the largest magnitude / 127, rounded up.
        Where the scale is 0 the codes are.
    """
    scales = _float16_up(np.abs(values).max(-1, keepdims=True) / np.float32(127))
    return np.clip(_quotients(values, scales), -127, 127).astype(np.int8), scales


def quantize_int4(
    values: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """Quantise asymmetrically to 4 bits.

    Args:
        values: float32 (..., elements that share a scale and a zero), within ±65504.

    Returns:
        uint8 codes of the same shape, 0 to 15; float16 scales and zeros (..., 1). The zero is the smallest value,
        rounded down; the scale is a 15th of the way from there to the largest value, rounded up. Neither is ever -0.
        Where the scale is 0 the codes are.
    """
    zeros = _float16_down(values.min(-1, keepdims=True))
    zero = zeros.astype(np.float32)
    scales = _float16_up((values.max(-1, keepdims=True) - zero) / np.float32(15))
    return np.clip(_quotients(values - zero, scales), 0, 15).astype(np.uint8), scales, zeros


def dequantize(
    codes: NDArray[Any], scales: NDArray[np.float16], zeros: NDArray[np.float16] | None
) -> NDArray[np.float32]:
    """Return `scales * codes + zeros` as float32: the product is exact, the sum is rounded."""
    values = codes.astype(np.float32)
    values *= scales.astype(np.float32)
    if zeros is not None:
        values += zeros.astype(np.float32)
    return values


def pack_halves(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put two 4-bit codes into a byte: the first half of the last axis into the low bits, the second into the high."""
    half = codes.shape[-1] // 2
    return (codes[..., :half] | codes[..., half:] << 4).astype(np.uint8, copy=False)


def unpack_halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `pack_halves`."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _quotients(values: NDArray[np.float32], scales: NDArray[np.float16]) -> NDArray[np.float32]:
    """Divide by the scale and round half to even; 0 where the scale is."""
    scale = scales.astype(np.float32)
    return np.rint(values / np.where(scale == 0, np.float32(np.inf), scale))


def _float16_up(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round up to float16, and make +0 of -0."""
    nearest = values.astype(np.float16)
    return np.nextafter(nearest, np.float16(np.inf), out=nearest, where=nearest < values) + np.float16(0)


def _float16_down(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round down to float16, and make +0 of -0."""
    nearest = values.astype(np.float16)
    return np.nextafter(nearest, np.float16(-np.inf), out=nearest, where=nearest > values) + np.float16(0)
