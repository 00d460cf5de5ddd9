"""Decoders that take turns: each gets a few tokens, then the next one, so that all meet the same weather."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.decode_peers import Decoder

__all__ = ["Times", "check_equal", "ratio", "take_turns"]

_WARM_UP_STEPS = 2
_REST_S = 0.003


@dataclass(slots=True)
class Times:
    """Seconds that a decoder took for a token.

    Attributes:
        of_rounds: the median of each turn.
        of_steps: every token.
    """

    of_rounds: list[float] = field(default_factory=list)
    of_steps: list[float] = field(default_factory=list)


def ratio(ones: Times, others: Times) -> float:
    """Return how many times as long the ones take as the others: the median over the rounds."""
    return statistics.median(one / other for one, other in zip(ones.of_rounds, others.of_rounds, strict=True))


def take_turns(
    decoders: Sequence[Decoder], num_entries: int, *, num_rounds: int, num_steps: int, max_errors: Mapping[str, float]
) -> dict[str, Times]:
    """Fill every decoder and measure the tokens behind.

    Args:
        decoders: with names of their own; the first one computes what the others are compared with.
        num_entries: that are there when it begins; an empty cache is emptied before every turn, others grow.
        num_rounds: turns of each.
        num_steps: tokens of a turn.
        max_errors: largest relative error of the logits, by name; see `check_equal`.

    Returns:
        The times by name.

    Raises:
        RuntimeError: one of them computes something else.
    """
    for decoder in decoders:
        decoder.fill(num_entries)
    check_equal({decoder.name: decoder.step().copy() for decoder in decoders}, max_errors)
    times = {decoder.name: Times() for decoder in decoders}
    for decoder in decoders:
        for _ in range(_WARM_UP_STEPS):
            decoder.step()
    for _ in range(num_rounds):
        for decoder in decoders:
            if not num_entries:
                decoder.fill(0)
            time.sleep(_REST_S)  # threads of the one before that wait actively shall not disturb
            steps_s = []
            for _ in range(num_steps):
                started_s = time.perf_counter()
                decoder.step()
                steps_s.append(time.perf_counter() - started_s)
            times[decoder.name].of_rounds.append(statistics.median(steps_s))
            times[decoder.name].of_steps += steps_s
    return times


def check_equal(logits: Mapping[str, NDArray[np.float32]], max_errors: Mapping[str, float]) -> None:
    """Compare what decoders computed with what the first one did.

    Args:
        logits: float32 (vocab_size), by name.
        max_errors: largest norm of the difference, as a share of the norm, by name.

    Raises:
        RuntimeError: one is beyond its limit.
    """
    names = list(logits)
    expected = logits[names[0]]
    for name in names[1:]:
        error = float(np.linalg.norm(logits[name] - expected) / np.linalg.norm(expected))
        if not error <= max_errors[name]:
            raise RuntimeError(
                f"the logits of {name} are off by {error:.3g} of those of {names[0]}: it does other work"
            )
