"""Positions as an input, for a graph that counts them by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edge_vl_onnxruntime.decoder_graph import ROLES
from edge_vl_onnxruntime.graph_fold import MAX_VALUES
from edge_vl_onnxruntime.graph_skeleton import GraphNode, Skeleton
from edge_vl_onnxruntime.graph_trace import Trace

__all__ = ["supply_positions"]

_NAME = "position_ids"


def supply_positions(skeleton: Skeleton, traces: Sequence[Trace]) -> None:
    """Replace what counts from the end of the cache, row by row, by the input `position_ids`, (1, rows).

    Exporters derive it from the lengths of cache and run or from the sum of the attention mask. Rows of several
    sequences in one run need positions of their own. A graph that takes positions stays as it is.
    """
    if any(ROLES.get(name) == "positions" for name in skeleton.inputs):
        return
    kept: list[GraphNode] = []
    for node in skeleton.nodes:
        name = node.outputs[0]
        if len(node.outputs) == 1 and name not in skeleton.outputs and _counts(name, traces):
            kept += _as_input(name, skeleton, traces)
        else:
            kept.append(node)
    if len(kept) != len(skeleton.nodes) or any(_NAME in node.inputs for node in kept):
        skeleton.inputs = {
            **skeleton.inputs,
            _NAME: helper.make_tensor_value_info(_NAME, TensorProto.INT64, [1, None]),
        }
        for trace in traces:
            trace.shapes[_NAME], trace.dtypes[_NAME] = (1, trace.length.rows), TensorProto.INT64
        skeleton.set_nodes(kept)


def _counts(name: str, traces: Sequence[Trace]) -> bool:
    """Whether a tensor holds each row's position, whatever the length."""
    for trace in traces:
        value = trace.values.get(name)
        if trace.length.rows + trace.length.past > MAX_VALUES:
            continue  # values of sums over so long a mask are not kept
        if value is None or value.dtype.kind not in "if" or value.size != trace.length.rows:
            return False
        if not np.array_equal(value.ravel(), trace.length.past + np.arange(trace.length.rows)):
            return False
    return True


def _as_input(name: str, skeleton: Skeleton, traces: Sequence[Trace]) -> list[GraphNode]:
    """Return nodes that make the tensor from the input."""
    shapes = [trace.shapes[name] for trace in traces]
    target = [-1 if len(set(sizes)) > 1 else int(sizes[0] or 1) for sizes in zip(*shapes, strict=True)]
    shape, cast = f"{name}/shape", f"{name}/cast"
    skeleton.weights[shape] = numpy_helper.from_array(np.array(target, np.int64), shape)
    dtype = traces[0].dtypes[name]
    for trace in traces:
        trace.values.pop(name, None)
        trace.shapes[cast], trace.dtypes[cast] = (1, trace.length.rows), dtype
        trace.shapes[shape], trace.dtypes[shape] = (len(target),), TensorProto.INT64
        trace.values[shape] = np.array(target, np.int64)
    protos = [
        helper.make_node("Cast", [_NAME], [cast], name=cast, to=dtype),
        helper.make_node("Reshape", [cast, shape], [name], name=name),
    ]
    return [GraphNode.read(proto) for proto in protos]
