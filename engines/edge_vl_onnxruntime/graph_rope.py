"""Rotation by position, taken out of the pieces and left to the attention.

An exporter writes rotary embeddings as a dozen small operators for queries and as many for keys, which cost more time
than the rotation itself. Where running them shows that they are one, with the same angles in all layers, the attention
gets tables of cosines and sines instead, and queries and keys as they were before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_vl_onnxruntime.decoder_graph import ROLES
from edge_vl_onnxruntime.graph_cut import CannotCut, CutRope, Operand
from edge_vl_onnxruntime.graph_part import GraphPart
from edge_vl_onnxruntime.graph_pattern import Site
from edge_vl_onnxruntime.graph_rows import RowAxes
from edge_vl_onnxruntime.graph_skeleton import Skeleton
from edge_vl_onnxruntime.graph_trace import CacheSizes, Length, Trace
from edge_vl_onnxruntime.graph_walk import GraphWalk
from edge_vl_onnxruntime.rotation import rotated, rotation_pairs

__all__ = ["ROPE_OPERATORS", "lift_ropes"]

ROPE_OPERATORS = frozenset({
    "Add", "Cast", "Concat", "Cos", "Div", "Expand", "Gather", "MatMul", "Mul", "Neg", "Reshape", "RotaryEmbedding",
    "Sin", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze", "com.microsoft::RotaryEmbedding",
})  # fmt: skip
"""What rotary embeddings are written with."""

_MAX_POSITIONS = 65536  # 16 MiB of tables at 64 channels
_MAX_NODES = 48
_CHUNK_ROWS = 1024
_PROBE_ROWS = 8
_TOLERANCE = 2e-5


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    """Queries or keys of a layer: what they are before they are turned, and the tensor of them turned."""

    source: Operand
    result: Operand
    num_heads: int


def lift_ropes(
    skeleton: Skeleton, sites: Sequence[Site], trace: Trace, axes: RowAxes, sizes: CacheSizes, context_length: int
) -> list[Site]:
    """Return the sites with tables for the attention; as they are if that is not possible for all of them.

    Args:
        skeleton: the graph.
        sites: its attention.
        trace: of any length.
        axes: of rows.
        sizes: of the cache.
        context_length: positions that the tables are to have.
    """
    is_wanted = all(
        site.attention.rope is None and site.attention.query.dtype == site.attention.key.dtype == np.float32
        for site in sites
    )
    if not is_wanted or not _PROBE_ROWS <= context_length <= _MAX_POSITIONS:
        return list(sites)
    lifter = _Lifter(skeleton, trace, axes, sizes, context_length)
    try:
        return lifter.lift(sites)
    except CannotCut:  # the pieces turn queries and keys as the graph does
        return list(sites)


class _Lifter:
    """Lifts the rotations of one graph."""

    def __init__(self, skeleton: Skeleton, trace: Trace, axes: RowAxes, sizes: CacheSizes, context_length: int) -> None:
        self._skeleton, self._trace, self._axes, self._sizes = skeleton, trace, axes, sizes
        self._context_length = context_length
        self._walk = GraphWalk(skeleton, trace, axes, sizes)
        self._places = {name: place for place, node in enumerate(skeleton.nodes) for name in node.outputs}
        self._data = {name for name in skeleton.inputs if ROLES.get(name) == "embeds"}
        for node in skeleton.nodes:
            if self._data.intersection(node.inputs):
                self._data.update(node.outputs)

    def lift(self, sites: Sequence[Site]) -> list[Site]:
        """Return the sites with tables.

        Raises:
            CannotCut: queries or keys of some layer are not turned, or not as those of the first one are.
        """
        keys = [self._turn(site.attention.key, site.attention.num_kv_heads) for site in sites]
        queries = [self._turn(site.attention.query, site.attention.num_query_heads) for site in sites]
        rope = self._rope(keys[0])
        factors = self._factors([*keys, *queries], rope)
        lifted = []
        for number, site in enumerate(sites):
            scale = site.attention.scale * factors[number] * factors[len(keys) + number]
            attention = dataclasses.replace(
                site.attention, key=keys[number].source, query=queries[number].source, scale=scale, rope=rope
            )
            lifted.append(dataclasses.replace(site, attention=attention))
        return lifted

    def _turn(self, result: Operand, num_heads: int) -> _Turn:
        """Walk back to where all that is no position comes from one tensor."""
        ahead, has_positions = {result.name}, False
        for _ in range(_MAX_NODES):
            node = self._skeleton.producers.get(max(ahead, key=lambda name: self._places.get(name, -1)))
            if node is None or node.op not in ROPE_OPERATORS:
                break
            ahead -= set(node.outputs)
            ahead |= self._data.intersection(node.inputs)
            has_positions = has_positions or any(
                name and name not in self._data and name not in self._skeleton.weights for name in node.inputs
            )
            if not ahead:
                break
            if len(ahead) == 1 and has_positions:
                return _Turn(self._walk.operand(next(iter(ahead)), num_heads), result, num_heads)
        raise CannotCut(f"{result.name} is not turned by position")

    def _part(self, turns: Sequence[_Turn]) -> GraphPart:
        part = GraphPart(
            self._skeleton,
            self._trace,
            self._axes,
            self._sizes,
            borders={turn.source.name for turn in turns},
            results=[turn.result.name for turn in turns],
            operators=ROPE_OPERATORS,
        )
        if any(ROLES.get(name) != "positions" for name in part.inputs):
            raise CannotCut(f"queries and keys depend on {', '.join(part.inputs)}")
        return part

    def _rope(self, turn: _Turn) -> CutRope:
        """Read the tables off what becomes of ones."""
        part, head_dim = self._part([turn]), self._sizes.head_dim
        for is_interleaved in (False, True):
            one, other = rotation_pairs(head_dim, is_interleaved=is_interleaved)
            tables: list[NDArray[np.float32]] = []
            for start in range(0, self._context_length, _CHUNK_ROWS):
                length = Length(min(_CHUNK_ROWS, self._context_length - start), start)
                rows = np.zeros((length.rows, turn.num_heads, head_dim), np.float32)
                rows[..., one] = 1
                tables.append(self._run(part, [turn], length, [rows])[0][:, 0])
            table = np.concatenate(tables)
            rope = CutRope(np.ascontiguousarray(table[:, one]), np.ascontiguousarray(table[:, other]), is_interleaved)
            try:
                self._factors([turn], rope)
            except CannotCut:
                continue
            return rope
        raise CannotCut("its keys are turned in another way")

    def _factors(self, turns: Sequence[_Turn], rope: CutRope) -> list[float]:
        """Return by what each result is multiplied beside being turned."""
        part, random = self._part(turns), np.random.default_rng(0)
        factors: list[float] = []
        last = self._context_length - _PROBE_ROWS
        for start in sorted({0, last // 3, last}):
            shapes = [(_PROBE_ROWS, turn.num_heads, self._sizes.head_dim) for turn in turns]
            rows = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
            results = self._run(part, turns, Length(_PROBE_ROWS, start), rows)
            expected = [rotated(entry, rope, start) for entry in rows]
            if not factors:
                factors = [float(np.vdot(a, b) / np.vdot(b, b)) for a, b in zip(results, expected, strict=True)]
            for factor, found, turned in zip(factors, results, expected, strict=True):
                if not np.allclose(found, factor * turned, rtol=0, atol=_TOLERANCE * float(np.abs(found).max())):
                    raise CannotCut("its queries and keys are turned in another way")
        return factors

    def _run(
        self, part: GraphPart, turns: Sequence[_Turn], length: Length, rows: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """Return (rows, heads, head_dim) of each result."""
        data = {
            turn.source.name: _laid_out(values, turn.source, part.shape(turn.source.name, length))
            for turn, values in zip(turns, rows, strict=True)
        }
        results = part.run(length, data)
        return [_rows(values, turn.result, turn.num_heads) for turn, values in zip(turns, results, strict=True)]


def _laid_out(rows: NDArray[np.float32], operand: Operand, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return (rows.transpose(1, 0, 2) if operand.layout == "heads" else rows).reshape(shape)


def _rows(tensor: NDArray[np.float32], operand: Operand, num_heads: int) -> NDArray[np.float32]:
    return tensor[0].transpose(1, 0, 2) if operand.layout == "heads" else tensor.reshape(tensor.shape[1], num_heads, -1)
