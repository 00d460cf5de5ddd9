"""The header of an ONNX file: its inputs and where its weights lie, without reading them.

An ONNX file usually holds its weights inside one message. ONNX Runtime then has every weight twice while it loads. A
copy of the message in which large weights are references into that very file, as to external data, lets it map them.

Source:
    onnx.proto of onnx/onnx (ModelProto, GraphProto, TensorProto, ValueInfoProto) and the wire format of Protocol
    Buffers.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge_vl.errors import ModelError

__all__ = ["FLOAT", "FLOAT16", "OnnxHeader", "OnnxInput", "OnnxWeight", "graph_with_references", "read_onnx_header"]

FLOAT, FLOAT16 = 1, 10
"""Element types of `TensorProto`."""

# Small weights stay: norms and biases may be read by code that wants them aligned, and a map costs more than a copy.
_MIN_REFERENCED_BYTES = 64 * 1024

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER, _GRAPH_INPUT = 5, 11
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 1, 2, 8, 9, 13, 14
_EXTERNAL = 1


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """One input of a graph.

    Attributes:
        dtype: number of the element type, such as `FLOAT`.
        shape: a dimension that the graph leaves open is 0.
    """

    dtype: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OnnxWeight:
    """One weight, not read.

    Attributes:
        name: in the graph.
        dtype: number of the element type.
        nbytes: of its values.
        location: name of the file with external data; empty: the file itself.
    """

    name: str
    dtype: int
    nbytes: int
    location: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class OnnxHeader:
    """What a file says about itself.

    Attributes:
        path: the file.
        inputs: by name.
        weights: in file order.
        nbytes: of the file and its external data.
    """

    path: Path
    inputs: Mapping[str, OnnxInput]
    weights: tuple[OnnxWeight, ...]
    nbytes: int

    def weights_bytes(self, dtype: int) -> int:
        """Bytes of all weights of one element type."""
        return sum(weight.nbytes for weight in self.weights if weight.dtype == dtype)

    @property
    def largest_weight_bytes(self) -> int:
        """Bytes of the largest weight."""
        return max((weight.nbytes for weight in self.weights), default=0)


def read_onnx_header(path: Path) -> OnnxHeader:
    """Read inputs and list of weights of an ONNX file.

    Raises:
        ModelError: it cannot be read or is not an ONNX graph, or its external data is missing.
    """
    inputs: dict[str, OnnxInput] = {}
    weights: list[OnnxWeight] = []
    with _message(path) as message:
        for graph in message.children(_MODEL_GRAPH):
            for field in graph.fields():
                if field.number == _GRAPH_INPUT:
                    name, entry = _read_input(field.message)
                    inputs[name] = entry
                elif field.number == _GRAPH_INITIALIZER:
                    weights.append(_read_weight(field.message))
    if not inputs:
        raise _damaged(path)
    nbytes = path.stat().st_size
    for location in {weight.location for weight in weights} - {""}:
        try:
            nbytes += (path.parent / location).stat().st_size
        except (OSError, ValueError) as error:  # ValueError: the name has a zero byte
            raise ModelError(
                f"{path} keeps weights in {location}, which is missing; download it too, beside it", file=str(path)
            ) from error
    return OnnxHeader(path, inputs, tuple(weights), nbytes)


def graph_with_references(path: Path) -> bytes:
    """Return the message of an ONNX file, its large weights as references into the file.

    Raises:
        ModelError: the file cannot be read or is not an ONNX graph.
    """
    parts: list[bytes] = []
    with _message(path) as message:
        for field in message.fields():
            if field.number == _MODEL_GRAPH:
                parts.append(_as_bytes_field(_MODEL_GRAPH, _referenced_graph(field.message, path.name)))
            else:
                parts.append(field.whole)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message: `begin` and `end` of its content, `start` of its key."""

    data: mmap.mmap | bytes
    number: int
    start: int
    begin: int
    end: int
    value: int = 0

    @property
    def whole(self) -> bytes:
        return self.data[self.start : self.end]

    @property
    def message(self) -> _Message:
        return _Message(self.data, self.begin, self.end)

    @property
    def text(self) -> str:
        return self.data[self.begin : self.end].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Message:
    """A run of fields."""

    data: mmap.mmap | bytes
    begin: int
    end: int

    def fields(self) -> Iterator[_Field]:
        """Yield every field, in file order.

        Raises:
            ValueError: the bytes are not a message.
        """
        data, at = self.data, self.begin
        while at < self.end:
            start = at
            key, at = _varint(data, at, self.end)
            kind, value, begin = key & 7, 0, at
            if kind == _VARINT:
                value, at = _varint(data, at, self.end)
            elif kind == _BYTES:
                length, begin = _varint(data, at, self.end)
                at = begin + length
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"wire type {kind}")
            if at > self.end:
                raise ValueError("a field ends behind its message")
            yield _Field(data, key >> 3, start, begin, at, value)

    def children(self, number: int) -> Iterator[_Message]:
        return (field.message for field in self.fields() if field.number == number)


