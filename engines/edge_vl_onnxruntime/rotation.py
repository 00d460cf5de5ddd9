"""Rotary embeddings by tables, in NumPy: what the attention is given, and what a graph is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_vl_onnxruntime.graph_cut import CutRope

__all__ = ["rotated", "rotation_pairs"]


def rotation_pairs(rotary_dim: int, *, is_interleaved: bool) -> tuple[slice, slice]:
    """Return the first and the second channels of the pairs that turn."""
    if is_interleaved:
        return slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
    return slice(rotary_dim // 2), slice(rotary_dim // 2, rotary_dim)


def rotated(rows: NDArray[np.float32], rope: CutRope, first_position: int) -> NDArray[np.float32]:
    """Turn rows by their positions.

    Args:
        rows: (rows, heads, head_dim).
        rope: tables.
        first_position: of the first row; the others follow.
    """
    places = slice(first_position, first_position + len(rows))
    cosines, sines = rope.cosines[places, None], rope.sines[places, None]
    one, other = rotation_pairs(2 * cosines.shape[-1], is_interleaved=rope.is_interleaved)
    turned = rows.copy()
    turned[..., one] = rows[..., one] * cosines - rows[..., other] * sines
    turned[..., other] = rows[..., other] * cosines + rows[..., one] * sines
    return turned
