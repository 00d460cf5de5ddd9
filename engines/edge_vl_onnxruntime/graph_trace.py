"""Shapes, types and small values of all tensors of a graph, for one length of run and cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

from edge_vl_onnxruntime.decoder_graph import PAST, ROLES
from edge_vl_onnxruntime.graph_cut import CannotCut
from edge_vl_onnxruntime.graph_fold import MAX_VALUES, Shape, fold
from edge_vl_onnxruntime.graph_skeleton import GraphNode, Skeleton, constant_node

__all__ = ["CacheSizes", "Length", "Trace", "cache_sizes", "describe_input", "trace_graph"]


@dataclass(frozen=True, slots=True)
class Length:
    """How much a run does: `rows` behind `past` cache entries."""

    rows: int
    past: int


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Sizes of the graph's cache and embeddings."""

    num_kv_heads: int
    head_dim: int
    hidden_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What is known about tensors.

    Attributes:
        length: of the run.
        shapes: None for a dimension that cannot be told; a tensor whose rank cannot be told is left out.
        dtypes: element types of ONNX.
        values: of small tensors that do not depend on data.
    """

    length: Length
    shapes: dict[str, Shape]
    dtypes: dict[str, int]
    values: dict[str, NDArray[Any]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a shape that is wholly known.

        Raises:
            CannotCut: it is not.
        """
        shape = self.shapes.get(name)
        known = tuple(size for size in shape or () if size is not None)
        if shape is None or len(known) != len(shape):
            raise CannotCut(f"the shape of {name} cannot be told")
        return known

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return a float type.

        Raises:
            CannotCut: it is neither float32 nor float16, or cannot be told.
        """
        types: Mapping[int | None, Any] = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
        kind = types.get(self.dtypes.get(name))
        if kind is None:
            raise CannotCut(f"{name} is neither float32 nor float16")
        dtype: np.dtype[Any] = np.dtype(kind)
        return dtype


def cache_sizes(skeleton: Skeleton, text_config: Mapping[str, Any]) -> CacheSizes:
    """Read the sizes of the cache, where the graph leaves them open from the configuration.

    Raises:
        CannotCut: neither says it.
    """
    heads = text_config.get("num_attention_heads")
    hidden = text_config.get("hidden_size")
    kv_heads = text_config.get("num_key_value_heads", heads)
    head_dim = text_config.get("head_dim")
    for name, entry in skeleton.inputs.items():
        shape = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        if PAST.fullmatch(name) and len(shape) == 4:
            kv_heads, head_dim = shape[1] or kv_heads, shape[3] or head_dim
        elif ROLES.get(name) == "embeds" and len(shape) == 3:
            hidden = shape[2] or hidden
    if not head_dim and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    for value, what in ((kv_heads, "key/value heads"), (head_dim, "channels of a head"), (hidden, "hidden size")):
        if not isinstance(value, int) or value < 1:
            raise CannotCut(f"neither the graph nor config.json says its number of {what}")
    return CacheSizes(int(kv_heads or 0), int(head_dim or 0), int(hidden or 0))


def trace_graph(skeleton: Skeleton, sizes: CacheSizes, length: Length) -> Trace:
    """Work out shapes and small values, node after node.

    Raises:
        CannotCut: an input is not known.
    """
    trace = Trace(length, {}, {}, {})
    for name, entry in skeleton.inputs.items():
        trace.dtypes[name] = entry.type.tensor_type.elem_type
        shape, value = describe_input(name, len(entry.type.tensor_type.shape.dim), sizes, length)
        trace.shapes[name] = shape
        if value is not None:
            trace.values[name] = np.full(shape, value, helper.tensor_dtype_to_np_dtype(trace.dtypes[name]))
    for name, tensor in skeleton.weights.items():
        trace.shapes[name], trace.dtypes[name] = tuple(tensor.dims), tensor.data_type
        if int(np.prod(tensor.dims)) <= MAX_VALUES and tensor.data_type in _READABLE:
            trace.values[name] = skeleton.read_weight(name)
    rules = _Rules(skeleton, sizes, length)
    for node in skeleton.nodes:
        rules.apply(node, trace)
    return trace


_READABLE = (
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL),
    *(TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8),
)


def describe_input(name: str, rank: int, sizes: CacheSizes, length: Length) -> tuple[tuple[int, ...], int | None]:
    """Return an input's shape and, where all of it is one number, that number; masks hide nothing.

    Raises:
        CannotCut: it is not known.
    """
    total = length.rows + length.past
    if PAST.fullmatch(name):
        return (1, sizes.num_kv_heads, length.past, sizes.head_dim), None
    role = ROLES.get(name, "")
    shapes: dict[tuple[str, int], tuple[int, ...]] = {
        ("embeds", 3): (1, length.rows, sizes.hidden_size),
        ("mask", 2): (1, total),
        ("positions", 2): (1, length.rows),
        ("positions", 1): (length.rows,),
    }
    numbers = {"count": length.rows, "total": total, "past": length.past, "seqlens": total - 1}
    if (role, rank) in shapes:
        return shapes[role, rank], 1 if role == "mask" else None
    if role in numbers and rank <= 2:
        return (1,) * rank, numbers[role]
    raise CannotCut(f"its input {name} of rank {rank} is not known")


class _Rules:
    """What each operator does to shapes and small values."""

    def __init__(self, skeleton: Skeleton, sizes: CacheSizes, length: Length) -> None:
        self._sizes, self._length = sizes, length
        self._opset = skeleton.opsets.get("", 1)
        self._opsets = [helper.make_opsetid(domain, version) for domain, version in skeleton.opsets.items()]
        self._memo: dict[tuple[Any, ...], list[tuple[int, Shape | None]]] = {}

    def apply(self, node: GraphNode, trace: Trace) -> None:
        """Add what is known about a node's outputs; what is not stays out."""
        if node.op == "Constant":
            self._set(node.outputs[0], constant_node(node), trace)
            return
        value = fold(node, trace.shapes, trace.values)
        if value is not None:
            self._set(node.outputs[0], value, trace)
            return
        if (rule := _CONTRIB.get(node.proto.op_type)) is not None and not self._is_standard(node):
            found = rule(node, trace, self._sizes, self._length)
        else:
            found = self._infer(node, trace)
        for name, (dtype, shape) in zip(node.outputs, found, strict=False):
            if name and dtype:
                trace.dtypes[name] = dtype
            if name and shape is not None:
                trace.shapes[name] = shape

    def _is_standard(self, node: GraphNode) -> bool:
        return "::" not in node.op and onnx.defs.has(node.op) and _schema(node.op, self._opset) is not None

    @staticmethod
    def _set(name: str, value: NDArray[Any], trace: Trace) -> None:
        trace.shapes[name] = value.shape
        trace.dtypes[name] = helper.np_dtype_to_tensor_dtype(value.dtype)
        if value.size <= MAX_VALUES:
            trace.values[name] = value

    def _infer(self, node: GraphNode, trace: Trace) -> list[tuple[int, Shape | None]]:
        """Ask ONNX's own rules; layers are alike, so most answers are remembered."""
        schema = None if "::" in node.op else _schema(node.op, self._opset)
        if schema is None or any(name and name not in trace.dtypes for name in node.inputs):
            return []
        known = [name for name in node.inputs if name]
        attributes = b"".join(entry.SerializeToString() for entry in node.proto.attribute)
        data = {name: trace.values[name] for name in known if name in trace.values}
        key = (node.op, attributes, len(node.outputs), *_facts(node, trace))
        if key not in self._memo:
            types = {name: helper.make_tensor_type_proto(trace.dtypes[name], trace.shapes.get(name)) for name in known}
            tensors = {name: numpy_helper.from_array(np.asarray(value), name) for name, value in data.items()}
            try:
                found = shape_inference.infer_node_outputs(
                    schema, node.proto, types, tensors, opset_imports=self._opsets
                )
            except Exception:  # whatever it cannot infer is not known; the graph itself may be fine
                found = {}
            self._memo[key] = [_type_of(found.get(name)) for name in node.outputs]
        return self._memo[key]


