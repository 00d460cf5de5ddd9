"""What a round trip to the broker takes, learned from those that were measured. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curve", "LinkModel", "TrafficKind", "fit"]

TrafficKind = Literal["text", "image", "audio"]

_BASE_AND_ALPHA: dict[TrafficKind, tuple[float, float]] = {
    "text": (0.012, 0.85),
    "image": (0.048, 0.92),
    "audio": (0.024, 0.89),
}
"""Round trip that needs no compensation, in seconds, and the share of what is above it that is compensated."""

_FIRST_EXTRA_S = 0.3

_NUM_EARLY = 32
"""Exchanges of a connection that count as its beginning; those after it are alike."""

_SAMPLES_PER_EXCHANGE = 8
_NUM_LATE_SAMPLES = 64
_NUM_RECENT = 9
_MIN_SAMPLES = 8
_REFIT_AFTER = 64
_MAX_WINDOW_S = 1.0
_UNKNOWN_S = 0.1


@dataclass(frozen=True, slots=True)
class Curve:
    """Round trips after a connection was made: `floor + a (1 - tanh(b n^0.8)) + 0.3 exp(-c n)` seconds.

    `n` counts the exchanges since the connection, the first is 1. The formula as published has no floor and so falls to
    0, which no round trip does. It names no unit of 0.3; in seconds it is a first exchange that pays for what the
    network sets up, in milliseconds it could not be told from noise.

    Attributes:
        floor_s: what it falls to, >= 0.
        a_s: what it falls by, slowly, >= 0.
        b: how fast, > 0.
        c: how fast the extra of the first exchanges goes, > 0.

    Source:
        The white paper on a streaming vision-language runtime that this project follows, its retry and latency decay
        model. Differs: the floor, and that 0.3 is read as seconds.
    """

    floor_s: float
    a_s: float
    b: float
    c: float

    def at(self, num_exchanges: float) -> float:
        """Return the round trip of one exchange, in seconds."""
        slow = self.a_s * (1.0 - math.tanh(self.b * num_exchanges**0.8))
        return self.floor_s + slow + _FIRST_EXTRA_S * math.exp(-self.c * num_exchanges)


def fit(numbers: NDArray[np.float64], rtts_s: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[Curve, float]:
    """Fit the curve, robustly.

    For each pair of `b` and `c` on a grid the rest is a linear fit of two unknowns; the grid is then drawn closer twice
    around the best pair. Points far off are given less weight, three times over.

    Args:
        numbers: float64 (num_points,), exchanges since the connection, >= 1.
        rtts_s: float64 (num_points,), seconds.
        weights: float64 (num_points,), > 0, such as the samples behind each point.

    Returns:
        The curve, and R^2: the share of the (weighted) variance of the points that it explains; 0 where there is none.
    """
    robust = weights.copy()
    curve = Curve(float(np.average(rtts_s, weights=weights)), 0.0, 1.0, 20.0)
    for _ in range(3):
        curve = _fit_once(numbers, rtts_s, robust)
        residuals = rtts_s - np.array([curve.at(number) for number in numbers])
        scale = max(1.4826 * float(np.median(np.abs(residuals))), 1e-6)
        robust = weights / np.maximum(1.0, np.abs(residuals) / (2.0 * scale)) ** 2
    mean = float(np.average(rtts_s, weights=robust))
    total = float(np.sum(robust * (rtts_s - mean) ** 2))
    rest = float(np.sum(robust * residuals**2))
    return curve, (1.0 - rest / total if total > 0 else 0.0)


def _fit_once(numbers: NDArray[np.float64], rtts_s: NDArray[np.float64], weights: NDArray[np.float64]) -> Curve:
    log_b, log_c = (math.log(0.02), math.log(5.0)), (math.log(0.1), math.log(20.0))
    best = Curve(0.0, 0.0, 1.0, 1.0)
    for _ in range(4):
        bs, cs = np.exp(np.linspace(*log_b, 14)), np.exp(np.linspace(*log_c, 12))
        # (num_b, num_c, num_points): what is left for floor and a, and what a is multiplied by.
        shape = 1.0 - np.tanh(bs[:, None, None] * numbers**0.8)
        left = rtts_s - _FIRST_EXTRA_S * np.exp(-cs[None, :, None] * numbers)
        mean_shape = (shape * weights).sum(-1) / weights.sum()
        mean_left = (left * weights).sum(-1) / weights.sum()
        centred = shape - mean_shape[..., None]
        spread = (weights * centred**2).sum(-1)
        a_s = (weights * centred * (left - mean_left[..., None])).sum(-1) / np.maximum(spread, 1e-12)
        a_s = np.maximum(a_s, 0.0)
        floor_s = np.maximum(mean_left - a_s * mean_shape, 0.0)
        error = (weights * (left - floor_s[..., None] - a_s[..., None] * shape) ** 2).sum(-1)
        at_b, at_c = np.unravel_index(int(np.argmin(error)), error.shape)
        b, c = float(bs[at_b]), float(cs[at_c])
        best = Curve(float(floor_s[at_b, at_c]), float(a_s[at_b, at_c]), b, c)
        step_b, step_c = (log_b[1] - log_b[0]) / 13, (log_c[1] - log_c[0]) / 11
        log_b = (math.log(b) - step_b, math.log(b) + step_b)
        log_c = (math.log(c) - step_c, math.log(c) + step_c)
    return best


class LinkModel:
    """What is known of the link to a broker.

    Round trips of the beginnings of all connections are kept by their number, a few each, and the latest of those that
    came later. A curve is fitted when somebody asks and enough is new, not at each exchange.

    Attributes:
        num_exchanges: since the connection was made.
    """

    def __init__(self) -> None:
        self._early: list[deque[float]] = [deque(maxlen=_SAMPLES_PER_EXCHANGE) for _ in range(_NUM_EARLY)]
        self._late: deque[tuple[int, float]] = deque(maxlen=_NUM_LATE_SAMPLES)
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self._curve: Curve | None = None
        self._r_squared = 0.0
        self._spread_s = 0.0
        self._num_new = 0
        self.num_exchanges = 0

    def connected(self) -> None:
        """Begin to count anew: a connection was made."""
        self.num_exchanges = 0
        self._recent.clear()

    def exchanged(self, rtt_s: float) -> None:
        """Take in how long one message took to be confirmed, in seconds."""
        self.num_exchanges += 1
        self._num_new += 1
        self._recent.append(rtt_s)
        if self.num_exchanges <= _NUM_EARLY:
            self._early[self.num_exchanges - 1].append(rtt_s)
        else:
            self._late.append((self.num_exchanges, rtt_s))

    @property
    def curve(self) -> Curve | None:
        """The fitted curve; None: too little is known."""
        self._refit()
        return self._curve

    @property
    def r_squared(self) -> float:
        """Share of the variance of the round trips' medians, by their number, that the curve explains."""
        self._refit()
        return self._r_squared

    def expected_s(self, num_exchanges: int | None = None) -> float:
        """Return the round trip to be expected, in seconds.

        Args:
            num_exchanges: of which exchange since the connection, >= 1; None: the next one.
        """
        self._refit()
        if self._curve is not None:
            return self._curve.at(self.num_exchanges + 1 if num_exchanges is None else num_exchanges)
        return float(np.median(self._recent)) if self._recent else _UNKNOWN_S

    def timeout_s(self, min_s: float = 5.0, max_s: float = 30.0) -> float:
        """Return how long to wait for a confirmation until the link is taken for dead: the expected and its spread."""
        return min(max(self.expected_s() + 8.0 * self._spread_s, min_s), max_s)

    def window_s(self, kind: TrafficKind) -> float:
        """Return for how long what is small should be joined before it is sent; 0 on a fast link.

        `0 if rtt < base else (rtt - base) * alpha`, of the median of the latest round trips, or of the expected one
        while there are too few since the connection; at most a second.

        Source:
            The same white paper, its dynamic compensation of token cadence; base and alpha as given there.
        """
        base_s, alpha = _BASE_AND_ALPHA[kind]
        rtt_s = sorted(self._recent)[len(self._recent) // 2] if len(self._recent) >= 3 else self.expected_s()
        return 0.0 if rtt_s < base_s else min((rtt_s - base_s) * alpha, _MAX_WINDOW_S)

    def _refit(self) -> None:
        if self._num_new == 0 or (self._curve is not None and self._num_new < _REFIT_AFTER):
            return
        points = [(float(index + 1), rtts) for index, rtts in enumerate(self._early) if rtts]
        numbers = [number for number, _ in points]
        medians = [float(np.median(rtts)) for _, rtts in points]
        weights = [float(len(rtts)) for _, rtts in points]
        all_rtts = [(number, rtt_s) for number, rtts in points for rtt_s in rtts]
        all_rtts += [(float(number), rtt_s) for number, rtt_s in self._late]
        if self._late:
            numbers.append(float(np.median([number for number, _ in self._late])))
            medians.append(float(np.median([rtt_s for _, rtt_s in self._late])))
            weights.append(float(len(self._late)))
        if len(all_rtts) < _MIN_SAMPLES:
            return
        self._curve, self._r_squared = fit(np.array(numbers), np.array(medians), np.array(weights))
        residuals = [abs(rtt_s - self._curve.at(number)) for number, rtt_s in all_rtts]
        self._spread_s = 1.4826 * float(np.median(residuals))
        self._num_new = 0
