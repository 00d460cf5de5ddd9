"""Rows: where queries, keys and values of new entries are, and where what they attend to goes."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels import kv_abi
from edge_vl_kernels.kv_format import KVGeometry
from edge_vl_kernels.kv_rope import describe

__all__ = ["KVRows"]


class KVRows:
    """Where the rows of a step are: made by `KVKernels.rows`, used by any number of steps; none of it can be replaced.

    Attributes:
        kernels: that they were made by.
        num_rows: of all sequences together.
        queries: float32 (rows, num_query_heads, head_dim) or None.
        keys: float32 (rows, num_kv_heads, head_dim).
        values: float32 (rows, num_kv_heads, head_dim).
        context: float32 (rows, num_query_heads, head_dim) or None.
        address: of their structure in C.
    """

    kernels: object
    num_rows: int
    queries: NDArray[np.float32] | None
    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    context: NDArray[np.float32] | None
    address: int

    __slots__ = ("_kept", "address", "context", "kernels", "keys", "num_rows", "queries", "values")

    def __init__(
        self,
        kernels: object,
        geometry: KVGeometry,
        queries: NDArray[np.float32] | None,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        context: NDArray[np.float32] | None,
    ) -> None:
        """Check the arrays; see `KVKernels.rows`."""
        num_rows = len(keys) if isinstance(keys, np.ndarray) and keys.ndim else 0
        _check_rows("keys", keys, (num_rows, geometry.num_kv_heads, geometry.head_dim))
        _check_rows("values", values, keys.shape)
        query_shape = (num_rows, geometry.num_query_heads, geometry.head_dim)
        if queries is not None:
            _check_rows("queries", queries, query_shape)
        if context is not None:
            if queries is None:
                raise ValueError("no queries: without them, context must be None too")
            _check_rows("context", context, query_shape)
            if not context.flags.writeable or _overlaps_itself(context):
                raise ValueError("context must be writable, and its rows and heads apart from each other")
            for name, rows in (("queries", queries), ("keys", keys), ("values", values)):
                if np.may_share_memory(context, rows):
                    raise ValueError(f"context must not share memory with {name}")
        arrays = (queries, keys, values, context)
        strides = [0 if rows is None else rows.strides[axis] // rows.itemsize for rows in arrays for axis in (0, 1)]
        struct = kv_abi.Rows(*(None if rows is None else rows.ctypes.data for rows in arrays), *strides)
        # NumPy does not resize an array that is weakly referenced.
        kept = (struct, [None if rows is None else weakref.ref(rows) for rows in arrays])
        names = ("kernels", "num_rows", "queries", "keys", "values", "context", "_kept", "address")
        for name, attribute in zip(names, (kernels, num_rows, *arrays, kept, ctypes.addressof(struct)), strict=True):
            object.__setattr__(self, name, attribute)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: the structure in C points to what is here."""
        raise AttributeError(f"{name} cannot be replaced; make other rows")

    def __delattr__(self, name: str) -> None:
        """Refuse, likewise."""
        raise AttributeError(f"{name} cannot be deleted; make other rows")


def _check_rows(name: str, rows: NDArray[np.float32], shape: tuple[int, ...]) -> None:
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.shape != shape or not shape[0]:
        expected = f"float32 {shape}" if shape[0] else "float32 (rows, heads, head_dim) with at least one row"
        raise ValueError(f"{name} must be {expected}, not {describe(rows)}")
    if rows.strides[2] != rows.itemsize:
        raise ValueError(f"{name} must have their channels side by side, not {rows.strides[2]} bytes apart")
    if not rows.flags.aligned or any(stride % rows.itemsize for stride in rows.strides):
        raise ValueError(f"{name} must be aligned to {rows.itemsize} bytes")


def _overlaps_itself(rows: NDArray[np.float32]) -> bool:
    """Say whether two of its elements may be the same: never for rows of heads, or heads of rows, with gaps or not."""
    extents = sorted((abs(stride), size) for stride, size in zip(rows.strides, rows.shape, strict=True) if size > 1)
    reach = rows.itemsize
    for stride, size in extents:
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False
