"""One pass over the rows of a step: buffers for a number of rows, bound to the pieces once and used again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_vl_onnxruntime.cut_sessions import CutSessions, TensorShape
from edge_vl_onnxruntime.session import import_onnxruntime

if TYPE_CHECKING:
    from edge_vl_kernels.kv import KVKernels, KVRows, KVStep
    from edge_vl_onnxruntime.graph_cut import CutAttention, Operand

__all__ = ["BufferPlan", "Buffers", "CutPass", "HeadPass", "Observer"]

Observer = Callable[[int, NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]], None]
"""Called with a layer and its queries, keys and values, float32 (rows, heads, head_dim), before they are attended to.

They are views that are valid during the call. Queries and keys are turned by their positions only where the graph does
that itself.
"""

_ALIGNMENT = 64


class BufferPlan:
    """Which tensors share memory: one that is not needed any more leaves its place to a later one of the same size.

    Attributes:
        places: of each tensor that a piece but the last one or attention writes.
        shapes: of the first tensor of each place; the others are as large.
    """

    def __init__(self, sessions: CutSessions) -> None:
        """Plan."""
        cut = sessions.cut
        born: dict[str, int] = {}
        needed: dict[str, int] = {}
        # Piece i runs at time 2 i, the attention behind it at 2 i + 1. What the last piece takes is copied before.
        for index, piece in enumerate(cut.pieces):
            needed.update(dict.fromkeys(piece.inputs, 2 * index))
            if index < len(cut.attentions):
                born.update(dict.fromkeys(piece.outputs, 2 * index))
        for index, attention in enumerate(cut.attentions):
            born[attention.context] = 2 * index + 1
            for operand in (attention.query, attention.key, attention.value):
                needed[operand.name] = max(needed.get(operand.name, 0), 2 * index + 1)
        self.places: dict[str, int] = {}
        self.shapes: list[TensorShape] = []
        free: dict[tuple[int, bool], list[int]] = {}
        held: dict[str, int] = {}
        for name, time in sorted(born.items(), key=lambda entry: entry[1]):
            for other in [other for other, end in held.items() if end < time]:
                del held[other]
                free[_size(sessions.shapes[other])].append(self.places[other])
            shape = sessions.shapes[name]
            places = free.setdefault(_size(shape), [])
            if not places:
                places.append(len(self.shapes))
                self.shapes.append(shape)
            self.places[name] = places.pop()
            held[name] = max(needed.get(name, time), time)


class Buffers:
    """Memory for the tensors of a pass.

    Attributes:
        max_rows: of the pass.
    """

    def __init__(self, plan: BufferPlan, max_rows: int) -> None:
        """Take it from the system, which gives what is really used."""
        self.max_rows = max_rows
        self._plan = plan
        self._places = [_aligned(shape.nbytes(max_rows)) for shape in plan.shapes]

    def view(self, name: str, shape: TensorShape, num_rows: int) -> NDArray[Any]:
        """Return a tensor for so many rows; one that the plan does not have gets memory of its own."""
        place = self._plan.places.get(name)
        nbytes = shape.nbytes(num_rows)
        memory = _aligned(nbytes) if place is None else self._places[place][:nbytes]
        tensor: NDArray[Any] = memory.view(shape.dtype).reshape(shape.of(num_rows))
        return tensor


class _Bound:
    """A piece whose inputs and outputs are bound to buffers."""

    def __init__(self, sessions: CutSessions, index: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        piece, native = sessions.cut.pieces[index], sessions.natives[index]
        make = import_onnxruntime().OrtValue.ortvalue_from_numpy
        self._binding = native.io_binding()
        self._counts: list[NDArray[Any]] = []
        for name in piece.inputs:
            if name in sessions.counts:
                entry = sessions.counts[name]
                self._counts.append(np.zeros((1,) * entry.rank, entry.dtype))
                array = self._counts[-1]
            else:
                array = sessions.cut.constants[name] if name in sessions.cut.constants else arrays[name]
            self._binding.bind_ortvalue_input(name, make(array))
        for name in piece.outputs:
            self._binding.bind_ortvalue_output(name, make(arrays[name]))
        self.run = functools.partial(native.run_with_iobinding, self._binding)

    def set_count(self, count: int) -> None:
        """Say how many rows of logits are wanted."""
        for array in self._counts:
            array.fill(count)


class CutPass:
    """All pieces but the last for a number of rows, with the attention between them."""

    def __init__(self, sessions: CutSessions, buffers: Buffers, kernels: KVKernels, num_rows: int) -> None:
        """Bind everything.

        Args:
            sessions: the pieces.
            buffers: memory for at least so many rows, perhaps shared with other passes.
            kernels: attention.
            num_rows: of the pass.
        """
        self.num_rows = num_rows
        self._num_logits = 0
        cut, graph, shapes = sessions.cut, sessions.graph, sessions.shapes
        names = dict.fromkeys(name for piece in cut.pieces for name in piece.inputs if name in shapes)
        names.update(dict.fromkeys(name for piece in cut.pieces[:-1] for name in piece.outputs))
        self.arrays = {name: buffers.view(name, shapes[name], num_rows) for name in names}
        self.embeds = self.arrays[graph.embeds.name]
        self.positions: NDArray[Any] | None = self.arrays[cut.positions].reshape(-1) if cut.positions else None
        self._pieces = [_Bound(sessions, index, self.arrays) for index in range(len(cut.attentions))]
        staging = _Staging(num_rows)
        layers = [_Layer(attention, self.arrays, staging, kernels) for attention in cut.attentions]
        self._steps = [
            (piece.run, layer.widen, layer.rows, layer.narrow)
            for piece, layer in zip(self._pieces, layers, strict=True)
        ]

    def run(self, step: KVStep, num_logits: int, observer: Observer | None) -> None:
        """Run it.

        Args:
            step: the caches' part.
            num_logits: rows that logits are wanted for.
            observer: sees queries, keys and values.

        Raises:
            ValueError: keys or values are not finite, or too large for the precision they are kept in.
            Exception: the backend's own errors share no base class.
        """
        if num_logits != self._num_logits:
            for piece in self._pieces:
                piece.set_count(num_logits)
            self._num_logits = num_logits
        for layer, (run, widen, rows, narrow) in enumerate(self._steps):
            run()
            for target, source in widen:
                np.copyto(target, source)
            if observer is not None:
                observer(layer, *_seen(rows))
            step.run(layer, rows)
            if narrow is not None:
                np.copyto(*narrow)


class HeadPass:
    """The last piece for those rows that logits are wanted for."""

    def __init__(self, sessions: CutSessions, num_rows: int) -> None:
        """Bind everything to buffers of its own."""
        self.num_rows = num_rows
        graph, piece, shapes = sessions.graph, sessions.cut.pieces[-1], sessions.shapes
        arrays = {
            name: np.empty(shapes[name].of(num_rows), shapes[name].dtype)
            for name in (*piece.inputs, *piece.outputs)
            if name in shapes
        }
        self._sources = [(name, arrays[name], shapes[name].row_axis) for name in piece.inputs if name in shapes]
        self._piece = _Bound(sessions, len(sessions.cut.pieces) - 1, arrays)
        self._piece.set_count(num_rows)
        self._logits: NDArray[Any] = arrays[graph.logits].reshape(num_rows, graph.vocab_size)

    def run(self, source: CutPass, places: Sequence[int]) -> NDArray[Any]:
        """Run it.

        Args:
            source: the pass that was run before.
            places: which of its rows are meant, as many as this one has, ascending.

        Returns:
            The logits (num_rows, vocab_size): a view that the next run writes to.

        Raises:
            Exception: the backend's own errors share no base class.
        """
        is_all = source.num_rows == self.num_rows
        for name, target, axis in self._sources:
            rows = source.arrays[name]
            np.copyto(target, rows if is_all or axis is None else rows.take(places, axis))
        self._piece.run()
        return self._logits


class _Staging:
    """Float32 rows of a float16 graph, the same for all layers."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._arrays: dict[tuple[str, int, int], NDArray[np.float32]] = {}

    def get(self, use: str, heads: int, head_dim: int) -> NDArray[np.float32]:
        """Return float32 (num_rows, heads, head_dim)."""
        key = use, heads, head_dim
        if key not in self._arrays:
            self._arrays[key] = np.empty((self._num_rows, heads, head_dim), np.float32)
        return self._arrays[key]


