"""Where a graph attends: the operators of each layer's attention, recognised from its cache outwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl_onnxruntime.decoder_graph import PAST, PRESENT
from edge_vl_onnxruntime.graph_cut import CannotCut, CutAttention, CutRope, Operand
from edge_vl_onnxruntime.graph_rows import RowAxes
from edge_vl_onnxruntime.graph_skeleton import GraphNode, Skeleton
from edge_vl_onnxruntime.graph_trace import CacheSizes, Trace
from edge_vl_onnxruntime.graph_walk import GraphWalk

__all__ = ["Site", "find_sites"]

_GROUPED_QUERY = "com.microsoft::GroupQueryAttention"
_GROUPED_QUERY_ATTRIBUTES: Mapping[str, Any] = {
    "num_heads": None,
    "kv_num_heads": None,
    "scale": None,
    "do_rotary": (0, 1),
    "rotary_interleaved": (0, 1),
    "local_window_size": (-1,),
    "smooth_softmax": (-1, 0),
    "softcap": (0.0,),
    "qk_output": (0,),
    "kv_cache_bit_width": (0,),
    "k_quant_type": (b"NONE",),
    "v_quant_type": (b"NONE",),
}
_ATTENTION_ATTRIBUTES: Mapping[str, Any] = {
    "q_num_heads": None,
    "kv_num_heads": None,
    "scale": None,
    "is_causal": (0, 1),
    "softcap": (0.0,),
    "softmax_precision": None,
    "qk_matmul_output_mode": None,  # of an output that is refused
}


@dataclass(frozen=True, slots=True)
class Site:
    """The attention of one layer.

    Attributes:
        attention: what to compute instead of it.
        mask: tensor that is added to the scores, or says which are seen; empty: there is none.
    """

    attention: CutAttention
    mask: str


def find_sites(skeleton: Skeleton, trace: Trace, axes: RowAxes, sizes: CacheSizes) -> list[Site]:
    """Find the attention of every layer.

    Raises:
        CannotCut: there is something in it that our attention does not do, or that is not known.
    """
    pasts = _by_layer(skeleton.inputs, PAST)
    presents = _by_layer(skeleton.outputs, PRESENT)
    others = set(skeleton.outputs) - set(presents.values()) - {"logits"}
    num_layers = len(pasts) // 2
    wanted = {(layer, kind) for layer in range(num_layers) for kind in ("key", "value")}
    if others:
        raise CannotCut(f"it has further outputs: {', '.join(sorted(others)[:3])}")
    if not wanted or set(pasts) != wanted or set(presents) != wanted or "logits" not in skeleton.outputs:
        raise CannotCut("its cache inputs and outputs do not pair, or it has no logits")
    finder = _Finder(skeleton, trace, axes, sizes)
    return [
        finder.site(layer, *((pasts[layer, kind], presents[layer, kind]) for kind in ("key", "value")))
        for layer in range(num_layers)
    ]


def _by_layer(names: Any, pattern: Any) -> dict[tuple[int, str], str]:
    matches = ((pattern.fullmatch(name), name) for name in names)
    return {(int(match[1]), match[2]): name for match, name in matches if match}


class _Finder:
    """Finds the attention of one graph's layers."""

    def __init__(self, skeleton: Skeleton, trace: Trace, axes: RowAxes, sizes: CacheSizes) -> None:
        self._skeleton, self._trace, self._sizes = skeleton, trace, sizes
        self._walk = GraphWalk(skeleton, trace, axes, sizes)
        self._tables: dict[str, NDArray[np.float32]] = {}  # layers share them

    def site(self, layer: int, key: tuple[str, str], value: tuple[str, str]) -> Site:
        """Find one layer's, from its names of past and present."""
        try:
            node = self._walk.source(key[1])
            if node.op == _GROUPED_QUERY:
                return self._grouped_query(layer, node, key, value)
            if node.op == "Attention":
                return self._operator(layer, node, key, value)
            return self._concatenated(layer, key, value)
        except CannotCut as error:
            raise CannotCut(f"layer {layer}: {error}") from error

    def _attention(
        self,
        layer: int,
        operands: tuple[Operand, Operand, Operand],
        num_heads: int,
        context: str,
        scale: float,
        rope: CutRope | None = None,
    ) -> CutAttention:
        return CutAttention(
            layer=layer,
            query=operands[0],
            key=operands[1],
            value=operands[2],
            context=context,
            context_dtype=self._trace.dtype(context),
            num_query_heads=num_heads,
            num_kv_heads=self._sizes.num_kv_heads,
            head_dim=self._sizes.head_dim,
            scale=scale,
            rope=rope,
        )

    def _concatenated(self, layer: int, key: tuple[str, str], value: tuple[str, str]) -> Site:
        """Find attention of a layer that appends to its cache with `Concat`."""
        all_keys, new_keys = self._walk.appended(*key)
        all_values, new_values = self._walk.appended(*value)
        keys = self._walk.use(all_keys, is_scaled=True)
        values = self._walk.use(all_values, is_scaled=False)
        kv_heads = self._sizes.num_kv_heads
        if keys.node.op == "Attention":
            node = keys.node
            if values.node is not node or node.input(1) != keys.name or node.input(2) != values.name:
                raise CannotCut("keys and values go into different operators")
            return self._finish(layer, node, (new_keys, new_values), keys.factor)
        if keys.node.input(1) != keys.name or keys.node.input(0) == keys.name:
            raise CannotCut("keys are not the right side of their product")
        query = keys.node.input(0)
        shares, scale, mask = self._shares(keys.node.outputs[0], keys.factor)
        node = self._walk.only_consumer(shares)
        if node.op != "MatMul" or node.input(0) != shares or node is not values.node or node.input(1) != values.name:
            raise CannotCut(f"{shares}, the shares of the entries, do not weigh the values")
        num_heads = self._walk.num_heads(query)
        operands = (
            self._walk.operand(query, num_heads),
            self._walk.operand(new_keys, kv_heads),
            self._walk.operand(new_values, kv_heads),
        )
        context = self._walk.merged(node.outputs[0], num_heads)
        return Site(self._attention(layer, operands, num_heads, context, scale), mask)

    def _shares(self, scores: str, scale: float) -> tuple[str, float, str]:
        """Follow scores through the softmax; return the shares, the whole scale and the mask."""
        mask = ""
        while (node := self._walk.only_consumer(scores)).op != "Softmax":
            if node.op in ("Mul", "Div"):
                scale *= self._walk.factor(node, scores)
            elif node.op == "Add" and not mask and node.inputs[0] != node.inputs[1]:
                mask = node.inputs[1] if node.inputs[0] == scores else node.inputs[0]
            elif node.op != "Cast":
                raise CannotCut(f"its scores go through {node.op}" + (" after the mask" if mask else ""))
            scores = node.outputs[0]
        rank = len(self._trace.shape(scores))
        if int(node.attributes.get("axis", -1)) not in (-1, rank - 1):
            raise CannotCut("its softmax is not over the entries")
        shares = node.outputs[0]
        while True:
            users = self._skeleton.consumers.get(shares, [])
            if sorted(user.op for user in users) == ["IsNaN", "Where"]:
                test, choice = sorted(users, key=lambda user: user.op)
                if choice.inputs[0] != test.outputs[0] or choice.inputs[2] != shares or choice.inputs[1] == shares:
                    raise CannotCut("its shares are replaced by something")
                shares = choice.outputs[0]
            elif len(users) == 1 and users[0].op == "Cast":
                shares = users[0].outputs[0]
            else:
                return shares, scale, mask

    def _operator(self, layer: int, node: GraphNode, key: tuple[str, str], value: tuple[str, str]) -> Site:
        """Find attention of a layer whose `Attention` operator appends to the cache itself."""
        pairs = ((4, 1, *key), (5, 2, *value))
        for place, result, past, present in pairs:
            if node.input(place) != past or len(node.outputs) <= result or self._walk.source(present) is not node:
                raise CannotCut(f"its Attention does not take {past} and give {present}")
            if self._skeleton.consumers.get(node.outputs[result], []) and node.outputs[result] != present:
                raise CannotCut(f"its cache {node.outputs[result]} is used again")
        return self._finish(layer, node, (node.input(1), node.input(2)), 1.0)

    def _finish(self, layer: int, node: GraphNode, new: tuple[str, str], factor: float) -> Site:
        """Describe an `Attention` operator."""
        node.check_attributes(_ATTENTION_ATTRIBUTES)
        if len(node.inputs) > 6 or any(node.outputs[3:]):
            raise CannotCut("its Attention has inputs or outputs that are not known")
        query = node.input(0)
        num_heads = int(node.attributes.get("q_num_heads", 0)) or self._walk.num_heads(query)
        scale = float(node.attributes.get("scale", 0.0)) or self._sizes.head_dim**-0.5
        kv_heads = self._sizes.num_kv_heads
        operands = (
            self._walk.operand(query, num_heads),
            self._walk.operand(new[0], kv_heads),
            self._walk.operand(new[1], kv_heads),
        )
        context = self._walk.merged(node.outputs[0], num_heads)
        attention = self._attention(layer, operands, num_heads, context, scale * factor)
        return Site(attention, node.input(3))

    def _grouped_query(self, layer: int, node: GraphNode, key: tuple[str, str], value: tuple[str, str]) -> Site:
        """Describe a `GroupQueryAttention` operator."""
        node.check_attributes(_GROUPED_QUERY_ATTRIBUTES)
        positions = node.input(9)
        if any(node.inputs[10:]) or (positions and positions not in self._skeleton.inputs):
            raise CannotCut("its GroupQueryAttention has inputs that are not known")
        if node.inputs[3:5] != (key[0], value[0]) or node.outputs[1:] != (key[1], value[1]):
            raise CannotCut("its GroupQueryAttention has another cache than its own, or further outputs")
        if int(node.attributes["kv_num_heads"]) != self._sizes.num_kv_heads:
            raise CannotCut("its GroupQueryAttention has another number of heads than its cache")
        heads, kv_heads, head_dim = int(node.attributes["num_heads"]), self._sizes.num_kv_heads, self._sizes.head_dim
        if node.input(1) and node.input(2):
            query, new_key, new_value = node.inputs[:3]
            operands = (
                self._walk.operand(query, heads),
                self._walk.operand(new_key, kv_heads),
                self._walk.operand(new_value, kv_heads),
            )
        else:
            packed = node.input(0)
            if node.input(1) or node.input(2) or not self._walk.is_rows(packed, (heads + 2 * kv_heads) * head_dim):
                raise CannotCut("its GroupQueryAttention has operands of another shape")
            dtype = self._trace.dtype(packed)
            offsets = (0, heads * head_dim, (heads + kv_heads) * head_dim)
            first, second, third = (Operand(packed, dtype, "rows", offset) for offset in offsets)
            operands = (first, second, third)
        scale = float(node.attributes.get("scale", 0.0)) or head_dim**-0.5
        if positions and not node.attributes.get("do_rotary", 0):
            raise CannotCut("its GroupQueryAttention has positions and nothing to turn")
        rope = self._rope(node) if node.attributes.get("do_rotary", 0) else None
        return Site(self._attention(layer, operands, heads, node.outputs[0], scale, rope), "")

    def _rope(self, node: GraphNode) -> CutRope:
        tables = []
        for name in (node.input(7), node.input(8)):
            if name not in self._skeleton.weights:
                raise CannotCut("the cosines and sines of its GroupQueryAttention are no constants")
            if name not in self._tables:
                self._tables[name] = np.ascontiguousarray(self._skeleton.read_weight(name), np.float32)
            tables.append(self._tables[name])
        cosines, sines = tables
        half = self._sizes.head_dim // 2
        if cosines.ndim != 2 or cosines.shape != sines.shape or not 0 < cosines.shape[1] <= half:
            raise CannotCut(f"its cosines have the shape {cosines.shape}")
        return CutRope(cosines, sines, bool(node.attributes.get("rotary_interleaved", 0)))
