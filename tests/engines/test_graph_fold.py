"""Values worked out by us are those that the backend works out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edge_vl_onnxruntime.graph_fold import MAX_VALUES, fold
from edge_vl_onnxruntime.graph_skeleton import GraphNode
from tests.graph_runs import Array, open_graph

INTS = np.array([[3, -7, 12], [5, 0, -2]], np.int64)
OTHERS = np.array([[2, 2, -5], [-3, 4, 7]], np.int64)
FLOATS = np.array([[0.5, 2.0, 9.0], [1.5, 4.0, 0.25]], np.float32)
TRUE = INTS > 0


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: Any, dtype: Any = np.int64) -> Array:
    return np.array(value, dtype)


CASES: list[tuple[str, list[Array | None], dict[str, Any]]] = [
    ("Identity", [INTS], {}),
    ("Cast", [FLOATS], {"to": onnx.TensorProto.INT64}),
    ("Cast", [INTS], {"to": onnx.TensorProto.FLOAT}),
    ("CastLike", [INTS, FLOATS], {}),
    ("Add", [INTS, OTHERS], {}),
    ("Sub", [INTS, OTHERS[0]], {}),
    ("Mul", [FLOATS, scalar(3, np.float32)], {}),
    ("Div", [INTS, OTHERS], {}),
    ("Div", [FLOATS, scalar(3, np.float32)], {}),
    ("Pow", [FLOATS, scalar(-0.5, np.float32)], {}),
    ("Sqrt", [FLOATS], {}),
    ("Reciprocal", [FLOATS], {}),
    ("Neg", [INTS], {}),
    ("Min", [INTS, OTHERS], {}),
    ("Max", [INTS, OTHERS, INTS[0]], {}),
    ("Floor", [FLOATS], {}),
    ("Ceil", [FLOATS], {}),
    ("Equal", [INTS, OTHERS], {}),
    ("Less", [INTS, OTHERS], {}),
    ("LessOrEqual", [INTS, OTHERS], {}),
    ("Greater", [INTS, OTHERS], {}),
    ("GreaterOrEqual", [INTS, OTHERS], {}),
    ("And", [TRUE, ~TRUE[0]], {}),
    ("Or", [TRUE, TRUE[0]], {}),
    ("Not", [TRUE], {}),
    ("Where", [TRUE, INTS, scalar(-1)], {}),
    ("Expand", [INTS[0], ints(2, 1)], {}),
    ("Unsqueeze", [INTS, ints(0, -1)], {}),
    ("Squeeze", [INTS[None], ints(0)], {}),
    ("Squeeze", [INTS[None]], {}),
    ("Reshape", [INTS, ints(0, -1, 1)], {}),
    ("Reshape", [INTS, ints(-1)], {}),
    ("Concat", [INTS, OTHERS], {"axis": -1}),
    ("Gather", [INTS, scalar(-1)], {"axis": 1}),
    ("Gather", [INTS, np.array([[0, 1]])], {}),
    ("Slice", [INTS, ints(0), ints(-1), ints(1)], {}),
    ("Slice", [INTS, ints(-2), ints(1 << 40), ints(-1), ints(2)], {}),
    ("Slice", [INTS, ints(1, 0), ints(9, 2)], {}),
    ("ConstantOfShape", [ints(2, 3)], {}),
    ("ConstantOfShape", [ints(2)], {"value": numpy_helper.from_array(ints(7))}),
    ("Range", [scalar(2), scalar(11), scalar(3)], {}),
    ("CumSum", [INTS, scalar(1)], {}),
    ("ReduceSum", [INTS, ints(1)], {"keepdims": 0}),
    ("ReduceSum", [INTS], {}),
    ("ReduceProd", [INTS], {"axes": [0]}),
    ("ReduceMax", [INTS], {"axes": [-1], "keepdims": 0}),
    ("ReduceMin", [INTS], {}),
    ("Shape", [INTS], {}),
    ("Shape", [INTS], {"start": -1}),
    ("Shape", [INTS], {"start": 0, "end": 1}),
    ("Size", [INTS], {}),
]


def node_of(op: str, values: list[Array | None], attributes: dict[str, Any]) -> tuple[GraphNode, dict[str, Array]]:
    known = {f"x{place}": value for place, value in enumerate(values) if value is not None}
    names = [f"x{place}" if value is not None else "" for place, value in enumerate(values)]
    return GraphNode.read(helper.make_node(op, names, ["y"], **attributes)), known


def folded(op: str, values: list[Array | None], attributes: dict[str, Any]) -> Array | None:
    node, known = node_of(op, values, attributes)
    return fold(node, {name: value.shape for name, value in known.items()}, known)


@pytest.mark.parametrize(("op", "values", "attributes"), CASES)
def test_a_value_is_what_the_backend_computes(
    tmp_path: Any, op: str, values: list[Array | None], attributes: dict[str, Any]
) -> None:
    node, known = node_of(op, values, attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in known.items()
    ]
    graph = helper.make_graph([node.proto], "one", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    expected = open_graph(model.SerializeToString(), tmp_path).run(None, known)[0]
    found = folded(op, values, attributes)
    assert found is not None
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("op", "values", "attributes"),
    [
        ("Slice", [INTS, ints(-1), ints(-9), ints(1), ints(-1)], {}),  # backwards
        ("CumSum", [INTS, scalar(1)], {"reverse": 1}),
        ("Range", [scalar(0), scalar(5000), scalar(1)], {}),
        ("ConstantOfShape", [ints(50, 50)], {}),
        ("Gather", [INTS, scalar(9)], {}),
        ("Reshape", [INTS, ints(4, 4)], {}),
        ("Add", [np.zeros(MAX_VALUES + 1, np.int64), scalar(1)], {}),
        ("Sin", [FLOATS], {}),
    ],
)
def test_what_is_large_or_makes_no_sense_is_not_known(
    op: str, values: list[Array | None], attributes: dict[str, Any]
) -> None:
    assert folded(op, values, attributes) is None


def test_every_operator_that_is_folded_is_compared() -> None:
    from edge_vl_onnxruntime import graph_fold

    assert {op for op, _, _ in CASES} == {*graph_fold._FOLDS, "Shape", "Size"}


def test_the_shape_of_an_unknown_dimension_is_not_known() -> None:
    node, _ = node_of("Shape", [INTS], {})
    assert fold(node, {"x0": (2, None)}, {}) is None
    assert fold(node, {}, {}) is None
