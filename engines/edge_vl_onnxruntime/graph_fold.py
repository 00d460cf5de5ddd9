"""Values of small tensors that follow from constants and shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edge_vl_onnxruntime.graph_skeleton import GraphNode

__all__ = ["MAX_VALUES", "Shape", "fold"]

MAX_VALUES = 1024
"""Elements of the largest tensor whose values are kept."""

Shape = tuple[int | None, ...]
Values = Sequence[NDArray[Any]]


def fold(node: GraphNode, shapes: Mapping[str, Shape], known: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """Return the value of a node's output.

    Args:
        node: any node.
        shapes: of tensors; None for a dimension that is not known.
        known: values of tensors, small ones.

    Returns:
        The value, None if it is large or does not follow.
    """
    if node.op in ("Shape", "Size"):
        shape = shapes.get(node.inputs[0])
        if shape is None or None in shape:
            return None
        whole = np.array(shape, np.int64)
        if node.op == "Size":
            return np.array(whole.prod(), np.int64)
        return whole[int(node.attributes.get("start", 0)) : node.attributes.get("end", len(shape))]
    rule = _FOLDS.get(node.op)
    if rule is None or any(name and name not in known for name in node.inputs):
        return None
    values = [known[name] if name else np.empty(0) for name in node.inputs]
    if max((value.size for value in values), default=0) > MAX_VALUES:
        return None
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(rule(node, values))
    except Exception:  # a value that makes no sense is not known; the backend says so when it runs
        return None
    return result if result.size <= 4 * MAX_VALUES else None


def _cast(node: GraphNode, values: Values) -> NDArray[Any]:
    return np.asarray(values[0].astype(helper.tensor_dtype_to_np_dtype(int(node.attributes["to"]))))


def _divide(node: GraphNode, values: Values) -> NDArray[Any]:
    if values[0].dtype.kind in "iu":
        return np.asarray(np.trunc(values[0] / values[1])).astype(values[0].dtype)
    return np.asarray(values[0] / values[1])


def _axes(node: GraphNode, values: Values) -> tuple[int, ...] | None:
    """Return axes, which are an input or an attribute."""
    if len(values) > 1 and values[1].dtype.kind == "i":
        return tuple(int(axis) for axis in values[1].ravel())
    return tuple(node.attributes["axes"]) if "axes" in node.attributes else None


def _unsqueeze(node: GraphNode, values: Values) -> NDArray[Any]:
    return np.expand_dims(values[0], _axes(node, values) or ())


def _reshape(node: GraphNode, values: Values) -> NDArray[Any]:
    source, target = values[0], [int(size) for size in values[1]]
    if not node.attributes.get("allowzero"):
        target = [source.shape[place] if size == 0 else size for place, size in enumerate(target)]
    return source.reshape(target)


def _slice(node: GraphNode, values: Values) -> NDArray[Any]:
    source, starts, ends = values[0], values[1], values[2]
    axes = values[3] if len(values) > 3 and values[3].size else np.arange(len(starts))
    steps = values[4] if len(values) > 4 and values[4].size else np.ones(len(starts), np.int64)
    places: list[slice] = [slice(None)] * source.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 1:
            raise ValueError("backwards")
        places[int(axis)] = slice(int(start), int(end), int(step))
    return source[tuple(places)]


def _filled(node: GraphNode, values: Values) -> NDArray[Any]:
    value = node.attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    if int(np.prod(values[0])) > MAX_VALUES:
        raise ValueError("large")
    return np.full(tuple(values[0]), fill.ravel()[0], fill.dtype)


def _range(node: GraphNode, values: Values) -> NDArray[Any]:
    start, stop, step = (float(value.item()) for value in values)
    if (stop - start) / step > MAX_VALUES:
        raise ValueError("large")
    return np.arange(start, stop, step).astype(values[0].dtype)


def _ufunc(function: Callable[..., Any]) -> Callable[[GraphNode, Values], Any]:
    return lambda node, values: function(*values)


def _cumulate(node: GraphNode, values: Values) -> NDArray[Any]:
    if node.attributes.get("exclusive") or node.attributes.get("reverse"):
        raise ValueError("another order")
    return np.asarray(np.cumsum(values[0], int(values[1].item()), values[0].dtype))


def _reduce(function: Callable[..., Any]) -> Callable[[GraphNode, Values], Any]:
    def apply(node: GraphNode, values: Values) -> Any:
        keepdims = bool(node.attributes.get("keepdims", 1))
        return np.asarray(function(values[0], axis=_axes(node, values), keepdims=keepdims)).astype(values[0].dtype)

    return apply


_FOLDS: Mapping[str, Callable[[GraphNode, Values], Any]] = {
    "Identity": lambda node, values: values[0],
    "Cast": _cast,
    "CastLike": lambda node, values: values[0].astype(values[1].dtype),
    "Add": _ufunc(np.add),
    "Sub": _ufunc(np.subtract),
    "Mul": _ufunc(np.multiply),
    "Div": _divide,
    "Pow": _ufunc(lambda base, exponent: np.power(base, exponent).astype(base.dtype)),
    "Sqrt": _ufunc(np.sqrt),
    "Reciprocal": _ufunc(lambda value: (1 / value).astype(value.dtype)),
    "Neg": _ufunc(np.negative),
    "Min": lambda node, values: functools.reduce(np.minimum, values),
    "Max": lambda node, values: functools.reduce(np.maximum, values),
    "Floor": _ufunc(np.floor),
    "Ceil": _ufunc(np.ceil),
    "Equal": _ufunc(np.equal),
    "Less": _ufunc(np.less),
    "LessOrEqual": _ufunc(np.less_equal),
    "Greater": _ufunc(np.greater),
    "GreaterOrEqual": _ufunc(np.greater_equal),
    "And": _ufunc(np.logical_and),
    "Or": _ufunc(np.logical_or),
    "Not": _ufunc(np.logical_not),
    "Where": _ufunc(np.where),
    "Expand": lambda node, values: values[0] * np.ones(tuple(values[1]), values[0].dtype),
    "Unsqueeze": _unsqueeze,
    "Squeeze": lambda node, values: np.squeeze(values[0], _axes(node, values)),
    "Reshape": _reshape,
    "Concat": lambda node, values: np.concatenate(values, int(node.attributes["axis"])),
    "Gather": lambda node, values: np.take(values[0], values[1], int(node.attributes.get("axis", 0))),
    "Slice": _slice,
    "ConstantOfShape": _filled,
    "Range": _range,
    "CumSum": _cumulate,
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}
