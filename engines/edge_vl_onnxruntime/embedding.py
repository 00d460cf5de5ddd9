"""Token embeddings: the `embed_tokens` graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import EngineFault, ModelError
from edge_vl_onnxruntime.session import ENGINE, Session

__all__ = ["Embedding"]

_MAX_KEPT = 1024


class Embedding:
    """Looks token ids up."""

    def __init__(self, session: Session, dtype: Any, hidden_size: int) -> None:
        """Read the graph.

        Args:
            session: the loaded graph.
            dtype: what the decoder wants.
            hidden_size: how wide it wants it.

        Raises:
            ModelError: the graph is not a lookup of token ids, or too wide or narrow.
        """
        inputs, outputs = session.native.get_inputs(), session.native.get_outputs()
        if len(inputs) != 1 or inputs[0].type not in {"tensor(int64)", "tensor(int32)"} or len(inputs[0].shape) != 2:
            found = ", ".join(f"{node.name} {node.type}{node.shape}" for node in inputs)
            raise ModelError(
                f"{session.path} should take input_ids int64 (batch, tokens); it takes {found}", file=str(session.path)
            )
        width = outputs[0].shape[-1]
        if isinstance(width, int) and width != hidden_size:
            raise ModelError(
                f"{session.path} gives embeddings of width {width}, the decoder takes {hidden_size}",
                file=str(session.path),
            )
        self._native: Any = session.native
        self._input = inputs[0].name
        self._outputs = [outputs[0].name]
        self._dtype = dtype
        self._kept: dict[int, NDArray[Any]] = {}
        self._ids: NDArray[Any] = np.zeros((1, 1), np.int64 if inputs[0].type == "tensor(int64)" else np.int32)

    def one(self, token_id: int) -> NDArray[Any]:
        """Return (1, 1, hidden_size), not to be written to; a call for each token of an answer would cost more."""
        row = self._kept.get(token_id)
        if row is None:
            self._ids[0, 0] = token_id
            row = self._run(self._ids)
            if len(self._kept) == _MAX_KEPT:
                self._kept.clear()
            self._kept[token_id] = row
        return row

    def many(self, token_ids: Sequence[int]) -> NDArray[Any]:
        """Return (1, num_tokens, hidden_size)."""
        return self._run(np.array([token_ids], self._ids.dtype))

    def close(self) -> None:
        """Give the memory back."""
        self._native = None
        self._kept.clear()

    def _run(self, ids: NDArray[Any]) -> NDArray[Any]:
        if self._native is None:
            raise EngineFault(ENGINE, "prefill", "the language model is closed")
        embeds: NDArray[Any] = self._native.run(self._outputs, {self._input: ids})[0]
        return embeds if embeds.dtype == self._dtype else embeds.astype(self._dtype)
