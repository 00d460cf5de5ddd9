"""How far one model's logits are from another's, and one set of keys and values from another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LAMBDAS", "LogitsAgreement", "TensorError", "compare_logits", "compare_tensors", "kl_divergence", "kv_loss"]

LAMBDAS = (0.3, 0.5, 0.7)
"""Weights of the values in `kv_loss` that are reported."""


@dataclass(frozen=True, slots=True)
class LogitsAgreement:
    """What comparing rows of logits gave.

    Attributes:
        num_rows: rows compared.
        token_agreement: share of rows in which both have the same largest logit.
        kl_mean: mean over the rows of the KL divergence from the reference's probabilities, in nats.
        kl_max: its largest.
        error: relative L2 difference of the logits, their mean taken out, over all rows.
    """

    num_rows: int
    token_agreement: float
    kl_mean: float
    kl_max: float
    error: float


@dataclass(frozen=True, slots=True)
class TensorError:
    """How far a tensor is from its reference.

    Attributes:
        error: relative L2 difference.
        coverage: share of the elements that lie within the range that their codes can express; 1 without compression.
    """

    error: float
    coverage: float = 1.0


def compare_logits(reference: NDArray[np.float32], other: NDArray[np.float32]) -> LogitsAgreement:
    """Compare rows of logits, each float32 (num_rows, vocab_size).

    Raises:
        ValueError: the shapes differ or there are no rows.
    """
    if reference.shape != other.shape or reference.ndim != 2 or not len(reference):
        raise ValueError(f"logits of shapes {reference.shape} and {other.shape} cannot be compared")
    kl = np.array([kl_divergence(one, two) for one, two in zip(reference, other, strict=True)])
    agrees = reference.argmax(axis=1) == other.argmax(axis=1)
    centred = reference - reference.mean(axis=1, keepdims=True)
    difference = centred - (other - other.mean(axis=1, keepdims=True))
    return LogitsAgreement(
        num_rows=len(reference),
        token_agreement=float(agrees.mean()),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        error=_relative(difference, centred),
    )


def kl_divergence(reference: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return sum p log(p / q) in nats, p and q the softmax of two rows of logits. Never below 0."""
    log_p, log_q = _log_softmax(reference), _log_softmax(other)
    p = np.exp(log_p)
    counts = p > 0
    return max(0.0, float((p[counts] * (log_p[counts] - log_q[counts])).sum()))


def compare_tensors(reference: NDArray[np.float32], other: NDArray[np.float32]) -> TensorError:
    """Compare two tensors of one shape.

    Raises:
        ValueError: the shapes differ.
    """
    if reference.shape != other.shape:
        raise ValueError(f"tensors of shapes {reference.shape} and {other.shape} cannot be compared")
    return TensorError(_relative(reference - other, reference))


def kv_loss(keys: TensorError, values: TensorError, weights: Sequence[float] = LAMBDAS) -> tuple[float, ...]:
    """Return `||K - K^||^2 / ||K||^2 + weight * ||V - V^||^2 / ||V||^2` for each weight.

    Both terms are normalised: otherwise a weight would mean something else in each layer.
    """
    return tuple(keys.error**2 + weight * values.error**2 for weight in weights)


def _relative(difference: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    length = float(np.linalg.norm(reference.astype(np.float64)))
    distance = float(np.linalg.norm(difference.astype(np.float64)))
    if not length:
        return 0.0 if not distance else float("inf")
    return distance / length


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
