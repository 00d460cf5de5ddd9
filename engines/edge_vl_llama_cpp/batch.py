"""The batch buffers that llama.cpp reads: tokens or embeddings, their positions and their sequence."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BatchBuffers"]


class BatchBuffers:
    """Buffers for batches of up to a fixed number of rows, all of one sequence. Belongs to the language lane."""

    def __init__(self, llama: Any, num_rows: int, num_position_sections: int) -> None:
        """Allocate them.

        Args:
            llama: the module `llama_cpp.llama_cpp`.
            num_rows: most rows of a batch.
            num_position_sections: positions of an embedding: 4 for M-RoPE, otherwise 1.
        """
        self._sections = num_position_sections
        self._tokens = np.zeros(num_rows, np.int32)
        self._positions = np.zeros(num_rows * num_position_sections, np.int32)
        self._num_sequences = np.ones(num_rows, np.int32)
        self._sequence = np.zeros(1, np.int32)
        self._sequences = np.full(num_rows, self._sequence.ctypes.data, np.uintp)
        self._wants = np.zeros(num_rows, np.int8)
        self._batch = llama.llama_batch()
        self._batch.n_seq_id = _pointer(self._num_sequences, self._batch.n_seq_id)
        self._batch.seq_id = _pointer(self._sequences, self._batch.seq_id)
        self._batch.logits = _pointer(self._wants, self._batch.logits)
        self._batch.pos = _pointer(self._positions, self._batch.pos)
        self._token_pointer = _pointer(self._tokens, self._batch.token)
        self._no_tokens = type(self._batch.token)()
        self._no_embeds = type(self._batch.embd)()

    def of_tokens(self, token_ids: Sequence[int], sequence: int, position: int, *, want_logits: bool) -> Any:
        """Return a batch of text; valid until the next call.

        Args:
            token_ids: in order.
            sequence: the sequence they belong to.
            position: of the first.
            want_logits: whether the last row's logits are computed.
        """
        count = len(token_ids)
        self._tokens[:count] = token_ids
        self._positions[:count] = range(position, position + count)
        self._batch.token = self._token_pointer
        self._batch.embd = self._no_embeds
        return self._finish(count, sequence, want_logits)

    def of_embeds(
        self, rows: NDArray[np.float32], sequence: int, positions: NDArray[np.int32], *, want_logits: bool
    ) -> Any:
        """Return a batch of embeddings; valid until the next call.

        Args:
            rows: float32 (num_rows, hidden_size), contiguous; the caller keeps it alive.
            sequence: the sequence they belong to.
            positions: int32 (num_position_sections, num_rows).
            want_logits: whether the last row's logits are computed.
        """
        count = len(rows)
        self._positions[: count * self._sections] = positions.reshape(-1)
        self._batch.token = self._no_tokens
        self._batch.embd = _pointer(rows, self._batch.embd)
        return self._finish(count, sequence, want_logits)

    def _finish(self, count: int, sequence: int, want_logits: bool) -> Any:
        self._sequence[0] = sequence
        self._wants[:count] = 0
        self._wants[count - 1] = want_logits
        self._batch.n_tokens = count
        return self._batch


def _pointer(array: NDArray[Any], like: Any) -> Any:
    return ctypes.cast(array.ctypes.data, type(like))
