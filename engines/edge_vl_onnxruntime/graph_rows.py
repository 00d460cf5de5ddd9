"""Which axis of a tensor counts rows, and whether an operator keeps rows apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from edge_vl_onnxruntime.graph_cut import CannotCut
from edge_vl_onnxruntime.graph_skeleton import GraphNode
from edge_vl_onnxruntime.graph_trace import Trace

__all__ = ["RowAxes", "RowCheck"]

_COUNT_OPERATORS = ("Add", "Cast", "Concat", "Identity", "Neg", "Reshape", "Squeeze", "Sub", "Unsqueeze")
"""What may be done to the number of rows that are to have logits."""


class RowAxes:
    """The axis of each tensor that grows with the number of rows, found by comparing traces.

    Where something of each row was folded into the axis, as in (1, rows * heads, head_dim), it grows by a multiple.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        """Take traces of different lengths."""
        self._traces = traces
        self._axes: dict[str, int | None] = {}

    def axis(self, name: str) -> int | None:
        """Return the axis, None if the shape is the same for all lengths.

        Raises:
            CannotCut: the shape cannot be told or depends on more than the number of rows.
        """
        if name not in self._axes:
            self._axes[name] = self._find(name)
        return self._axes[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a shape of the first trace."""
        return self._traces[0].shape(name)

    def shape_with(self, name: str, num_rows: int) -> tuple[int, ...]:
        """Return the shape of a tensor with another number of rows."""
        axis = self.axis(name)
        return tuple(num_rows if place == axis else size for place, size in enumerate(self.shape(name)))

    def values(self, name: str) -> tuple[int, ...] | None:
        """Return the integers of a small tensor if they are the same for all lengths."""
        found = [trace.values.get(name) for trace in self._traces]
        lists = {tuple(int(entry) for entry in values.ravel()) for values in found if values is not None}
        return lists.pop() if len(lists) == 1 and all(values is not None for values in found) else None

    def _find(self, name: str) -> int | None:
        shapes = [trace.shape(name) for trace in self._traces]
        rows = [trace.length.rows for trace in self._traces]
        if len({len(shape) for shape in shapes}) == 1:
            growing = [place for place, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1]
            if not growing:
                return None
            sizes = [shape[growing[0]] for shape in shapes]
            ratios = {(size % count, size // count) for size, count in zip(sizes, rows, strict=True)}
            if len(growing) == 1 and len(ratios) == 1 and ratios.pop()[0] == 0:
                return growing[0]
        raise CannotCut(f"outside its attention {name} depends on more than the number of rows")


@dataclass(frozen=True, slots=True)
class _Use:
    """A node with what its rule looks at. Shapes and axes of inputs that are left out are () and None."""

    node: GraphNode
    axes: RowAxes
    shapes: list[tuple[int, ...]]
    rows: list[int | None]
    out_shape: tuple[int, ...]
    out_row: int | None

    def attribute(self, name: str, default: Any) -> Any:
        return self.node.attributes.get(name, default)

    def integers(self, place: int) -> tuple[int, ...] | None:
        name = self.node.input(place)
        return self.axes.values(name) if name else None

    def is_aligned(self, place: int) -> bool:
        """Whether an input's rows come out where broadcasting puts them; or it has none."""
        row = self.rows[place]
        return row is None or (
            self.out_row is not None and _right(self.shapes[place], row) == _right(self.out_shape, self.out_row)
        )


class RowCheck:
    """Tells whether nodes keep rows apart.

    Attributes:
        shares_scales: a node that was looked at quantises all rows with one scale.
    """

    def __init__(self, axes: RowAxes, constants: Set[str]) -> None:
        """Take the axes of rows and the names of tensors that depend on weights only."""
        self.shares_scales = False
        self._axes, self._constants = axes, constants
        self._scales: set[str] = set()

    def check(self, node: GraphNode) -> None:
        """Look at a node; nodes come in the order in which they run.

        Raises:
            CannotCut: it mixes rows, or is not known not to.
        """
        moving = [name for name in node.inputs if name and name not in self._constants]
        if not moving:
            return
        axes = self._axes
        rows = [axes.axis(name) if name else None for name in node.inputs]
        result = node.outputs[0]
        out_row = axes.axis(result)
        if all(row is None for row in rows):
            self._check_number(node, moving, out_row)
            return
        if node.op in ("Shape", "Size"):
            raise CannotCut(
                f"it computes with the number of rows, the shape of {node.inputs[0]}, outside its attention"
            )
        if node.op not in _RULES:
            raise CannotCut(f"its operator {node.op} is not known to keep rows apart")
        if node.op != "Slice":
            for name in moving:
                if axes.axis(name) is None and name not in self._scales:
                    raise CannotCut(f"its {node.op} for {result} takes {name}, which is the same for all rows")
        shapes = [axes.shape(name) if name else () for name in node.inputs]
        use = _Use(node, axes, shapes, rows, axes.shape(result), out_row)
        if out_row is None or not _RULES[node.op](use):
            raise CannotCut(f"its {node.op} for {result} mixes rows")
        if node.op == "DynamicQuantizeLinear":
            self.shares_scales = True
            self._scales.update(node.outputs[1:])

    def _check_number(self, node: GraphNode, moving: list[str], out_row: int | None) -> None:
        """Look at a node without rows: what comes of a scale or of the number of logits is all that may be."""
        if out_row is not None:
            raise CannotCut(f"its {node.op} for {node.outputs[0]} counts rows by itself")
        if all(name in self._scales for name in moving):
            self._scales.update(node.outputs)
        elif node.op not in _COUNT_OPERATORS:
            raise CannotCut(f"its {node.op} for {node.outputs[0]} is the same for all rows, and no constant")


def _right(shape: tuple[int, ...], axis: int) -> int:
    return len(shape) - axis


def _normal(axis: int, shape: tuple[int, ...]) -> int:
    return axis + len(shape) if axis < 0 else axis


def _elementwise(use: _Use) -> bool:
    return all(use.is_aligned(place) for place in range(len(use.rows)))


def _last_axis(use: _Use) -> bool:
    """Statistics along the last axis, or from an axis to the last one, behind the rows."""
    shape, row = use.shapes[0], use.rows[0]
    first = _normal(int(use.attribute("axis", -1)), shape)
    return row is not None and row < first and _elementwise(use)


def _skip_norm(use: _Use) -> bool:
    return use.rows[0] is not None and use.rows[0] < len(use.shapes[0]) - 1 and _elementwise(use)


def _softmax(use: _Use) -> bool:
    return use.rows[0] is not None and _normal(int(use.attribute("axis", -1)), use.shapes[0]) != use.rows[0]


def _reduction(use: _Use) -> bool:
    axes = use.attribute("axes", None) or use.integers(1) or ()
    return bool(axes) and use.rows[0] not in [_normal(int(axis), use.shapes[0]) for axis in axes]


def _product(use: _Use) -> bool:
    """A matrix product that sums over anything but rows."""
    (left, right), (left_row, right_row) = use.shapes[:2], use.rows[:2]
    if any(row is not None for row in use.rows[2:]) or min(len(left), len(right)) < 2:
        return False
    if left_row == len(left) - 1 or (right_row == len(right) - 2 and right_row is not None):
        return False
    return _elementwise(use)


def _quantised_product(use: _Use) -> bool:
    return (
        use.rows[0] is not None and use.rows[0] < len(use.shapes[0]) - 1 and use.rows[1:] == [None] * len(use.rows[1:])
    )


def _gemm(use: _Use) -> bool:
    return use.rows[0] == 0 and not use.attribute("transA", 0) and use.rows[1] is None and use.rows[2:] in ([], [None])


def _quantisation(use: _Use) -> bool:
    return use.rows[1:] == [None] * len(use.rows[1:]) and _elementwise(use)


def _transpose(use: _Use) -> bool:
    order = list(use.attribute("perm", range(len(use.shapes[0]))[::-1]))
    return use.rows[0] in order and order.index(use.rows[0]) == use.out_row


def _reshape(use: _Use) -> bool:
    """Whatever stands before the axis of rows keeps its size, so that rows stay blocks one after the other."""
    row, out_row = use.rows[0], use.out_row
    if row is None or out_row is None or use.rows[1:] not in ([], [None]):
        return False
    return math.prod(use.shapes[0][:row]) == math.prod(use.out_shape[:out_row])


def _slice(use: _Use) -> bool:
    """A slice of something else than rows, or one that keeps them all: as many logits as rows are asked for."""
    if use.rows[1:] != [None] * len(use.rows[1:]) or use.rows[0] != use.out_row:
        return False
    steps = use.integers(4) if use.node.input(4) else (1,)
    row = use.rows[0]
    return row is not None and steps is not None and min(steps) > 0 and use.shapes[0][row] == use.out_shape[row]


def _split(use: _Use) -> bool:
    return _normal(int(use.attribute("axis", 0)), use.shapes[0]) != use.rows[0] == use.out_row


def _concat(use: _Use) -> bool:
    axis = _normal(int(use.attribute("axis", 0)), use.out_shape)
    return axis != use.out_row and all(row == use.out_row for row in use.rows)


def _gather(use: _Use) -> bool:
    """Rows of a table by the rows' indices, or the same channels of every row."""
    axis = _normal(int(use.attribute("axis", 0)), use.shapes[0])
    row, index_row = use.rows[:2]
    if row is None and index_row is not None:
        return use.out_row == axis + index_row
    if row is None or index_row is not None or axis == row:
        return False
    return use.out_row == (row if row < axis else row - 1 + len(use.shapes[1]))


def _rotary(use: _Use) -> bool:
    """Rotation by positions that are given row by row."""
    attributes = {"interleaved", "num_heads", "rotary_embedding_dim", "scale", "is_packed_batching"}
    if not attributes >= set(use.node.attributes) or use.attribute("is_packed_batching", 0):
        return False
    if use.node.op == "RotaryEmbedding":
        positions, tables, table_row = use.node.input(3), use.rows[1:3], None if use.node.input(3) else 1
        is_given = tables == [table_row, table_row] and (not positions or use.rows[3] == 1)
    else:
        is_given = use.rows[1] == 1 and use.rows[2:4] == [None, None]
    return is_given and use.rows[0] == use.out_row == len(use.shapes[0]) - 2


_ELEMENTWISE = (
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Cos", "Div", "DynamicQuantizeLinear", "Elu", "Equal",
    "Erf", "Exp", "Expand", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub", "Sum", "Swish", "Tanh", "Where",
    *(f"com.microsoft::{name}" for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")),
)  # fmt: skip

_RULES: Mapping[str, Callable[[_Use], bool]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _last_axis),
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm,
    "com.microsoft::SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "Softmax": _softmax,
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare", "ReduceL2"), _reduction),
    "MatMul": _product,
    "MatMulInteger": _product,
    "com.microsoft::MatMulNBits": _quantised_product,
    "Gemm": _gemm,
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantisation),
    "Transpose": _transpose,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Gather": _gather,
    **dict.fromkeys(("RotaryEmbedding", "com.microsoft::RotaryEmbedding"), _rotary),
}
