"""What compressing keys and values does to a layer of a model: errors of what is stored, and of attention over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edge_vl.agreement import TensorError
from edge_vl.engine import Prefillable

__all__ = ["CompressedCache", "KVErrors", "KVMeter", "LayerKVError", "attention_logit_error"]


@dataclass(frozen=True, slots=True)
class LayerKVError:
    """How far what a cache holds of one layer is from what the layer was given.

    Attributes:
        keys: as they are attended to, that is, turned by their positions.
        values: likewise.
        logit_error: root mean square of the change of the attention logits; see `attention_logit_error`.
    """

    keys: TensorError
    values: TensorError
    logit_error: float


@dataclass(frozen=True, slots=True)
class KVErrors:
    """The errors of a whole cache.

    Attributes:
        num_tokens: entries of the cache.
        num_compressed: how many of them are quantised.
        layers: of the model, in order; over all entries, compressed or not.
    """

    num_tokens: int
    num_compressed: int
    layers: tuple[LayerKVError, ...]


@runtime_checkable
class CompressedCache(Protocol):
    """A KV cache that says how much of it is quantised."""

    @property
    def num_compressed(self) -> int:
        """Entries of which keys or values of any layer have 8 or 4 bits."""
        ...


@runtime_checkable
class KVMeter(Protocol):
    """A language model that can hold what its caches keep against what it was given. Called from one thread."""

    def layer_errors(self, run: Sequence[Prefillable]) -> KVErrors:
        """Prefill a run into a cache of its own and compare.

        The errors of a layer are its own: its keys and values are those that the compressed layers before it led to.

        Args:
            run: consecutive chunks, at least one token.

        Raises:
            CacheFull: there is no memory for the cache.
            EngineFault: the backend failed, or the run does not fit into the context.
        """
        ...


def attention_logit_error(
    queries: NDArray[np.float32],
    positions: NDArray[np.intp],
    num_compressed: NDArray[np.intp],
    key_errors: NDArray[np.float32],
    scale: float,
) -> float:
    """Return the root mean square of what errors of keys change in attention logits.

    Softmax does not see a change that is the same for all entries, so each query's mean over all entries that it sees
    is left out. Entries that a query sees uncompressed have no error for it and are not counted.

    Args:
        queries: float32 (num_queries, num_query_heads, head_dim).
        positions: of each query's own entry, (num_queries,): it sees this one and those before it.
        num_compressed: how many entries, from the first on, each query sees with their errors, (num_queries,).
        key_errors: float32 (num_entries, num_kv_heads, head_dim).
        scale: of the logits.

    Returns:
        In units of the logits, before softmax; 0 where no query sees a compressed entry.
    """
    num_kv_heads = key_errors.shape[1]
    groups = queries.reshape(len(queries), num_kv_heads, -1, queries.shape[2])
    total, count = 0.0, 0
    for seen in np.unique(num_compressed):
        if not seen:
            continue
        chosen = num_compressed == seen
        changes = scale * np.einsum("nkgd,tkd->nkgt", groups[chosen], key_errors[:seen], optimize=True)
        means = changes.sum(-1, keepdims=True) / (positions[chosen][:, None, None, None] + 1)
        total += float(np.square(changes - means, dtype=np.float64).sum())
        count += changes.size
    return float(np.sqrt(total / count)) if count else 0.0
