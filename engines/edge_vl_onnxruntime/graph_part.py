"""A few nodes of a graph, run by themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from edge_vl_onnxruntime.decoder_graph import ROLES
from edge_vl_onnxruntime.graph_cut import CannotCut
from edge_vl_onnxruntime.graph_rows import RowAxes
from edge_vl_onnxruntime.graph_skeleton import GraphNode, Skeleton
from edge_vl_onnxruntime.graph_trace import CacheSizes, Length, Trace, describe_input
from edge_vl_onnxruntime.session import import_onnxruntime, reason

__all__ = ["GraphPart"]

_SEVERITY_FATAL = 4


class GraphPart:
    """The nodes between some tensors and some others.

    Attributes:
        borders: tensors that stand for what comes before, as far as they are needed.
        inputs: of the graph, likewise.
        largest: elements of the largest tensor at the trace's length; infinite where that cannot be told.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        trace: Trace,
        axes: RowAxes,
        sizes: CacheSizes,
        *,
        borders: Set[str],
        results: Sequence[str],
        operators: Set[str],
    ) -> None:
        """Collect the nodes and load them.

        Args:
            skeleton: of the whole graph.
            trace: of any length.
            axes: of rows.
            sizes: of the cache.
            borders: tensors whose producers are left out.
            results: what to compute.
            operators: that may occur.

        Raises:
            CannotCut: another operator occurs, or the backend refuses the nodes.
        """
        nodes, taken = _between(skeleton, borders, results, operators)
        self.borders = tuple(name for name in taken if name in borders)
        self.inputs = tuple(name for name in taken if name not in borders)
        shapes = [trace.shapes.get(name) for node in nodes for name in node.outputs if name]
        self.largest = max((math.inf if shape is None else _num_elements(shape) for shape in shapes), default=0)
        self._axes, self._sizes, self._results = axes, sizes, list(results)
        self._types = {name: helper.tensor_dtype_to_np_dtype(trace.dtypes[name]) for name in taken}
        self._ranks = {name: len(trace.shapes[name]) for name in taken}
        described = [
            helper.make_tensor_value_info(name, trace.dtypes[name], [None] * self._ranks[name]) for name in taken
        ]
        outputs = [helper.make_tensor_value_info(name, trace.dtypes[name], None) for name in results]
        self._session = _open(skeleton.message(nodes, described, outputs), str(skeleton.folder))

    def shape(self, border: str, length: Length) -> tuple[int, ...]:
        """Return the shape of a border for a length of run."""
        return self._axes.shape_with(border, length.rows)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of a border or of an input."""
        dtype: np.dtype[Any] = np.dtype(self._types[name])
        return dtype

    def run(self, length: Length, data: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute the results.

        Args:
            length: of the run.
            data: borders and inputs; the others are zero, but for positions and masks, which are those of one sequence.

        Raises:
            CannotCut: the backend refuses.
        """
        feeds = {name: data.get(name) for name in (*self.borders, *self.inputs)}
        zeros: dict[tuple[Any, ...], NDArray[Any]] = {}  # the caches of all layers are one array
        for name, given in feeds.items():
            if given is None:
                feeds[name] = self._default(name, length, zeros)
        try:
            results: list[NDArray[Any]] = self._session.run(self._results, feeds)
        except Exception as error:  # the backend's own errors share no base class
            raise CannotCut(f"its attention does not run by itself: {reason(error)}") from error
        return results

    def _default(self, name: str, length: Length, zeros: dict[tuple[Any, ...], NDArray[Any]]) -> NDArray[Any]:
        dtype, number = self._types[name], None
        if name in self.borders:
            shape = self.shape(name, length)
        else:
            shape, number = describe_input(name, self._ranks[name], self._sizes, length)
            if ROLES.get(name) == "positions":
                return np.arange(length.past, length.past + length.rows, dtype=dtype).reshape(shape)
        if number is not None:
            return np.full(shape, number, dtype)
        return zeros.setdefault((shape, dtype), np.zeros(shape, dtype))


def _num_elements(shape: tuple[int | None, ...]) -> float:
    return math.prod(math.inf if size is None else size for size in shape)


def _between(
    skeleton: Skeleton, borders: Set[str], results: Sequence[str], operators: Set[str]
) -> tuple[list[GraphNode], list[str]]:
    """Walk back from the results; return nodes in order, and the borders and inputs that they begin with."""
    wanted: set[int] = set()
    taken: dict[str, None] = {}
    ahead, seen = list(results), set(results)
    while ahead:
        name = ahead.pop()
        node = skeleton.producers.get(name)
        if name in borders or name in skeleton.inputs:
            taken[name] = None
        elif node is not None and id(node) not in wanted:
            if node.op not in operators:
                raise CannotCut(f"its attention or its mask uses {node.op}, which is not known there")
            wanted.add(id(node))
            sources = [source for source in node.inputs if source and source not in seen]
            seen.update(sources)
            ahead += sources
    return [node for node in skeleton.nodes if id(node) in wanted], list(taken)


def _open(graph: bytes, folder: str) -> Any:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SEVERITY_FATAL
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CannotCut(f"its attention does not load by itself: {reason(error)}") from error
