"""A small builder of ONNX graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
TRANSPOSED = ".MatMul.weight"

Shape = Sequence[int | str]


class Graph:
    """Nodes and initialisers in the order in which they are added; every method returns the name of its result.

    A linear layer's weight `x.weight` is stored transposed, for `MatMul`, as `x.MatMul.weight`; every other
    initialiser has its parameter's own name. `read_weights` undoes this.
    """

    def __init__(self, name: str, weights: dict[str, NDArray[np.float32]]) -> None:
        self.name = name
        self.weights = weights
        self.scope = ""
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: int, shape: Shape) -> str:
        """Declare an input."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: Shape) -> str:
        """Declare an output; a node must produce it."""
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def op(self, kind: str, *inputs: str, result: str = "", **attributes: object) -> str:
        """Add a node with one result, named `result` or after the scope and the operator."""
        name = f"{self.scope}/{kind}_{len(self._nodes)}"
        result = result or f"{name}_output_0"
        self._nodes.append(helper.make_node(kind, list(inputs), [result], name=name, **attributes))
        return result

    def integers(self, *values: int) -> str:
        """Return a constant int64 vector."""
        return self._constant("int64_" + "_".join(map(str, values)), np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """Return a constant int64 scalar."""
        return self._constant(f"int64_scalar_{value}", np.array(value, np.int64))

    def number(self, value: float) -> str:
        """Return a constant float32 scalar."""
        return self._constant(f"float_{value:g}", np.array(value, np.float32))

    def array(self, name: str, values: NDArray[np.generic]) -> str:
        """Return a named constant array."""
        return self._constant(name, values)

    def parameter(self, name: str) -> str:
        """Return a parameter under its own name."""
        return self._constant(name, self.weights[name])

    def linear(self, x: str, name: str, *, bias: bool = False) -> str:
        """Multiply by the weight of a linear layer and add its bias."""
        weight = self._constant(name + TRANSPOSED, np.ascontiguousarray(self.weights[f"{name}.weight"].T))
        product = self.op("MatMul", x, weight)
        return self.op("Add", product, self.parameter(f"{name}.bias")) if bias else product

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape; 0 keeps a dimension and -1 infers one."""
        return self.op("Reshape", x, self.integers(*shape))

    def slice(self, x: str, start: str, end: str, axis: int) -> str:
        """Cut along one axis; start and end name int64 vectors of one element."""
        return self.op("Slice", x, start, end, self.integers(axis))

    def model(self) -> onnx.ModelProto:
        """Return the checked model."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        model = helper.make_model(
            graph, producer_name="edge_vl", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def _constant(self, name: str, values: NDArray[np.generic]) -> str:
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(values, name)
        return name


def read_weights(*models: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Return the parameters held by the initialisers of graphs, under transformers' names."""
    weights = {}
    for model in models:
        for tensor in model.graph.initializer:
            if tensor.data_type != TensorProto.FLOAT or not tensor.name.startswith("model."):
                continue
            values = numpy_helper.to_array(tensor)
            if tensor.name.endswith(TRANSPOSED):
                weights[tensor.name.removesuffix(TRANSPOSED) + ".weight"] = np.ascontiguousarray(values.T)
            else:
                weights[tensor.name] = values
    return weights