class _Layer:
    """What happens between two pieces."""

    def __init__(
        self, attention: CutAttention, arrays: Mapping[str, NDArray[Any]], staging: _Staging, kernels: KVKernels
    ) -> None:
        self.widen: list[tuple[NDArray[np.float32], NDArray[Any]]] = []
        self.narrow: tuple[NDArray[Any], NDArray[np.float32]] | None = None
        heads, kv_heads, head_dim = attention.num_query_heads, attention.num_kv_heads, attention.head_dim

        def rows(use: str, operand: Operand, num_heads: int) -> NDArray[np.float32]:
            view = _head_rows(arrays[operand.name], operand.layout, operand.offset, num_heads, head_dim)
            if view.dtype == np.float32:
                return view
            wide = staging.get(use, num_heads, head_dim)
            self.widen.append((wide, view))
            return wide

        context = _head_rows(arrays[attention.context], "rows", 0, heads, head_dim)
        if context.dtype != np.float32:
            wide = staging.get("context", heads, head_dim)
            self.narrow = (context, wide)
            context = wide
        self.rows: KVRows = kernels.rows(
            rows("query", attention.query, heads),
            rows("key", attention.key, kv_heads),
            rows("value", attention.value, kv_heads),
            context,
        )


def _head_rows(values: NDArray[Any], layout: str, offset: int, heads: int, head_dim: int) -> NDArray[Any]:
    """Return a view (rows, heads, head_dim) of `rows` (1, rows, width) or `heads` (1, heads, rows, head_dim)."""
    if layout == "heads":
        rows: NDArray[Any] = values[0].transpose(1, 0, 2)
    else:
        # Parting the channels of a row is a view, whatever the strides are.
        rows = values[0, :, offset : offset + heads * head_dim].reshape(-1, heads, head_dim)
    return rows


def _seen(rows: KVRows) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    if rows.queries is None:
        raise ValueError("there are no queries")
    return rows.queries, rows.keys, rows.values


def _size(shape: TensorShape) -> tuple[int, bool]:
    return shape.nbytes(1), shape.row_axis is not None


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    """Return uint8 (nbytes,) on a border of 64 bytes, not written to."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes]
