"""The time axis of a picture: where a moment stands, and what is written beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["TimeAxis", "TimePiece", "clock_text", "time_axis"]

MIN_WORK_SHARE = 0.4
"""Least share of the picture for the work up to the first token: what is before and behind is drawn tighter."""

_WORK_SHARE = 0.62
_SIDE_SHARE = 0.38
_MIN_SIDE_SHARE = 0.13
_MIN_PIECE_S = 1e-6
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


@dataclass(frozen=True, slots=True)
class TimePiece:
    """A part of the axis with one scale.

    Attributes:
        start_s: first moment.
        stop_s: last moment.
        left: where the first moment stands, pixels.
        right: where the last one stands.
    """

    start_s: float
    stop_s: float
    left: float
    right: float

    @property
    def pixels_per_s(self) -> float:
        """Scale."""
        return (self.right - self.left) / (self.stop_s - self.start_s)


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """One to three pieces, one behind the other, each with its own scale.

    Attributes:
        pieces: in order of time.
        work: which of them has the work up to the first token.
    """

    pieces: tuple[TimePiece, ...]
    work: int

    def place(self, at_s: float) -> float:
        """Return where a moment stands; what is outside stands at the end."""
        piece = next((piece for piece in self.pieces if at_s <= piece.stop_s), self.pieces[-1])
        at_s = min(max(at_s, piece.start_s), piece.stop_s)
        return piece.left + (at_s - piece.start_s) * piece.pixels_per_s

    def tightness(self, index: int) -> float:
        """Return how many times tighter a piece is drawn than the work up to the first token."""
        return self.pieces[self.work].pixels_per_s / self.pieces[index].pixels_per_s

    def ticks(self, index: int, *, spacing: float) -> list[tuple[float, str]]:
        """Return moments of a piece that are round numbers, and how they read.

        Args:
            index: which piece.
            spacing: least distance between two, pixels.
        """
        piece = self.pieces[index]
        step_s = _round_step(spacing / piece.pixels_per_s)
        first = math.ceil(piece.start_s / step_s - 1e-9)
        last = math.floor(piece.stop_s / step_s + 1e-9)
        top_s = last * step_s
        return [
            (number * step_s, clock_text(number * step_s, step_s=step_s, like_s=top_s))
            for number in range(first, last + 1)
        ]


def time_axis(total_s: float, *, work_s: float, first_token_s: float | None, left: float, right: float) -> TimeAxis:
    """Lay out time between two edges of a picture.

    Time runs evenly, unless the work up to the first token, which people look at the picture for, were a small part
    of it: then waiting before it and answering behind it are drawn tighter.

    Args:
        total_s: end of time.
        work_s: when waiting ended and work began; 0 where there was no waiting.
        first_token_s: when the first token was there; None: never.
        left: edge, pixels.
        right: edge, pixels.
    """
    total_s = max(total_s, _MIN_PIECE_S)
    end_s = total_s if first_token_s is None else min(max(first_token_s, _MIN_PIECE_S), total_s)
    work_s = min(max(work_s, 0.0), end_s)
    width = right - left
    borders = [0.0, work_s, end_s, total_s]
    lengths = [stop - start for start, stop in pairwise(borders)]
    if lengths[1] < _MIN_PIECE_S or lengths[1] >= MIN_WORK_SHARE * total_s:
        return TimeAxis((TimePiece(0.0, total_s, left, right),), 0)
    # A side that is short beside the work keeps the scale of the work: it needs no piece of its own.
    is_apart = [lengths[0] > lengths[1] / 2, True, lengths[2] > lengths[1] / 2]
    if not is_apart[0]:
        borders[1] = 0.0
    if not is_apart[2]:
        borders[2] = total_s
    sides = [borders[1], total_s - borders[2]]
    weights = [math.sqrt(side) for side in sides]
    share = _SIDE_SHARE * weights[0] / sum(weights)
    if min(sides) > 0:
        share = min(max(share, _MIN_SIDE_SHARE), _SIDE_SHARE - _MIN_SIDE_SHARE)
    edges = [left, left + share * width, left + (share + _WORK_SHARE) * width, right]
    pieces: list[TimePiece] = []
    work = 0
    for index, (start_s, stop_s) in enumerate(pairwise(borders)):
        if stop_s > start_s:
            work = len(pieces) if index == 1 else work
            pieces.append(TimePiece(start_s, stop_s, edges[index], edges[index + 1]))
    return TimeAxis(tuple(pieces), work)


def clock_text(seconds: float, *, step_s: float | None = None, like_s: float | None = None) -> str:
    """Return a time for people: `850 µs`, `12.5 ms`, `1.20 s`, `2 min 05 s`.

    Args:
        seconds: the time, 0 or above.
        step_s: write as many digits as steps of this length need; None: three digits.
        like_s: use the unit of this time; None: its own.
    """
    if seconds == 0:
        return "0"
    if seconds >= 119.95 and (step_s is None or step_s >= 1):
        has_seconds = seconds < 3599.5 if step_s is None else step_s % 60 != 0
        return _minutes_text(round(seconds), has_seconds=has_seconds)
    size_s = seconds if like_s is None else max(min(like_s, 100.0), seconds)
    unit, unit_s = next((unit for unit in _UNITS if size_s >= 0.9995 * unit[1]), _UNITS[-1])
    value = seconds / unit_s
    if step_s is None:
        digits = 2 - math.floor(math.log10(max(value, 1e-3)) + 2.2e-4)
    else:
        digits = -math.floor(math.log10(step_s / unit_s) + 1e-9)
    return f"{value:.{min(max(digits, 0), 3)}f} {unit}"


def _minutes_text(seconds: int, *, has_seconds: bool) -> str:
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    parts = [f"{hours} h"] if hours else []
    if minutes or has_seconds or not hours:
        parts.append(f"{minutes:02} min" if hours else f"{minutes} min")
    return " ".join([*parts, f"{rest:02} s"] if has_seconds else parts)


def _round_step(least_s: float) -> float:
    """Return the smallest round step that is not below `least_s`."""
    for step_s in _clock_steps(least_s):
        if step_s >= least_s * (1 - 1e-9):
            return step_s
    raise ValueError(f"no step for {least_s} s")


def _clock_steps(least_s: float) -> Sequence[float]:
    if least_s > 20:  # people count minutes and hours in other steps
        minutes_and_hours = [30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0]
        return [*minutes_and_hours, *(86400.0 * 2**power for power in range(64))]
    power = 10.0 ** math.floor(math.log10(max(least_s, 1e-9)))
    return [factor * power for factor in (1.0, 2.0, 5.0, 10.0, 20.0)]
