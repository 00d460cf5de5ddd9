"""What a decoder graph is fed besides embeddings and its cache: masks, positions and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl_onnxruntime.decoder_graph import Input

__all__ = ["RAMP_BYTES", "DecoderFeeds"]

RAMP_BYTES = 24
"""Of the buffers of positions and of ones, for each position of the context."""


class DecoderFeeds:
    """Buffers that feeds are views of. The backend reads them during a run, so they live as long as the model."""

    def __init__(self, context_length: int) -> None:
        """Make buffers for so many entries."""
        self._ramps: dict[Any, NDArray[Any]] = {
            kind: np.arange(context_length + 1, dtype=kind) for kind in (np.int64, np.int32)
        }
        self._ones: dict[Any, NDArray[Any]] = {
            kind: np.ones((1, context_length), kind) for kind in (np.int64, np.int32)
        }
        self._flags = np.array([False, True])

    def value(self, entry: Input, past: int, num_rows: int, count: int = 1) -> NDArray[Any]:
        """Return the array for one input of a run.

        Args:
            entry: the input.
            past: entries in the cache before the run.
            num_rows: rows of the run.
            count: rows that logits are wanted for.
        """
        kind, role = entry.dtype, entry.role
        if role == "mask":
            return self._ones[kind][:, : past + num_rows]
        if role == "branch":
            return self._flags[int(past > 0) :][:1]
        if role == "positions":
            values = self._ramps[kind][past : past + num_rows]
            return values if entry.rank == 1 else values[None]
        value = {"count": count, "total": past + num_rows, "past": past, "seqlens": past + num_rows - 1}[role]
        return self._ramps[kind][value : value + 1].reshape((1,) * entry.rank)
