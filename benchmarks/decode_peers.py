"""Other ways to decode one token after the other: what the speed of the cut decoder is compared with.

All are filled with the same keys and values, made up and not computed, written straight into their buffers, and all
decode the same token. What costs time besides the decoder is left out for the graphs of ONNX Runtime: they get a ready
embedding and their logits stay where they are.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.kv_rows import KVRowsSource

__all__ = ["Decoder", "Growing", "LlamaCpp", "SharedBuffers", "llama_state", "token_embeds"]

_CPU = ["CPUExecutionProvider"]
_HADAMARD_SIZE = 64


class Decoder(Protocol):
    """A language model with one sequence."""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        ...

    def fill(self, num_entries: int) -> None:
        """Begin anew with so many entries; not measured."""
        ...

    def step(self) -> NDArray[np.float32]:
        """Append one token and return its logits, float32 (vocab_size), valid until the next call."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class _Graph:
    """A whole decoder graph in a session with the backend's own settings, and a binding."""

    def __init__(self, path: Path, threads: int, embeds: NDArray[np.float32], vocab_size: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(path, options, providers=_CPU)
        self.binding = self.session.io_binding()
        names = [node.name for node in self.session.get_inputs()]
        self.past = [name for name in names if name.startswith("past_key_values.")]
        self.present = [name.replace("past_key_values", "present") for name in self.past]
        self.shape = next(node.shape for node in self.session.get_inputs() if node.name == self.past[0])
        self.logits = np.zeros((1, 1, vocab_size), np.float32)
        self.make = onnxruntime.OrtValue.ortvalue_from_numpy  # keeps the array's own memory
        self._embeds = embeds.reshape(1, 1, -1)
        self.binding.bind_ortvalue_input("inputs_embeds", self.make(self._embeds))
        self.binding.bind_ortvalue_output("logits", self.make(self.logits))

    def empty(self, length: int) -> NDArray[np.float32]:
        return np.zeros((1, self.shape[1], length, self.shape[3]), np.float32)


class SharedBuffers:
    """A graph around `GroupQueryAttention`: past and present are one buffer, bound once. ONNX Runtime's best."""

    def __init__(
        self, name: str, path: Path, rows: KVRowsSource, *, capacity: int, threads: int, embeds: NDArray[np.float32],
        vocab_size: int,
    ) -> None:  # fmt: skip
        """Load the graph and reserve the buffers.

        Args:
            name: in tables.
            path: of the graph.
            rows: what `fill` stores.
            capacity: entries of the buffers.
            threads: of the session.
            embeds: float32 (hidden_size), of the token that is decoded.
            vocab_size: length of a row of logits.
        """
        self.name = name
        self._rows = rows
        self._graph = _Graph(path, threads, embeds, vocab_size)
        self._buffers = [self._graph.empty(capacity) for _ in self._graph.past]
        self._ones = np.ones((1, capacity), np.int64)
        self._num_entries = 0
        for past, present, buffer in zip(self._graph.past, self._graph.present, self._buffers, strict=True):
            value = self._graph.make(buffer)
            self._graph.binding.bind_ortvalue_input(past, value)
            self._graph.binding.bind_ortvalue_output(present, value)

    def fill(self, num_entries: int) -> None:
        """Write the entries into the buffers."""
        for number, buffer in enumerate(self._buffers):
            buffer[0, :, :num_entries] = self._rows.entries(number // 2, number % 2 == 1, num_entries)
        self._num_entries = num_entries

    def step(self) -> NDArray[np.float32]:
        """Run the graph on one row."""
        self._num_entries += 1
        self._graph.binding.bind_cpu_input("attention_mask", self._ones[:, : self._num_entries])
        self._graph.session.run_with_iobinding(self._graph.binding)
        row: NDArray[np.float32] = self._graph.logits[0, 0]
        return row

    def close(self) -> None:
        """Drop the session."""
        del self._graph, self._buffers


class Growing:
    """A plain export: every run returns a longer cache, which becomes the next one's input without a copy."""

    def __init__(
        self, name: str, path: Path, rows: KVRowsSource, *, threads: int, embeds: NDArray[np.float32], vocab_size: int
    ) -> None:
        """Load the graph; for the arguments see `SharedBuffers`."""
        self.name = name
        self._rows = rows
        self._graph = _Graph(path, threads, embeds, vocab_size)
        self._values: list[Any] = []
        self._ones = np.ones((1, rows.max_entries), np.int64)
        self._num_entries = 0
        self._position = np.zeros((1, 1), np.int64)
        self._graph.binding.bind_ortvalue_input("position_ids", self._graph.make(self._position))
        self._graph.binding.bind_cpu_input("num_logits_to_keep", np.array(1))

    def fill(self, num_entries: int) -> None:
        """Make the entries the next run's input."""
        arrays = [self._graph.empty(num_entries) for _ in self._graph.past]
        for number, array in enumerate(arrays):
            array[0] = self._rows.entries(number // 2, number % 2 == 1, num_entries)
        self._values = [self._graph.make(array) for array in arrays]
        self._num_entries = num_entries

    def step(self) -> NDArray[np.float32]:
        """Run the graph on one row, its cache outputs allocated by the backend."""
        graph = self._graph
        binding = graph.binding
        self._position[0, 0] = self._num_entries
        self._num_entries += 1
        binding.bind_cpu_input("attention_mask", self._ones[:, : self._num_entries])
        for past, value in zip(graph.past, self._values, strict=True):
            binding.bind_ortvalue_input(past, value)
        for present in graph.present:
            binding.bind_output(present, "cpu")
        graph.session.run_with_iobinding(binding)
        self._values = binding.get_outputs()[1:]
        row: NDArray[np.float32] = graph.logits[0, 0]
        return row

    def close(self) -> None:
        """Drop the session."""
        del self._graph, self._values


class LlamaCpp:
    """llama.cpp, with flash attention; its cache is filled by way of a saved state."""

    def __init__(
        self, name: str, path: Path, rows: KVRowsSource, *, kv: str, capacity: int, threads: int, token_id: int
    ) -> None:
        """Load a GGUF file.

        Args:
            name: in tables.
            path: of the file.
            rows: what `fill` stores.
            kv: precision of keys and values, `f16` or `q8_0`.
            capacity: entries of the cache.
            threads: for a token.
            token_id: what is decoded.
        """
        import llama_cpp

        self.name = name
        self._rows = rows
        self._kv = kv
        kind = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}[kv]
        self._native: Any = llama_cpp
        self._llama: Any = llama_cpp.Llama(
            str(path), n_ctx=capacity, n_threads=threads, n_threads_batch=threads, flash_attn=True, type_k=kind,
            type_v=kind, verbose=False,
        )  # fmt: skip
        self._token = (llama_cpp.llama_token * 1)(token_id)

    def fill(self, num_entries: int) -> None:
        """Load a state that holds the entries.

        Raises:
            RuntimeError: this version of llama.cpp does not take it.
        """
        native, context = self._native, self._llama.ctx
        memory = native.llama_get_memory(context)
        native.llama_memory_clear(memory, True)
        if not num_entries:
            return
        self.step()
        small = (ctypes.c_uint8 * native.llama_state_seq_get_size(context, 0))()
        native.llama_state_seq_get_data(context, small, len(small), 0)
        native.llama_memory_clear(memory, True)
        head = bytes(small)[: len(small) - len(llama_state(self._rows, 1, self._kv))]
        state = head + llama_state(self._rows, num_entries, self._kv)
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if native.llama_state_seq_set_data(context, buffer, len(state), 0) != len(state):
            raise RuntimeError("this version of llama.cpp lays a sequence's state out in another way")

    def step(self) -> NDArray[np.float32]:
        """Decode the token at the next position."""
        context = self._llama.ctx
        if self._native.llama_decode(context, self._native.llama_batch_get_one(self._token, 1)):
            raise RuntimeError("llama.cpp has no room for another token")
        logits = self._native.llama_get_logits_ith(context, -1)
        return np.ctypeslib.as_array(logits, (self._llama.n_vocab(),))

    def close(self) -> None:
        """Give the memory back."""
        self._llama.close()


def token_embeds(folder: Path, token_id: int) -> NDArray[np.float32]:
    """Return the embedding of a token, float32 (hidden_size)."""
    session = onnxruntime.InferenceSession(folder / "onnx" / "embed_tokens.onnx", providers=_CPU)
    embeds: NDArray[np.float32] = session.run(None, {"input_ids": np.array([[token_id]])})[0][0, 0]
    return embeds


def llama_state(rows: KVRowsSource, num_entries: int, kv: str) -> bytearray:
    """Write a sequence's state as llama.cpp reads it, behind a head of its own.

    Args:
        rows: the keys and values; each head's channels are reordered from halves to pairs, as llama.cpp turns them.
        num_entries: of the sequence 0, at positions from 0.
        kv: precision of keys and values, `f16` or `q8_0`; the latter's heads are turned by a Hadamard matrix.

    Raises:
        ValueError: heads have not 64 channels, for which alone the turn is known here.

    Source:
        `llama_kv_cache::state_write` in src/llama-kv-cache.cpp of ggml-org/llama.cpp: number of streams, number of
        cells; position, number of sequences and sequence of every cell; whether values are transposed, number of
        layers; type, bytes of a row, and rows, for the keys of all layers and then for their values. The turn is
        the default of the same file for quantised caches.
    """
    import gguf

    if kv != "f16" and rows.head_dim != _HADAMARD_SIZE:
        raise ValueError(f"{kv} for heads of {rows.head_dim} channels, not {_HADAMARD_SIZE}")
    kind = {"f16": gguf.GGMLQuantizationType.F16, "q8_0": gguf.GGMLQuantizationType.Q8_0}[kv]
    state = bytearray(struct.pack("<II", 1, num_entries))
    cells = np.zeros((num_entries, 3), np.int32)
    cells[:, 0], cells[:, 1] = np.arange(num_entries), 1
    state += cells.tobytes() + struct.pack("<II", 0, rows.num_layers)
    for is_value in (False, True):
        for layer in range(rows.num_layers):
            entries = rows.entries(layer, is_value, num_entries).swapaxes(0, 1)
            _, heads, head_dim = entries.shape
            if not is_value:
                halves = entries.reshape(num_entries, heads, 2, head_dim // 2)
                entries = halves.swapaxes(2, 3).reshape(num_entries, heads, head_dim)
            if kv == "f16":
                data: NDArray[Any] = entries.astype(np.float16)
            else:
                turned = np.ascontiguousarray(entries @ _hadamard(head_dim))
                data = gguf.quants.quantize(turned.reshape(num_entries, heads * head_dim), kind)
            state += struct.pack("<iQ", int(kind), data.nbytes // num_entries) + data.tobytes()
    return state


def _hadamard(size: int) -> NDArray[np.float32]:
    """Return the orthonormal matrix of a size that is a power of two."""
    signs = [[(-1) ** (row & column).bit_count() for column in range(size)] for row in range(size)]
    matrix: NDArray[np.float32] = np.array(signs, np.float32) / np.float32(size**0.5)
    return matrix
