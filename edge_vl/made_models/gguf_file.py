"""Writing a GGUF file tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from edge_vl.made_models.weights import Shape

__all__ = ["FILE_TYPES", "Tensor", "describe_precision", "stored", "stored_bytes", "stored_type", "write"]

BLOCK = 32
"""Values that share a scale in `q8_0` and `q4_0`."""

FILE_TYPES = {
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}
"""What a file says about its precision."""

_MATRICES = {"f16": Type.F16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0}
_QUANTIZATION_VERSION = 2


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file.

    Attributes:
        name: llama.cpp's.
        shape: slowest dimension first.
        type: how it is stored.
        make: returns float32 of this shape.
    """

    name: str
    shape: Shape
    type: Type
    make: Callable[[], NDArray[np.float32]]


def stored_type(name: str, shape: Shape, precision: str, *, is_head: bool = False) -> Type:
    """Return how a tensor is stored in a file of a precision.

    Args:
        name: llama.cpp's name.
        shape: slowest dimension first.
        precision: a key of `FILE_TYPES`.
        is_head: whether the logits are computed with it.

    Source:
        conversion/base.py and src/llama-quant.cpp of ggml-org/llama.cpp: norms, biases and positions in single
        precision; rows that are no whole blocks in half; the head of a four-bit file in eight bits (llama.cpp has
        q6_k there where rows are a multiple of 256 long, and q8_0 elsewhere). Differs: patch embeddings are in half
        precision, where its converter keeps them in single.
    """
    if len(shape) == 1 or "position_embd" in name:
        return Type.F32
    if len(shape) > 2 or shape[-1] % BLOCK:
        return Type.F16
    return Type.Q8_0 if is_head and precision == "q4_0" else _MATRICES[precision]


def stored_bytes(shape: Shape, kind: Type) -> int:
    """Return how long a tensor's data is."""
    block: int
    block_bytes: int
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * block_bytes


def stored(values: NDArray[np.float32], kind: Type) -> NDArray[np.generic]:
    """Return values as they stand in the file; quantised rows become uint8."""
    if kind == Type.F32:
        return np.ascontiguousarray(values)
    if kind == Type.F16:
        return np.ascontiguousarray(values, np.float16)
    quantized: NDArray[np.generic] = gguf.quants.quantize(np.ascontiguousarray(values), kind)
    return quantized


def describe_precision(writer: gguf.GGUFWriter, precision: str) -> None:
    """Add what a file says about its precision."""
    writer.add_file_type(FILE_TYPES[precision])
    if precision != "f16":
        writer.add_quantization_version(_QUANTIZATION_VERSION)


def write(writer: gguf.GGUFWriter, tensors: Iterable[Tensor]) -> None:
    """Write the file that a writer has described; one tensor at a time is in memory."""
    entries = list(tensors)
    for entry in entries:
        writer.add_tensor_info(
            entry.name, entry.shape, np.dtype(np.float32), stored_bytes(entry.shape, entry.type), entry.type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    try:
        for entry in entries:
            writer.write_tensor_data(stored(entry.make(), entry.type))
    finally:
        writer.close()
