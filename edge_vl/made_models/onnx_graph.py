"""A small builder of ONNX graphs whose weights are written one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edge_vl.made_models.weights import Weights

__all__ = ["CONTRIB_DOMAIN", "IR_VERSION", "OPSET", "TRANSPOSED", "Graph"]

OPSET = 17
CONTRIB_DOMAIN = "com.microsoft"
"""Of ONNX Runtime's own operators."""

IR_VERSION = 8
TRANSPOSED = ".MatMul.weight"

_MAX_INLINE_BYTES = 2_000_000_000
"""A protocol buffer ends at 2 GiB."""

_MIN_EXTERNAL_BYTES = 1024
_EXTERNAL_ALIGNMENT = 4096  # so that it can be mapped into memory

_GRAPH_FIELD, _INITIALIZER_FIELD, _RAW_DATA_FIELD = 7, 5, 9

Dimensions = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class _Initializer:
    """A constant that is made when it is written."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    make: Callable[[], NDArray[np.generic]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def head(self) -> onnx.TensorProto:
        return TensorProto(dims=self.shape, data_type=helper.np_dtype_to_tensor_dtype(self.dtype), name=self.name)

    def write(self, file: BinaryIO) -> None:
        file.write(np.ascontiguousarray(self.make()).reshape(-1).view(np.uint8).data)


class Graph:
    """Nodes and initialisers in the order in which they are added; every method returns the name of its result.

    A linear layer's weight `x.weight` is stored transposed, for `MatMul`, as `x.MatMul.weight`; every other
    initialiser has its parameter's own name.
    """

    def __init__(self, name: str, weights: Weights) -> None:
        """Begin an empty graph; parameters are taken from `weights` when the graph is saved."""
        self.name = name
        self.weights = weights
        self.scope = ""
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, _Initializer] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._opsets = {"": OPSET}

    def input(self, name: str, dtype: int, shape: Dimensions) -> str:
        """Declare an input."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: Dimensions) -> str:
        """Declare an output; a node must produce it."""
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def op(self, kind: str, *inputs: str, result: str = "", **attributes: object) -> str:
        """Add a node with one result, named `result` or after the scope and the operator."""
        name = f"{self.scope}/{kind}_{len(self._nodes)}"
        result = result or f"{name}_output_0"
        self._nodes.append(helper.make_node(kind, list(inputs), [result], name=name, **attributes))
        return result

    def contrib(self, kind: str, inputs: Sequence[str], results: Sequence[str], **attributes: object) -> None:
        """Add a node of one of ONNX Runtime's own operators.

        Args:
            kind: the operator.
            inputs: names; empty for one that is left out.
            results: likewise.
            attributes: of the node.
        """
        name = f"{self.scope}/{kind}_{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(kind, list(inputs), list(results), name=name, domain=CONTRIB_DOMAIN, **attributes)
        )
        self._opsets.setdefault(CONTRIB_DOMAIN, 1)

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
        return self._add(name, np.dtype(np.float32), self.weights.shape(name), lambda: self.weights.values(name))

    def linear(self, x: str, name: str, *, bias: bool = False) -> str:
        """Multiply by the weight of a linear layer and add its bias."""
        product = self.op("MatMul", x, self.transposed(f"{name}.weight", name + TRANSPOSED))
        return self.op("Add", product, self.parameter(f"{name}.bias")) if bias else product

    def transposed(self, parameter: str, name: str) -> str:
        """Return a matrix as `MatMul` wants it on its right, under another name."""
        rows, columns = self.weights.shape(parameter)
        return self._add(name, np.dtype(np.float32), (columns, rows), lambda: self.weights.values(parameter).T)

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape; 0 keeps a dimension and -1 infers one."""
        return self.op("Reshape", x, self.integers(*shape))

    def slice(self, x: str, start: str, end: str, axis: int) -> str:
        """Cut along one axis; start and end name int64 vectors of one element."""
        return self.op("Slice", x, start, end, self.integers(axis))

    def save(self, path: Path, *, max_inline_bytes: int = _MAX_INLINE_BYTES) -> None:
        """Write the graph; one weight at a time is in memory.

        Args:
            path: of the `.onnx` file.
            max_inline_bytes: with more weights than this they go into a second file, `PATH_data`.
        """
        if sum(entry.nbytes for entry in self._initializers.values()) <= max_inline_bytes:
            self._save_inline(path)
        else:
            self._save_external(path)

    def _save_inline(self, path: Path) -> None:
        """Write what `onnx.save` writes for the whole model, byte for byte, field after field."""
        before = onnx.GraphProto(node=self._nodes, name=self.name).SerializeToString()
        after = onnx.GraphProto(input=self._inputs, output=self._outputs).SerializeToString()
        heads = {entry.name: self._entry_head(entry) for entry in self._initializers.values()}
        size = len(before) + len(after) + sum(len(heads[name]) + self._initializers[name].nbytes for name in heads)
        with path.open("wb") as file:
            file.write(onnx.ModelProto(ir_version=IR_VERSION, producer_name="edge_vl").SerializeToString())
            file.write(_field(_GRAPH_FIELD, size) + before)
            for entry in self._initializers.values():
                file.write(heads[entry.name])
                entry.write(file)
            file.write(after)
            file.write(onnx.ModelProto(opset_import=self._opset_ids()).SerializeToString())

    def _opset_ids(self) -> list[onnx.OperatorSetIdProto]:
        return [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]

    @staticmethod
    def _entry_head(entry: _Initializer) -> bytes:
        """Return all bytes of an initialiser that stand before its data."""
        head: bytes = entry.head().SerializeToString() + _field(_RAW_DATA_FIELD, entry.nbytes)
        return _field(_INITIALIZER_FIELD, len(head) + entry.nbytes) + head

    def _save_external(self, path: Path) -> None:
        data_path = path.with_name(path.name + "_data")
        with data_path.open("wb") as file:
            tensors = [self._external(entry, file, data_path.name) for entry in self._initializers.values()]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, tensors)
        onnx.save(
            helper.make_model(graph, producer_name="edge_vl", ir_version=IR_VERSION, opset_imports=self._opset_ids()),
            path,
        )

    @staticmethod
    def _external(entry: _Initializer, file: BinaryIO, file_name: str) -> onnx.TensorProto:
        tensor = entry.head()
        if entry.nbytes < _MIN_EXTERNAL_BYTES:
            tensor.raw_data = entry.make().tobytes()
            return tensor
        file.write(bytes(-file.tell() % _EXTERNAL_ALIGNMENT))
        place = {"location": file_name, "offset": file.tell(), "length": entry.nbytes}
        entry.write(file)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.extend(
            onnx.StringStringEntryProto(key=key, value=str(value)) for key, value in place.items()
        )
        return tensor

    def _constant(self, name: str, values: NDArray[np.generic]) -> str:
        return self._add(name, values.dtype, values.shape, lambda: values)

    def _add(
        self, name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...], make: Callable[[], NDArray[np.generic]]
    ) -> str:
        self._initializers.setdefault(name, _Initializer(name, dtype, shape, make))
        return name


def _field(number: int, length: int) -> bytes:
    """Begin a length-delimited field of a protocol buffer."""
    encoded = bytearray([number << 3 | 2])
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)
