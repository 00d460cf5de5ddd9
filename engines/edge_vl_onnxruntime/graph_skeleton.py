"""A graph without its weights: nodes, names, and where each weight lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_vl.errors import ModelError
from edge_vl_onnxruntime.graph_cut import CannotCut
from edge_vl_onnxruntime.onnx_file import graph_with_references

__all__ = ["GraphNode", "Skeleton", "constant_node", "read_skeleton", "weight_nbytes"]

_MAX_INLINE_BYTES = 64 * 1024 * 1024
_STANDARD = ("", "ai.onnx")
_MIN_OPSET = 13  # before it Softmax flattened its input
_BRANCH = "use_cache_branch"
_CONSTANTS = {"value", "value_int", "value_ints", "value_float", "value_floats"}


@dataclass(frozen=True, slots=True, eq=False)
class GraphNode:
    """One node.

    Attributes:
        op: the operator, `domain::name` outside the standard domain.
        inputs: names; empty where an optional one is left out.
        outputs: likewise.
        proto: the message.
        attributes: by name.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: Any
    attributes: Mapping[str, Any]

    @classmethod
    def read(cls, proto: Any) -> GraphNode:
        """Read a message."""
        op = proto.op_type if proto.domain in _STANDARD else f"{proto.domain}::{proto.op_type}"
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in proto.attribute}
        return cls(op, tuple(proto.input), tuple(proto.output), proto, attributes)

    def with_names(self, inputs: Sequence[str], outputs: Sequence[str] | None = None) -> GraphNode:
        """Return the same operation on other tensors."""
        proto = onnx.NodeProto()
        proto.CopyFrom(self.proto)
        outputs = self.outputs if outputs is None else outputs
        del proto.input[:], proto.output[:]
        proto.input.extend(inputs)
        proto.output.extend(outputs)
        return GraphNode(self.op, tuple(inputs), tuple(outputs), proto, self.attributes)

    def input(self, place: int) -> str:
        """Return an input's name; empty if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else ""

    def check_attributes(self, allowed: Mapping[str, Iterable[Any] | None]) -> None:
        """Refuse attributes that are not listed, or have a value that is not; None allows every value.

        Raises:
            CannotCut: there is one.
        """
        for name, value in self.attributes.items():
            if name not in allowed:
                raise CannotCut(f"{self.op} has an attribute {name} that is not known")
            values = allowed[name]
            if values is not None and value not in values:
                raise CannotCut(f"{self.op} has {name} = {value}, which our attention does not do")


@dataclass(eq=False)
class Skeleton:
    """A graph, in topological order.

    Attributes:
        folder: where the files with the weights are.
        opsets: versions of the operators, by domain.
        ir_version: of the format.
        inputs: descriptions by name.
        outputs: names.
        nodes: in an order in which they can run.
        weights: constants by name; large ones are references.
    """

    folder: Path
    opsets: Mapping[str, int]
    ir_version: int
    inputs: Mapping[str, Any]
    outputs: tuple[str, ...]
    nodes: list[GraphNode]
    weights: dict[str, Any]
    producers: dict[str, GraphNode] = field(init=False)
    consumers: dict[str, list[GraphNode]] = field(init=False)

    def __post_init__(self) -> None:
        """Index the nodes."""
        self.set_nodes(self.nodes)

    def set_nodes(self, nodes: Iterable[GraphNode]) -> None:
        """Replace the nodes."""
        self.nodes = list(nodes)
        self.producers = {name: node for node in self.nodes for name in node.outputs if name}
        self.consumers = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    self.consumers.setdefault(name, []).append(node)

    def read_weight(self, name: str) -> NDArray[Any]:
        """Read the values of a weight into memory.

        Raises:
            CannotCut: they cannot be read.
        """
        tensor = self.weights[name]
        try:
            if tensor.data_location != TensorProto.EXTERNAL:
                return np.asarray(numpy_helper.to_array(tensor))
            place = _place(tensor)
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
            count = int(np.prod(tensor.dims, dtype=np.int64))
            path = self.folder / place["location"]
            values = np.fromfile(path, dtype, count, offset=int(place.get("offset", 0)))
            return values.reshape(tuple(tensor.dims))
        except Exception as error:  # onnx raises many kinds
            raise CannotCut(f"its weight {name} cannot be read: {error}") from error

    def message(self, nodes: Iterable[GraphNode], inputs: Iterable[Any], outputs: Iterable[Any]) -> bytes:
        """Return a model of some of the nodes, with the weights that they use."""
        nodes = list(nodes)
        inputs = list(inputs)
        taken = {entry.name for entry in inputs}
        used = dict.fromkeys(
            name for node in nodes for name in node.inputs if name in self.weights and name not in taken
        )
        graph = helper.make_graph(
            [node.proto for node in nodes], "piece", inputs, list(outputs), [self.weights[name] for name in used]
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        model = onnx.ModelProto(ir_version=self.ir_version, producer_name="edge_vl", graph=graph, opset_import=opsets)
        content: bytes = model.SerializeToString()
        return content


def read_skeleton(path: Path) -> Skeleton:
    """Read a graph; weights of 64 KiB and more stay in their files. The way with a cache of a merged graph is taken.

    Raises:
        CannotCut: it cannot be read, or has graphs inside it that are not understood.
    """
    target = path.resolve()
    try:
        model = onnx.ModelProto.FromString(graph_with_references(target))
    except ModelError as error:
        raise CannotCut(str(error)) from error
    except Exception as error:  # what the parser raises depends on its implementation
        raise CannotCut(f"{path} cannot be parsed: {error}") from error
    if model.functions:
        model = _without_functions(model)
    graph = model.graph
    if graph.sparse_initializer:
        raise CannotCut("it has sparse weights")
    opset = max((entry.version for entry in model.opset_import if entry.domain in _STANDARD), default=0)
    if opset < _MIN_OPSET:
        raise CannotCut(f"its operators are those of opset {opset}; known are those from {_MIN_OPSET} on")
    nodes = list(graph.node)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    if any(_has_graph(proto) for proto in nodes):
        nodes = _take_cache_branch(nodes, weights)
    for tensor in weights.values():
        _move(tensor, path.parent, target)
    if (inline := sum(weight_nbytes(tensor) for tensor in weights.values() if not _is_external(tensor))) + sum(
        proto.ByteSize() for proto in nodes
    ) > _MAX_INLINE_BYTES:
        raise CannotCut(f"{inline >> 20} MiB of its weights are stored in a way that cannot be referred to")
    skeleton = Skeleton(
        folder=target.parent,
        opsets={("" if entry.domain in _STANDARD else entry.domain): entry.version for entry in model.opset_import},
        ir_version=model.ir_version,
        inputs={entry.name: entry for entry in graph.input if entry.name not in weights and entry.name != _BRANCH},
        outputs=tuple(entry.name for entry in graph.output),
        nodes=[GraphNode.read(proto) for proto in nodes],
        weights=weights,
    )
    for node in skeleton.nodes:
        if node.op == "Constant" and not set(node.attributes) <= _CONSTANTS:
            raise CannotCut(f"a constant has the attributes {', '.join(node.attributes)}")
    return skeleton


def constant_node(node: GraphNode) -> NDArray[Any]:
    """Return the value of a `Constant`."""
    (name, value), *_ = node.attributes.items()
    if name == "value":
        return np.asarray(numpy_helper.to_array(value))
    return np.array(value, np.float32 if name.startswith("value_float") else np.int64)


def weight_nbytes(tensor: Any) -> int:
    """Return how many bytes a weight takes."""
    if _is_external(tensor):
        return int(_place(tensor).get("length", 0))
    size: int = tensor.ByteSize()
    return size


def _is_external(tensor: Any) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _place(tensor: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _move(tensor: Any, beside: Path, target: Path) -> None:
    """Let a weight's reference begin at the folder of the graph's file, whatever links lead to it."""
    if not _is_external(tensor):
        return
    for entry in tensor.external_data:
        if entry.key == "location" and entry.value != target.name:
            place = (beside / entry.value).resolve()
            if not place.is_relative_to(target.parent):
                raise CannotCut(f"its weights lie in {place}, outside {target.parent}")
            entry.value = place.relative_to(target.parent).as_posix()


def _without_functions(model: Any) -> Any:
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise CannotCut(f"its functions cannot be inlined: {error}") from error


def _has_graph(proto: Any) -> bool:
    return any(entry.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for entry in proto.attribute)


def _take_cache_branch(nodes: list[Any], weights: dict[str, Any]) -> list[Any]:
    """Replace the branching on `use_cache_branch` by what it does with a cache."""
    inlined: list[Any] = []
    for proto in nodes:
        if not _has_graph(proto):
            inlined.append(proto)
            continue
        if proto.op_type != "If" or list(proto.input) != [_BRANCH]:
            raise CannotCut(f"its operator {proto.op_type} has a graph inside it")
        branch = next(entry.g for entry in proto.attribute if entry.name == "then_branch")
        names = dict(zip((entry.name for entry in branch.output), proto.output, strict=True))
        for tensor in branch.initializer:
            weights[tensor.name] = tensor
        for inner in branch.node:
            if _has_graph(inner):
                raise CannotCut(f"its operator {inner.op_type} has a graph inside it")
            for sequence in (inner.input, inner.output):
                for place, name in enumerate(sequence):
                    sequence[place] = names.get(name, name)
            inlined.append(inner)
    return inlined
