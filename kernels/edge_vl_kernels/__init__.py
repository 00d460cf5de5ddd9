"""Compiled kernels with a NumPy reference that defines what is right.

Every function takes `isa`: `auto` uses the best that this build and CPU have, any other name of `ISAS` forces one;
`available_isas` are there to be forced, `missing_isas` says why others are not. Where no compiled library can be
loaded, `auto` falls back to the reference and `status` says why.
"""

from __future__ import annotations

from edge_vl_kernels.kv import KVKernels, KVRows, KVSequence, KVStep, Page, Rope, aligned_page
from edge_vl_kernels.kv_format import (
    BLOCK_ENTRIES,
    FORMAT_VERSION,
    CacheFormat,
    KVGeometry,
    LayerPrecision,
    PageFormat,
    Precision,
)
from edge_vl_kernels.library import ISAS, KernelsStatus, available_isas, missing_isas, status
from edge_vl_kernels.pixels import normalize_tile

__all__ = [
    "BLOCK_ENTRIES",
    "FORMAT_VERSION",
    "ISAS",
    "CacheFormat",
    "KVGeometry",
    "KVKernels",
    "KVRows",
    "KVSequence",
    "KVStep",
    "KernelsStatus",
    "LayerPrecision",
    "Page",
    "PageFormat",
    "Precision",
    "Rope",
    "aligned_page",
    "available_isas",
    "missing_isas",
    "normalize_tile",
    "status",
]