def _facts(node: GraphNode, trace: Trace) -> list[Any]:
    facts: list[Any] = []
    for name in node.inputs:
        value = trace.values.get(name)
        facts.append((trace.dtypes.get(name), trace.shapes.get(name), None if value is None else value.tobytes()))
    return facts


def _type_of(proto: Any) -> tuple[int, Shape | None]:
    if proto is None:
        return 0, None
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)


@functools.cache
def _schema(op: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op, opset, "")
    except Exception:  # not an operator of this version
        return None


Rule = Callable[[GraphNode, Trace, CacheSizes, Length], list[tuple[int, Shape | None]]]


def _like_first(node: GraphNode, trace: Trace, sizes: CacheSizes, length: Length) -> list[tuple[int, Shape | None]]:
    """First output, and the sum that is the fourth one of a norm with a skip, are like the first input."""
    name = node.inputs[0]
    own = (trace.dtypes.get(name, 0), trace.shapes.get(name))
    return [own, (0, None), (0, None), own]


def _wide(node: GraphNode, trace: Trace, sizes: CacheSizes, length: Length) -> list[tuple[int, Shape | None]]:
    name = node.inputs[0]
    shape = trace.shapes.get(name)
    return [(trace.dtypes.get(name, 0), None if shape is None else (*shape[:-1], int(node.attributes["N"])))]


def _grouped_query(node: GraphNode, trace: Trace, sizes: CacheSizes, length: Length) -> list[tuple[int, Shape | None]]:
    width = int(node.attributes["num_heads"]) * sizes.head_dim
    cache = (1, sizes.num_kv_heads, length.rows + length.past, sizes.head_dim)
    dtype = trace.dtypes.get(node.inputs[0], 0)
    return [(dtype, (1, length.rows, width)), (dtype, cache), (dtype, cache)]


_CONTRIB: Mapping[str, Rule] = {
    "SimplifiedLayerNormalization": _like_first,
    "SkipSimplifiedLayerNormalization": _like_first,
    "SkipLayerNormalization": _like_first,
    "RotaryEmbedding": _like_first,
    "Gelu": _like_first,
    "FastGelu": _like_first,
    "QuickGelu": _like_first,
    "MatMulNBits": _wide,
    "GroupQueryAttention": _grouped_query,
}
