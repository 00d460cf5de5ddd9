"""What all layers of a cut decoder have in common: the kernels for our caches know one kind of attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge_vl_kernels.kv_format import KVGeometry
from edge_vl_onnxruntime.graph_cut import CannotCut, CutGraph, CutRope, cut_graph

__all__ = ["cut_evenly", "geometry_of"]


def cut_evenly(path: Path, text_config: Mapping[str, Any]) -> CutGraph:
    """Cut a graph whose layers all attend in the same way.

    Raises:
        CannotCut: it cannot be cut, or its layers differ.
    """
    cut = cut_graph(path, text_config)
    first = cut.attentions[0]
    for attention in cut.attentions:
        for name in ("num_query_heads", "num_kv_heads", "head_dim", "scale"):
            if getattr(first, name) != getattr(attention, name):
                raise CannotCut(f"layers 0 and {attention.layer} have another {name} each")
        if not _same_rope(first.rope, attention.rope):
            raise CannotCut(f"layers 0 and {attention.layer} turn queries and keys in other ways")
    geometry_of(cut)
    # One table for all.
    return dataclasses.replace(
        cut, attentions=tuple(dataclasses.replace(attention, rope=first.rope) for attention in cut.attentions)
    )


def geometry_of(cut: CutGraph) -> KVGeometry:
    """Return the sizes of attention.

    Raises:
        CannotCut: the format of our caches does not cover them.
    """
    first = cut.attentions[0]
    try:
        return KVGeometry(len(cut.attentions), first.num_query_heads, first.num_kv_heads, first.head_dim)
    except ValueError as error:
        raise CannotCut(f"its attention has other sizes than our caches take: {error}") from error


def _same_rope(one: CutRope | None, other: CutRope | None) -> bool:
    if one is None or other is None:
        return one is other
    return (
        one.is_interleaved == other.is_interleaved
        and np.array_equal(one.cosines, other.cosines)
        and np.array_equal(one.sines, other.sines)
    )
