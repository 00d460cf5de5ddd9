"""Compiled kernels with a NumPy reference that defines what is right.

Every function takes `isa`: `auto` uses the best that this build and CPU have, any other name of `ISAS` forces one.
Where no compiled library can be loaded, `auto` falls back to the reference and `status` says why.
"""

from __future__ import annotations

from edge_vl_kernels.library import ISAS, KernelsStatus, status
from edge_vl_kernels.pixels import normalize_tile

__all__ = ["ISAS", "KernelsStatus", "normalize_tile", "status"]
