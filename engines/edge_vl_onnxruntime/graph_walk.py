"""Ways through a graph, from a cache to what is computed with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_vl_onnxruntime.graph_cut import CannotCut, Operand
from edge_vl_onnxruntime.graph_rows import RowAxes
from edge_vl_onnxruntime.graph_skeleton import GraphNode, Skeleton
from edge_vl_onnxruntime.graph_trace import CacheSizes, Trace

__all__ = ["CacheUse", "GraphWalk"]

_VIEWS = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_HEADS_FIRST = [0, 2, 1, 3]


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Where keys or values end up: the node, under which name, and times what."""

    node: GraphNode
    name: str
    factor: float


class GraphWalk:
    """Finds nodes and tensors; whatever is not as expected raises `CannotCut`."""

    def __init__(self, skeleton: Skeleton, trace: Trace, axes: RowAxes, sizes: CacheSizes) -> None:
        """Take a graph and what is known of it."""
        self._skeleton, self._trace, self._axes, self._sizes = skeleton, trace, axes, sizes

    def _producer(self, name: str) -> GraphNode:
        node = self._skeleton.producers.get(name)
        if node is None:
            raise CannotCut(f"{name} is not computed")
        return node

    def source(self, name: str) -> GraphNode:
        """Return the node that really makes a tensor."""
        node = self._producer(name)
        while node.op in ("Identity", "Cast"):
            node = self._producer(node.inputs[0])
        return node

    def only_consumer(self, name: str) -> GraphNode:
        """Return the one node that uses a tensor."""
        nodes = self._skeleton.consumers.get(name, [])
        if len(nodes) != 1:
            raise CannotCut(f"{name} is used {len(nodes)} times")
        return nodes[0]

    def _scalar(self, name: str) -> float | None:
        """Return a constant that is one number."""
        tensor = self._trace.values.get(name) if name in self._skeleton.weights else None
        return float(tensor.item()) if tensor is not None and tensor.size == 1 else None

    def factor(self, node: GraphNode, name: str) -> float:
        """Return by what a `Mul` or `Div` multiplies one of its inputs."""
        places = [place for place, entry in enumerate(node.inputs) if entry != name]
        number = self._scalar(node.inputs[places[0]]) if len(places) == 1 else None
        if number is None or not np.isfinite(number) or (node.op == "Div" and (places == [0] or number == 0)):
            raise CannotCut(f"{name} is scaled by something that is not a number")
        return number if node.op == "Mul" else 1 / number

    def appended(self, past: str, present: str) -> tuple[str, str]:
        """Return the cache with its new entries and the new entries, of a layer that appends with `Concat`."""
        node = self.source(present)
        if node.op != "Concat" or len(node.inputs) != 2 or int(node.attributes["axis"]) not in (2, -2):
            raise CannotCut(f"{present} does not come from a Concat of {past} with new entries, but from {node.op}")
        old, new = node.inputs
        while old != past:
            source = self._skeleton.producers.get(old)
            if source is None or source.op not in ("Identity", "Cast"):
                raise CannotCut(f"{present} does not begin with {past}")
            old = source.inputs[0]
        return node.outputs[0], new

    def use(self, name: str, *, is_scaled: bool) -> CacheUse:
        """Follow a cache to the one product that uses it, through views and, where allowed, factors."""
        uses: list[CacheUse] = []
        ahead = [(name, 1.0)]
        while ahead:
            tensor, factor = ahead.pop()
            for node in self._skeleton.consumers.get(tensor, []):
                if node.op in ("MatMul", "Attention"):
                    uses.append(CacheUse(node, tensor, factor))
                elif node.op in _VIEWS and node.inputs[0] == tensor:
                    ahead.append((node.outputs[0], factor))
                elif node.op in ("Mul", "Div") and is_scaled:
                    ahead.append((node.outputs[0], factor * self.factor(node, tensor)))
                elif node.op != "Shape":
                    raise CannotCut(f"{tensor}, of its cache, goes into {node.op}")
        if len(uses) != 1:
            raise CannotCut(f"its cache {name} is used {len(uses)} times")
        return uses[0]

    def operand(self, name: str, num_heads: int) -> Operand:
        """Describe queries, keys or values; where heads were split from rows, take them before."""
        head_dim = self._sizes.head_dim
        split = self._skeleton.producers.get(name)
        if split is not None and split.op == "Transpose" and list(split.attributes.get("perm", ())) == _HEADS_FIRST:
            shaped = self._skeleton.producers.get(split.inputs[0])
            if shaped is not None and shaped.op == "Reshape" and self.is_rows(shaped.inputs[0], num_heads * head_dim):
                name = shaped.inputs[0]
        dtype = self._trace.dtype(name)
        if self.is_rows(name, num_heads * head_dim):
            return Operand(name, dtype, "rows")
        shape = self._trace.shape(name)
        is_heads = shape == (1, num_heads, self._trace.length.rows, head_dim) and self._axes.axis(name) == 2
        if not is_heads:
            raise CannotCut(f"{name} has the shape {shape}, not {num_heads} heads of {head_dim} channels")
        return Operand(name, dtype, "heads")

    def is_rows(self, name: str, width: int) -> bool:
        """Whether a tensor is (1, rows, width)."""
        shape = self._trace.shapes.get(name)
        return shape == (1, self._trace.length.rows, width) and self._axes.axis(name) == 1

    def merged(self, name: str, num_heads: int) -> str:
        """Return the name of the result once the heads lie side by side."""
        width = num_heads * self._sizes.head_dim
        steps: list[str] = []
        while not (self.is_rows(name, width) and len(steps) in (0, 2)):
            node = self.only_consumer(name)
            if node.op not in ("Cast", "Transpose", "Reshape"):
                raise CannotCut(f"its result {name} goes into {node.op} before its heads are merged")
            if node.op != "Cast":
                steps.append(node.op)
            if node.op == "Transpose" and list(node.attributes.get("perm", ())) != _HEADS_FIRST:
                raise CannotCut(f"its result {name} is transposed in another way")
            name = node.outputs[0]
        if steps not in ([], ["Transpose", "Reshape"]):
            raise CannotCut(f"its result is merged by {steps}")
        return name

    def num_heads(self, query: str) -> int:
        """Return how many heads queries have that are (1, heads, rows, channels)."""
        shape = self._trace.shape(query)
        if len(shape) != 4:
            raise CannotCut(f"its queries {query} have {len(shape)} dimensions, not 4")
        return shape[1]
