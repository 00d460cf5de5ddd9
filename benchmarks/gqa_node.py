"""ONNX Runtime's `GroupQueryAttention` alone: one row against a cache that is written in place, what it does best."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edge_vl.made_models.onnx_graph import CONTRIB_DOMAIN, IR_VERSION, OPSET
from edge_vl_kernels.kv_format import KVGeometry

__all__ = ["CachePrecision", "GqaNode"]

CachePrecision = Literal["f32", "int8", "int4"]

_KINDS: dict[CachePrecision, tuple[int, type[np.generic], int]] = {
    "f32": (TensorProto.FLOAT, np.float32, 1),
    "int8": (TensorProto.INT8, np.int8, 1),
    "int4": (TensorProto.UINT8, np.uint8, 2),
}
"""Type of the cache in the graph and in NumPy, and channels in an element."""

_RANGE = {"int8": 127.0, "int4": 7.0}


class GqaNode:
    """One node in a session of its own; past and present are one buffer, everything is bound once. It does not rotate.

    Int8 and int4 caches have static symmetric scales per head and channel, the finest that the operator knows, found
    from the very values that are stored.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        precision: CachePrecision,
        *,
        threads: int = 1,
    ) -> None:
        """Load the node and store the entries.

        Args:
            geometry: sizes; of one layer.
            keys: float32 (num_kv_heads, num_entries, head_dim), what is in the cache.
            values: likewise.
            precision: of the cache.
            threads: of the session.
        """
        self._precision = precision
        self._num_entries = keys.shape[1]
        self._arrays: dict[str, NDArray[Any]] = {
            f"past_{name}": _with_room(_stored(entries, precision)) for name, entries in _both(keys, values)
        }
        if precision != "f32":
            for name, entries in _both(keys, values):
                self._arrays[f"{name[0]}_scale"] = _scales(entries, precision)[None]
        query_width, kv_width = (
            heads * geometry.head_dim for heads in (geometry.num_query_heads, geometry.num_kv_heads)
        )
        self._arrays |= {
            "query": np.zeros((1, 1, query_width), np.float32),
            "key": np.zeros((1, 1, kv_width), np.float32),
            "value": np.zeros((1, 1, kv_width), np.float32),
            "seqlens_k": np.array([self._num_entries], np.int32),
            "total_sequence_length": np.array(self._num_entries + 1, np.int32),
        }
        self.context = np.zeros((1, 1, query_width), np.float32)
        """float32 (1, 1, num_query_heads * head_dim), the result of `run`."""
        self._session, self._binding = self._bound(geometry, threads)

    @property
    def nbytes(self) -> int:
        """Bytes of the entries that a run reads: codes alone."""
        return sum(array.nbytes for name, array in self._arrays.items() if name.startswith("past_"))

    def set_row(self, query: NDArray[np.float32], key: NDArray[np.float32], value: NDArray[np.float32]) -> None:
        """Set what `run` appends and attends with, (heads, head_dim) each."""
        for name, row in (("query", query), ("key", key), ("value", value)):
            self._arrays[name][:] = row.reshape(1, 1, -1)

    def run(self) -> None:
        """Append the row behind the entries, at the same place every time, and attend to all of them."""
        self._session.run_with_iobinding(self._binding)

    def _bound(self, geometry: KVGeometry, threads: int) -> tuple[Any, Any]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(
            self._graph(geometry).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        make = onnxruntime.OrtValue.ortvalue_from_numpy  # keeps the array's own memory
        for name, array in self._arrays.items():
            value = make(array)
            binding.bind_ortvalue_input(name, value)
            if name.startswith("past_"):
                binding.bind_ortvalue_output(name.replace("past_", "present_"), value)
        binding.bind_ortvalue_output("context", make(self.context))
        return session, binding

    def _graph(self, geometry: KVGeometry) -> Any:
        kind = _KINDS[self._precision][0]
        types = {"seqlens_k": TensorProto.INT32, "total_sequence_length": TensorProto.INT32}
        inputs = []
        for name, array in self._arrays.items():
            dtype = kind if name.startswith("past_") else types.get(name, TensorProto.FLOAT)
            inputs.append(helper.make_tensor_value_info(name, dtype, array.shape))
        outputs = [helper.make_tensor_value_info("context", TensorProto.FLOAT, self.context.shape)]
        outputs += [
            helper.make_tensor_value_info(f"present_{name}", kind, self._arrays[f"past_{name}"].shape)
            for name in ("key", "value")
        ]
        attributes: dict[str, Any] = {}
        names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
        if self._precision != "f32":
            attributes = {
                "k_quant_type": "PER_CHANNEL",
                "v_quant_type": "PER_CHANNEL",
                "kv_cache_bit_width": int(self._precision[-1]),
            }
            names += [""] * 5 + ["k_scale", "v_scale"]
        node = helper.make_node(
            "GroupQueryAttention", names, ["context", "present_key", "present_value"], domain=CONTRIB_DOMAIN,
            num_heads=geometry.num_query_heads, kv_num_heads=geometry.num_kv_heads, **attributes,
        )  # fmt: skip
        graph = helper.make_graph([node], "attention", inputs, outputs)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB_DOMAIN, 1)]
        return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def _both(
    keys: NDArray[np.float32], values: NDArray[np.float32]
) -> tuple[tuple[str, NDArray[np.float32]], tuple[str, NDArray[np.float32]]]:
    return ("key", keys), ("value", values)


def _scales(entries: NDArray[np.float32], precision: CachePrecision) -> NDArray[np.float32]:
    """Return float32 (num_kv_heads, 1, head_dim)."""
    scales: NDArray[np.float32] = np.abs(entries).max(axis=1, keepdims=True) / np.float32(_RANGE[precision])
    return scales


def _stored(entries: NDArray[np.float32], precision: CachePrecision) -> NDArray[Any]:
    """Return the entries as they lie in the cache, (num_kv_heads, num_entries, elements)."""
    stored: NDArray[Any] = entries
    if precision == "f32":
        return stored
    codes = np.rint(entries / _scales(entries, precision))
    if precision == "int8":
        stored = codes.astype(np.int8)
        return stored
    nibbles = (codes + 8).astype(np.uint8)
    packed: NDArray[np.uint8] = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    return packed


def _with_room(entries: NDArray[Any]) -> NDArray[Any]:
    """Return (1, num_kv_heads, num_entries + 1, elements)."""
    heads, num_entries, width = entries.shape
    buffer = np.zeros((1, heads, num_entries + 1, width), entries.dtype)
    buffer[0, :, :num_entries] = entries
    return buffer
