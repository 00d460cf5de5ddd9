"""The way from a graph's file to its pieces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_vl_onnxruntime.attention_probe import probe_attention
from edge_vl_onnxruntime.decoder_graph import ROLES
from edge_vl_onnxruntime.graph_cut import CannotCut, CutGraph
from edge_vl_onnxruntime.graph_pattern import find_sites
from edge_vl_onnxruntime.graph_pieces import make_pieces
from edge_vl_onnxruntime.graph_positions import supply_positions
from edge_vl_onnxruntime.graph_rope import lift_ropes
from edge_vl_onnxruntime.graph_rows import RowAxes
from edge_vl_onnxruntime.graph_simplify import simplify
from edge_vl_onnxruntime.graph_skeleton import read_skeleton
from edge_vl_onnxruntime.graph_trace import Length, cache_sizes, trace_graph

__all__ = ["cut"]

_LENGTHS = (Length(7, 5), Length(11, 19), Length(1, 0))
_MANY_ROWS = 600
_MAX_HEAD_DIM = 256
_LONG_CONTEXT = 8192  # where config.json does not say


def cut(path: Path, text_config: Mapping[str, Any]) -> CutGraph:
    """Cut a decoder graph; see `edge_vl_onnxruntime.graph_cut.cut_graph`."""
    skeleton = read_skeleton(path)
    sizes = cache_sizes(skeleton, text_config)
    if sizes.head_dim % 32 or sizes.head_dim > _MAX_HEAD_DIM:
        raise CannotCut(f"its heads have {sizes.head_dim} channels, not a multiple of 32 up to {_MAX_HEAD_DIM}")
    limit = text_config.get("max_position_embeddings")
    context_length = limit if isinstance(limit, int) and limit > 0 else _LONG_CONTEXT
    traces = [trace_graph(skeleton, sizes, length) for length in _lengths(context_length)]
    supply_positions(skeleton, traces)
    axes = RowAxes(traces)
    simplify(skeleton, traces, axes)
    sites = find_sites(skeleton, traces[0], axes, sizes)
    sites = lift_ropes(skeleton, sites, traces[0], axes, sizes, context_length)
    attentions = tuple(site.attention for site in sites)
    for attention in attentions:
        if attention.num_query_heads % attention.num_kv_heads:
            raise CannotCut(f"its {attention.num_query_heads} heads do not share {attention.num_kv_heads} evenly")
    probe_attention(skeleton, sites, traces[0], axes, sizes, context_length)
    made = make_pieces(skeleton, attentions, traces[0], axes)
    positions = [name for name in made.graph_inputs if ROLES.get(name) == "positions"]
    return CutGraph(
        pieces=made.pieces,
        attentions=attentions,
        constants=made.constants,
        folder=skeleton.folder,
        positions=positions[0] if positions else "",
        shares_scales=made.shares_scales,
    )


def _lengths(context_length: int) -> list[Length]:
    """Return the lengths to look at; whatever is the same for all of them depends neither on rows nor on entries.

    The last one fills the context, so that a graph which does something else from some length on shows it.
    """
    rows = max(1, min(_MANY_ROWS, context_length // 2))
    return [*_LENGTHS, Length(rows, max(0, context_length - rows))]
