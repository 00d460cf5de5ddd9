"""The loaded pieces of a cut decoder, and how large what goes between them is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_vl_onnxruntime.decoder_graph import DecoderGraph, Input
from edge_vl_onnxruntime.graph_cut import ROWS, CannotCut, CutGraph
from edge_vl_onnxruntime.session import maps_weights, open_piece, reason

__all__ = ["CutSessions", "TensorShape", "open_sessions"]

_TYPES: Mapping[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Shape of a tensor between pieces, for any number of rows.

    Attributes:
        dtype: NumPy type.
        dims: for one row.
        row_axis: the axis with one place for each row; None: it is the same for any number of rows.
    """

    dtype: Any
    dims: tuple[int, ...]
    row_axis: int | None

    def of(self, num_rows: int) -> tuple[int, ...]:
        """Return the shape for so many rows."""
        return tuple(num_rows if axis == self.row_axis else size for axis, size in enumerate(self.dims))

    def nbytes(self, num_rows: int) -> int:
        """Return the memory that it takes for so many rows."""
        return math.prod(self.of(num_rows)) * int(np.dtype(self.dtype).itemsize)


@dataclass(slots=True, eq=False)
class CutSessions:
    """The pieces, ready to run on the CPU.

    Attributes:
        cut: what they are.
        graph: what the whole decoder takes and gives.
        natives: an `onnxruntime.InferenceSession` for each piece; none once it is closed.
        shapes: of everything that pieces take and give, but constants and counts.
        counts: inputs that say for how many rows logits are wanted, by name.
    """

    cut: CutGraph
    graph: DecoderGraph
    natives: tuple[Any, ...]
    shapes: Mapping[str, TensorShape]
    counts: Mapping[str, Input]

    @property
    def is_open(self) -> bool:
        """Not closed yet."""
        return bool(self.natives)

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        self.natives = ()


def open_sessions(cut: CutGraph, graph: DecoderGraph, *, num_threads: int) -> CutSessions:
    """Load the pieces.

    Args:
        cut: the cut graph.
        graph: what the whole decoder takes and gives.
        num_threads: of each piece.

    Raises:
        CannotCut: a piece cannot be loaded, or takes or gives what is not understood.
    """
    if not maps_weights():
        raise CannotCut("this version of onnxruntime is too old to load it in pieces; pip install -U onnxruntime")
    try:
        natives = tuple(open_piece(piece.graph, cut.folder, num_threads) for piece in cut.pieces)
    except Exception as error:  # the backend's own errors share no base class
        raise CannotCut(f"a piece of it cannot be loaded: {reason(error)}") from error
    counts = {entry.name: entry for entry in graph.others if entry.role == "count"}
    shapes: dict[str, TensorShape] = {}
    for native in natives:
        for node in (*native.get_inputs(), *native.get_outputs()):
            if node.name not in counts and node.name not in cut.constants:
                shapes[node.name] = _shape(node)
    for name in (graph.embeds.name, *(name for piece in cut.pieces for name in (*piece.inputs, *piece.outputs))):
        if name not in shapes and name not in counts and name not in cut.constants:
            raise CannotCut(f"no piece of it has {name}")
    return CutSessions(cut, graph, natives, shapes, counts)


def _shape(node: Any) -> TensorShape:
    """Read the type and shape of an input or output."""
    row_axes = [axis for axis, size in enumerate(node.shape) if size == ROWS]
    is_known = all(isinstance(size, int) and size > 0 for size in node.shape if size != ROWS)
    if node.type not in _TYPES or len(row_axes) > 1 or not is_known:
        raise CannotCut(f"a piece of it takes or gives {node.name} as {node.type}{node.shape}")
    dims = tuple(1 if size == ROWS else size for size in node.shape)
    return TensorShape(_TYPES[node.type], dims, row_axes[0] if row_axes else None)
