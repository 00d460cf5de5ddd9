"""From a row of logits to a token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_vl.option_checks import require_number, require_whole_number

__all__ = ["Sampler", "Sampling"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. The defaults are greedy.

    The order is: repetition penalty, temperature, top-k, top-p, min-p, draw.

    Attributes:
        temperature: 0 takes the most likely token; larger is freer; 0, or from 0.001 to 100.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this; 0 < top_p <= 1.
        min_p: drop tokens less likely than this share of the most likely one; 0 <= min_p <= 1.
        repetition_penalty: divides positive and multiplies negative logits of tokens of the answer so far;
            from 0.01 to 100.
        seed: equal seeds give equal answers; >= 0.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            RequestError: naming the field and its range.
        """
        if isinstance(self.temperature, bool) or self.temperature != 0:
            require_number(self.temperature, "temperature", 0.001, 100, "0, or from 0.001 to 100")
        require_whole_number(self.top_k, "top_k", 0)
        require_number(self.top_p, "top_p", 1e-6, 1, "above 0 and at most 1")
        require_number(self.min_p, "min_p", 0, 1)
        require_number(self.repetition_penalty, "repetition_penalty", 0.01, 100)
        require_whole_number(self.seed, "seed", 0)


class Sampler:
    """Chooses the tokens of one answer."""

    def __init__(self, sampling: Sampling) -> None:
        """Start with an empty answer."""
        self._sampling = sampling
        self._random: np.random.Generator | None = None  # takes a tenth of a millisecond, and most need none
        self._seen: set[int] = set()

    def choose(self, logits: NDArray[np.float32]) -> int:
        """Choose the next token.

        Args:
            logits: float32 (vocab_size,), finite or -inf, at least one finite; not changed.

        Returns:
            The token's id.
        """
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0 and self._seen:
            logits = self._penalised(logits)
        token_id = int(logits.argmax()) if sampling.temperature == 0.0 else self._draw(logits)
        if sampling.repetition_penalty != 1.0:
            self._seen.add(token_id)
        return token_id

    def _penalised(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        penalty = np.float32(self._sampling.repetition_penalty)
        seen = np.fromiter(self._seen, np.int64, len(self._seen))
        values = logits[seen]
        logits = logits.copy()
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        return logits

    def _draw(self, logits: NDArray[np.float32]) -> int:
        sampling = self._sampling
        ids: NDArray[np.int64] | None = None  # None: all of them, in order
        if 0 < sampling.top_k < logits.size:
            ids = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
            ids.sort()  # ties and order must not depend on how the partition went
            logits = logits[ids]
        scaled = (logits.astype(np.float64) - float(logits.max())) / sampling.temperature
        weights = np.exp(scaled)
        if sampling.top_p < 1.0:
            weights, ids = _nucleus(weights, ids, sampling.top_p)
        if sampling.min_p > 0.0:
            kept = weights >= sampling.min_p * weights.max()
            ids = np.flatnonzero(kept) if ids is None else ids[kept]
            weights = weights[kept]
        cumulative = np.cumsum(weights)
        if self._random is None:
            self._random = np.random.Generator(np.random.PCG64(sampling.seed))
        place = int(np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right"))
        place = min(place, weights.size - 1)
        return place if ids is None else int(ids[place])


def _nucleus(
    weights: NDArray[np.float64], ids: NDArray[np.int64] | None, top_p: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Keep the most likely entries whose share first reaches top_p; most likely first.

    Entries below `(1 - top_p) / size` of the whole can never be needed: together they weigh less than what top_p
    leaves over. Leaving them out first makes the sort short, and changes nothing.
    """
    total = weights.sum()
    candidates = np.flatnonzero(weights >= total * (1.0 - top_p) / weights.size)
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    shares = np.cumsum(weights[order]) / total
    count = int(np.searchsorted(shares, top_p, side="left")) + 1
    order = order[:count]
    return weights[order], (order if ids is None else ids[order])
