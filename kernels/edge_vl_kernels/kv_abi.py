"""The C side of key/value caches: the structures of `csrc/edge_vl_kernels.h`, and the signatures of its functions."""

from __future__ import annotations

import ctypes

from edge_vl_kernels.kv_format import PRECISIONS, CacheFormat

__all__ = ["NO_MEMORY", "Model", "Rows", "Sequence", "Slice", "declare", "model_slices"]

NO_MEMORY = 3
"""Scratch memory cannot be had. The other results of a step are those of `kv_reference.py`."""


class Slice(ctypes.Structure):
    """`edge_vl_kernels_kv_slice`."""

    _fields_ = (
        ("key_precision", ctypes.c_int64),
        ("value_precision", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("head_bytes", ctypes.c_int64),
        ("key_scales", ctypes.c_int64),
        ("key_zeros", ctypes.c_int64),
        ("values", ctypes.c_int64),
        ("value_scales", ctypes.c_int64),
        ("value_zeros", ctypes.c_int64),
    )


class Model(ctypes.Structure):
    """`edge_vl_kernels_kv_model`."""

    _fields_ = (
        ("num_layers", ctypes.c_int64),
        ("num_query_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("num_value_groups", ctypes.c_int64),
        ("num_sinks", ctypes.c_int64),
        ("num_formats", ctypes.c_int64),
        ("slices", ctypes.POINTER(Slice)),
        ("scale", ctypes.c_float),
        ("rotary_dim", ctypes.c_int32),
        ("is_interleaved", ctypes.c_int32),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
    )


class Sequence(ctypes.Structure):
    """`edge_vl_kernels_kv_sequence`."""

    _fields_ = (
        ("num_entries", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("first_position", ctypes.c_int64),
        ("sinks", ctypes.c_void_p),
        ("num_closed", ctypes.c_int64),
        ("blocks", ctypes.c_void_p),
        ("formats", ctypes.c_void_p),
        ("open_pages", ctypes.c_void_p),
    )


class Rows(ctypes.Structure):
    """`edge_vl_kernels_kv_rows`."""

    _fields_ = (
        ("queries", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("query_row", ctypes.c_int64),
        ("query_head", ctypes.c_int64),
        ("key_row", ctypes.c_int64),
        ("key_head", ctypes.c_int64),
        ("value_row", ctypes.c_int64),
        ("value_head", ctypes.c_int64),
        ("context_row", ctypes.c_int64),
        ("context_head", ctypes.c_int64),
    )


def declare(functions: ctypes.CDLL) -> None:
    """Give the functions for pools and key/value caches their C signatures."""
    size, address, status = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
    signatures = {
        "pool_new": (address, [status, status]),
        "pool_free": (None, [address]),
        "kv_step": (status, [address, address, address, size, size, address]),
        "kv_close": (None, [address, address, size, size, address, address]),
        "kv_read": (None, [address, address, size, size, address, size, size, address, address]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(functions, f"edge_vl_kernels_{name}")
        function.restype, function.argtypes = result, arguments


def model_slices(cache_format: CacheFormat) -> ctypes.Array[Slice]:
    """Return where each layer lies in each format, that of open blocks last: (num_formats, num_layers)."""
    slices = [
        Slice(
            PRECISIONS.index(layout.precision.keys),
            PRECISIONS.index(layout.precision.values),
            layout.offset,
            layout.head_bytes,
            layout.key_scales,
            layout.key_zeros,
            layout.values,
            layout.value_scales,
            layout.value_zeros,
        )
        for page_format in (*cache_format.pages, cache_format.open)
        for layout in page_format.slices
    ]
    return (Slice * len(slices))(*slices)