@contextmanager
def _message(path: Path) -> Iterator[_Message]:
    """Map a file; whatever is wrong with its bytes becomes a `ModelError`."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _Message(data, 0, len(data))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}", file=str(path)) from error
    except (ValueError, IndexError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> ModelError:
    return ModelError(f"{path} is damaged or not an ONNX graph; download it again", file=str(path))


def _varint(data: mmap.mmap | bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number without an end")


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _as_bytes_field(number: int, content: bytes) -> bytes:
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(content)) + content


def _read_input(message: _Message) -> tuple[str, OnnxInput]:
    """Read a `ValueInfoProto`."""
    name, dtype, shape = "", 0, []
    for field in message.fields():
        if field.number == 1:
            name = field.text
        elif field.number == 2:
            for tensor in field.message.children(1):
                for part in tensor.fields():
                    if part.number == 1:
                        dtype = part.value
                    elif part.number == 2:
                        shape = [_dimension(dimension) for dimension in part.message.children(1)]
    return name, OnnxInput(dtype, tuple(shape))


def _dimension(message: _Message) -> int:
    return next((field.value for field in message.fields() if field.number == 1), 0)


def _read_weight(message: _Message) -> OnnxWeight:
    """Read a `TensorProto` without its values; those that are not raw count with the bytes of their encoding."""
    name, dtype, nbytes, external = "", 0, 0, dict[str, str]()
    for field in message.fields():
        if field.number == _TENSOR_TYPE:
            dtype = field.value
        elif field.number == _TENSOR_NAME:
            name = field.text
        elif field.number == _TENSOR_EXTERNAL:
            key, value = "", ""
            for part in field.message.fields():
                key, value = (part.text, value) if part.number == 1 else (key, part.text)
            external[key] = value
        elif field.number not in (_TENSOR_DIMS, _TENSOR_LOCATION):
            nbytes += field.end - field.begin
    if external:
        return OnnxWeight(name, dtype, int(external.get("length", 0)), external.get("location", ""))
    return OnnxWeight(name, dtype, nbytes)


def _referenced_graph(graph: _Message, file_name: str) -> bytes:
    parts = []
    for field in graph.fields():
        raw = None
        if field.number == _GRAPH_INITIALIZER and field.end - field.begin >= _MIN_REFERENCED_BYTES:
            raw = next((part for part in field.message.fields() if part.number == _TENSOR_RAW), None)
        if raw is None or raw.end - raw.begin < _MIN_REFERENCED_BYTES:
            parts.append(field.whole)
        else:
            parts.append(_as_bytes_field(_GRAPH_INITIALIZER, _reference(field.message, raw, file_name)))
    return b"".join(parts)


def _reference(tensor: _Message, raw: _Field, file_name: str) -> bytes:
    """Return a `TensorProto` whose values lie in a file."""
    kept = [field.whole for field in tensor.fields() if field.number not in (_TENSOR_RAW, _TENSOR_LOCATION)]
    entries = {"location": file_name, "offset": str(raw.begin), "length": str(raw.end - raw.begin)}
    pairs = [_as_bytes_field(1, key.encode()) + _as_bytes_field(2, value.encode()) for key, value in entries.items()]
    external = [_as_bytes_field(_TENSOR_EXTERNAL, pair) for pair in pairs]
    return b"".join((*kept, *external, _as_varint(_TENSOR_LOCATION << 3 | _VARINT), _as_varint(_EXTERNAL)))
