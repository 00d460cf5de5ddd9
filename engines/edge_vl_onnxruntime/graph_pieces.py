"""The pieces of a graph whose attention was taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from onnx import helper

from edge_vl_onnxruntime.decoder_graph import PAST
from edge_vl_onnxruntime.graph_cut import ROWS, CannotCut, CutAttention, Piece
from edge_vl_onnxruntime.graph_rows import RowAxes, RowCheck
from edge_vl_onnxruntime.graph_skeleton import GraphNode, Skeleton, weight_nbytes
from edge_vl_onnxruntime.graph_trace import Trace

__all__ = ["CutPieces", "make_pieces"]

_MAX_COPIED_BYTES = 64 * 1024
_CONSTANT = -1


@dataclass(frozen=True, slots=True)
class CutPieces:
    """What is emitted.

    Attributes:
        pieces: one more than attentions.
        constants: weights that several pieces share.
        graph_inputs: inputs of the decoder graph that some piece takes.
        shares_scales: activations are quantised with one scale for all rows.
    """

    pieces: tuple[Piece, ...]
    constants: Mapping[str, NDArray[Any]]
    graph_inputs: frozenset[str]
    shares_scales: bool


@dataclass(slots=True)
class _Draft:
    """A piece in the making; nodes by the place that they have in the graph."""

    nodes: dict[int, GraphNode] = field(default_factory=dict)
    inputs: dict[str, None] = field(default_factory=dict)
    outputs: dict[str, None] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)


def make_pieces(skeleton: Skeleton, attentions: Sequence[CutAttention], trace: Trace, axes: RowAxes) -> CutPieces:
    """Share the nodes out to the pieces and check that each keeps rows apart.

    Raises:
        CannotCut: the layers do not follow each other, or rows mix outside the attention.
    """
    levels = _levels(skeleton, attentions)
    for attention in attentions:
        for operand in (attention.query, attention.key, attention.value):
            if operand.name not in levels:
                raise CannotCut(f"layer {attention.layer}: {operand.name} depends on the cache outside the attention")
            if levels[operand.name] != attention.layer or operand.name not in skeleton.producers:
                raise CannotCut(f"layer {attention.layer} does not follow layer {attention.layer - 1}")
    if "logits" not in levels:
        raise CannotCut("its logits depend on the cache outside the attention")
    if levels["logits"] != len(attentions):
        raise CannotCut("its logits do not come from its last layer")
    drafts = _share_out(skeleton, attentions, levels)
    check = RowCheck(axes, {name for name, level in levels.items() if level == _CONSTANT})
    for draft in drafts:
        for place in sorted(draft.nodes):
            check.check(draft.nodes[place])
    uses = [name for draft in drafts for name in draft.weights]
    shared = {
        name for name in set(uses) if uses.count(name) > 1 and weight_nbytes(skeleton.weights[name]) > _MAX_COPIED_BYTES
    }
    for draft in drafts:
        draft.inputs.update(dict.fromkeys(sorted(draft.weights & shared)))
    emitter = _Emitter(skeleton, trace, axes, shared)
    return CutPieces(
        pieces=tuple(emitter.piece(draft) for draft in drafts),
        constants={name: skeleton.read_weight(name) for name in sorted(shared)},
        graph_inputs=frozenset(name for draft in drafts for name in draft.inputs if name in skeleton.inputs),
        shares_scales=check.shares_scales,
    )


def _levels(skeleton: Skeleton, attentions: Sequence[CutAttention]) -> dict[str, int]:
    """Return how many layers of attention stand before each tensor; what hangs on the cache has no level."""
    levels = dict.fromkeys(skeleton.weights, _CONSTANT)
    levels.update({name: 0 for name in skeleton.inputs if not PAST.fullmatch(name)})
    levels.update({attention.context: attention.layer + 1 for attention in attentions})
    contexts = {attention.context for attention in attentions}
    for node in skeleton.nodes:
        found = [levels.get(name) for name in node.inputs if name]
        known = [level for level in found if level is not None]
        if len(known) == len(found) and not contexts.intersection(node.outputs):
            levels.update(dict.fromkeys(filter(None, node.outputs), max(known, default=_CONSTANT)))
    return levels


def _share_out(skeleton: Skeleton, attentions: Sequence[CutAttention], levels: Mapping[str, int]) -> list[_Draft]:
    """Walk back from what each piece must give; what an earlier piece computes becomes an output of it."""
    places = {id(node): place for place, node in enumerate(skeleton.nodes)}
    contexts = {attention.context: attention.layer + 1 for attention in attentions}
    drafts = [_Draft() for _ in range(len(attentions) + 1)]
    for attention in attentions:
        names = (attention.query.name, attention.key.name, attention.value.name)
        drafts[attention.layer].outputs.update(dict.fromkeys(names))
    drafts[-1].outputs["logits"] = None
    for number in range(len(attentions), -1, -1):
        draft = drafts[number]
        ahead, seen = list(draft.outputs), set(draft.outputs)
        while ahead:
            name = ahead.pop()
            level = levels.get(name)
            if name in skeleton.weights:
                draft.weights.add(name)
            elif name in contexts and contexts[name] != number:
                raise CannotCut(f"{name}, the result of an attention, is used behind the next one")
            elif name in contexts or name in skeleton.inputs:
                if PAST.fullmatch(name):
                    raise CannotCut(f"{name} is needed outside the attention")
                draft.inputs[name] = None
            elif level is None:
                raise CannotCut(f"{name} hangs on the cache and is needed outside the attention")
            elif level in (_CONSTANT, number):
                node = skeleton.producers[name]
                draft.nodes[places[id(node)]] = node
                for source in node.inputs:
                    if source and source not in seen:
                        seen.add(source)
                        ahead.append(source)
            else:
                draft.inputs[name] = None
                drafts[level].outputs[name] = None
    return drafts


class _Emitter:
    """Writes pieces."""

    def __init__(self, skeleton: Skeleton, trace: Trace, axes: RowAxes, shared: set[str]) -> None:
        self._skeleton, self._trace, self._axes, self._shared = skeleton, trace, axes, shared

    def piece(self, draft: _Draft) -> Piece:
        """Write one piece."""
        nodes = [draft.nodes[place] for place in sorted(draft.nodes)]
        graph = self._skeleton.message(nodes, map(self._describe, draft.inputs), map(self._describe, draft.outputs))
        return Piece(graph, tuple(draft.inputs), tuple(draft.outputs))

    def _describe(self, name: str) -> Any:
        """Describe an input or output; its rows are the one open dimension."""
        row = self._axes.axis(name)
        if row is None and name not in self._shared and name not in self._skeleton.inputs:
            raise CannotCut(f"{name} goes from piece to piece and has no rows")
        shape = [ROWS if place == row else size for place, size in enumerate(self._axes.shape(name))]
        if row is not None and self._axes.shape(name)[row] != self._trace.length.rows:
            raise CannotCut(f"{name} goes from piece to piece with something folded into its rows")
        return helper.make_tensor_value_info(name, self._trace.dtypes[name], shape)
