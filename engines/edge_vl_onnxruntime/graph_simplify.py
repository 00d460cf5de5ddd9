"""A graph without the arithmetic on shapes that an exporter writes around its reshapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

from edge_vl_onnxruntime.graph_cut import CannotCut
from edge_vl_onnxruntime.graph_rows import RowAxes
from edge_vl_onnxruntime.graph_skeleton import GraphNode, Skeleton
from edge_vl_onnxruntime.graph_trace import Trace

__all__ = ["simplify"]


def simplify(skeleton: Skeleton, traces: Sequence[Trace], axes: RowAxes) -> None:
    """Fold what is the same for all lengths, fix the targets of reshapes, and leave out what does nothing.

    Batch size is 1 and rows are the only open size of most tensors, so a reshape's target is a constant with one -1.
    What was computed before is not computed again: exporters unfold for each layer what depends on positions only, and
    all of that would go from the first piece to the others.
    """
    aliases: dict[str, str] = {}
    known: dict[tuple[object, ...], str] = {}
    kept: list[GraphNode] = []
    for original in skeleton.nodes:
        node = original
        if any(name in aliases for name in node.inputs):
            node = node.with_names([aliases.get(name, name) for name in node.inputs])
        if node.op == "Gather" and (table := _whole_table(node, skeleton, traces)):
            node = node.with_names([table, node.inputs[1]])
        name = node.outputs[0]
        is_inner = len(node.outputs) == 1 and name not in skeleton.outputs
        if is_inner and (value := _constant(node, traces)) is not None:
            skeleton.weights[name] = numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
            continue
        if is_inner and (source := _unchanged(node, traces)):
            aliases[name] = source
            continue
        if node.op == "Reshape" and (target := _target(node, axes)) is not None:
            shape_name = f"{name}/shape"
            skeleton.weights[shape_name] = numpy_helper.from_array(np.array(target, np.int64), shape_name)
            for trace in traces:
                trace.values[shape_name] = np.array(target, np.int64)
                trace.shapes[shape_name] = (len(target),)
            node = node.with_names([node.inputs[0], shape_name])
        if is_inner and (first := known.setdefault(_identity(node, skeleton, traces[0]), name)) != name:
            aliases[name] = first
            continue
        kept.append(node)
    skeleton.set_nodes(_live(kept, skeleton.outputs))


def _constant(node: GraphNode, traces: Sequence[Trace]) -> NDArray[np.generic] | None:
    """Return an output's value if it is the same for all lengths.

    More than one float are left to the backend, whose rounding may differ.
    """
    values = [trace.values.get(node.outputs[0]) for trace in traces]
    first = values[0]
    if first is None or (node.op != "Constant" and first.size > 1 and first.dtype.kind == "f"):
        return None
    same = all(value is not None and value.shape == first.shape and np.array_equal(value, first) for value in values)
    return first if same else None


def _unchanged(node: GraphNode, traces: Sequence[Trace]) -> str:
    """Return the input that a node returns as it is; empty if it does something."""
    name, sources = node.outputs[0], [node.inputs[0]]
    if node.op == "Concat":
        sources = [name for name in node.inputs if any(0 not in trace.shapes.get(name, ()) for trace in traces)]
    elif node.op == "Slice":
        steps = node.input(4)
        if steps and any((step := trace.values.get(steps)) is None or step.min() < 1 for trace in traces):
            return ""
    elif node.op not in ("Identity", "Cast", "Expand", "Reshape"):
        return ""
    if len(sources) != 1:
        return ""
    for trace in traces:
        shape = trace.shapes.get(name)
        if shape is None or None in shape or trace.shapes.get(sources[0]) != shape:
            return ""
        if trace.dtypes.get(name) != trace.dtypes.get(sources[0]):
            return ""
    return sources[0]


def _whole_table(node: GraphNode, skeleton: Skeleton, traces: Sequence[Trace]) -> str:
    """Return the table that a node looks positions up in, if it is shortened to the length of the cache before.

    No position is beyond that length, so the whole table gives the same. Empty: it is something else.
    """
    part = skeleton.producers.get(node.inputs[0])
    if part is None or part.op != "Slice" or int(node.attributes.get("axis", 0)) != 0:
        return ""
    if part.inputs[0] not in skeleton.weights or any(
        len(trace.shapes.get(part.inputs[2], ())) != 1 for trace in traces
    ):
        return ""
    for place, expected in ((1, 0), (3, 0), (4, 1)):  # starts, axes, steps
        name = part.input(place)
        values = [trace.values.get(name) for trace in traces] if name else []
        if any(value is None or value.tolist() != [expected] for value in values) or (place == 3 and not name):
            return ""
    return part.inputs[0]


def _target(node: GraphNode, axes: RowAxes) -> tuple[int, ...] | None:
    """Return a constant target for a reshape that keeps rows apart."""
    source, name = node.inputs[0], node.outputs[0]
    try:
        row, out_row = axes.axis(source), axes.axis(name)
        shape, out_shape = axes.shape(source), axes.shape(name)
    except CannotCut:
        return None
    if (row is None) != (out_row is None):
        return None
    if row is not None and math.prod(shape[:row]) != math.prod(out_shape[:out_row]):
        return None
    return tuple(-1 if place == out_row else size for place, size in enumerate(out_shape))


def _identity(node: GraphNode, skeleton: Skeleton, trace: Trace) -> tuple[object, ...]:
    """Return what tells whether two nodes compute the same; small constants count by value."""
    parts: list[object] = [node.op, *(entry.SerializeToString() for entry in node.proto.attribute)]
    for name in node.inputs:
        value = trace.values.get(name) if name in skeleton.weights else None
        parts.append(name if value is None else (value.dtype.str, value.shape, value.tobytes()))
    return tuple(parts)


def _live(nodes: Sequence[GraphNode], outputs: Sequence[str]) -> list[GraphNode]:
    """Leave out nodes that no output needs."""
    needed, live = set(outputs), list[GraphNode]()
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            live.append(node)
    return live[::-1]
