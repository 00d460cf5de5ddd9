"""Tiles that look like the ones last encoded at their place, so that a still camera need not encode them again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_vl.plan import ImageGrid, ImageUnit

__all__ = ["SimilarSettings", "SimilarTiles", "block_means"]

_BLOCKS_PER_SIDE = 32
_MIN_BLOCK_SIDE, _MAX_BLOCK_SIDE = 8, 16
_QUIET_FRAMES = 8
_DARK_LEVELS = 32.0
_NOISE_PERCENT = 95
_NOISE_SIGMAS = 1.96


@dataclass(frozen=True, slots=True)
class SimilarSettings:
    """When a tile counts as unchanged. Levels are those of a pixel, 0 to 255.

    A tile is judged by its block of pixels that differs most, after a change of the light was taken out: by the
    distance of the two mean colours, against a multiple of what noise does to one of their channels.

    Attributes:
        noise_factor: a still tile has changed above so many standard deviations of the noise.
        calm_factor: a tile that has just changed counts as still below so many.
        min_levels: distances below this are never a change.
        max_levels: distances above this always are, however noisy the pictures.
        max_light: largest relative change of the light, per colour channel, that is taken out.
        refresh_frames: every unit is renewed at least once in so many frames, a different one each time; 0: never.
    """

    noise_factor: float = 8.0
    calm_factor: float = 6.0
    min_levels: float = 5.0
    max_levels: float = 16.0
    max_light: float = 0.06
    refresh_frames: int = 30


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A unit that was last handed on to be encoded.

    Attributes:
        unit: itself.
        means: float32 (num_rows, num_columns, 3), its block means.
        is_restless: it had changed when it was last compared.
    """

    unit: ImageUnit
    means: NDArray[np.float32]
    is_restless: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Difference:
    """How a unit differs from the one kept at its place.

    Attributes:
        residual: float32 (num_rows, num_columns, 3), difference of the block means without that of the light.
        largest: the longest of these vectors, in levels.
    """

    residual: NDArray[np.float32]
    largest: float


class SimilarTiles:
    """Remembers the units last encoded of one stream of pictures. May be called from any thread, one frame at a time.

    Units are compared with what was encoded, never with what was seen last: small changes add up until they count.

    Source:
        Background subtraction by block means, with the noise from a percentile of the differences. Differs: it is the
        smallest noise of the last frames, so that a scene that moves as a whole does not pass for noise.
    """

    def __init__(self, settings: SimilarSettings | None = None) -> None:
        """Begin with nothing remembered."""
        self._settings = settings or SimilarSettings()
        self._lock = threading.Lock()
        self._layout: object = None
        self._kept: list[_Kept] = []
        self._noise: dict[str, deque[float]] = {}
        self._num_frames = 0

    def forget(self) -> None:
        """Forget every unit and the noise: the next picture is new."""
        with self._lock:
            self._forget()

    def replace(self, grid: ImageGrid) -> tuple[ImageGrid, int]:
        """Put the unit last encoded in the place of every unit that looks the same.

        Args:
            grid: the next picture of the stream.

        Returns:
            The picture with older units in it, and how many of them only look the same: units with equal pixels do not
            count.
        """
        with self._lock:
            layout = _layout(grid)
            if layout != self._layout:
                self._forget()
                self._layout = layout
            means = _all_means(grid.units)
            if not self._kept:
                self._kept = [_Kept(unit, mean, False) for unit, mean in zip(grid.units, means, strict=True)]
                return grid, 0
            self._num_frames += 1
            return self._replace(grid, means)

    def _forget(self) -> None:
        self._layout, self._kept, self._num_frames = None, [], 0
        self._noise = {}

    def _replace(self, grid: ImageGrid, means: Sequence[NDArray[np.float32]]) -> tuple[ImageGrid, int]:
        differences = [
            None if unit.key == kept.unit.key else _difference(mean, kept.means, self._settings.max_light)
            for unit, kept, mean in zip(grid.units, self._kept, means, strict=True)
        ]
        self._note_noise(grid.units, differences)
        changed = [
            difference is not None and difference.largest > self._limit(kept)
            for difference, kept in zip(differences, self._kept, strict=True)
        ]
        has_changed, is_due = _with_thumbnail(grid.units, changed), self._due(grid.units)
        num_similar = 0
        for place, (unit, mean) in enumerate(zip(grid.units, means, strict=True)):
            if has_changed[place] or is_due[place] or differences[place] is None:
                self._kept[place] = _Kept(unit, mean, changed[place])
            else:
                self._kept[place] = replace(self._kept[place], is_restless=False)
                num_similar += 1
        return replace(grid, units=tuple(kept.unit for kept in self._kept)), num_similar

    def _note_noise(self, units: Sequence[ImageUnit], differences: Sequence[_Difference | None]) -> None:
        """Add this frame's noise to that of the last frames. Tiles have it in common; a thumbnail has less."""
        residuals: dict[str, list[NDArray[np.float32]]] = {}
        for unit, difference in zip(units, differences, strict=True):
            if difference is not None:
                residuals.setdefault(unit.kind, []).append(difference.residual.ravel())
        for kind, found in residuals.items():
            # Few blocks of a compressed picture differ, and those by much: the middle of the distribution misses them.
            sigma = float(np.percentile(np.abs(np.concatenate(found)), _NOISE_PERCENT)) / _NOISE_SIGMAS
            self._noise.setdefault(kind, deque(maxlen=_QUIET_FRAMES)).append(sigma)

    def _limit(self, kept: _Kept) -> float:
        """Return the distance in levels above which a unit has changed."""
        settings = self._settings
        sigma = min(self._noise.get(kept.unit.kind, ()), default=0.0)
        share = settings.calm_factor / settings.noise_factor if kept.is_restless else 1.0
        return share * min(max(settings.noise_factor * sigma, settings.min_levels), settings.max_levels)

    def _due(self, units: Sequence[ImageUnit]) -> list[bool]:
        """Return which units are to be renewed: each in its own frame of a period, evenly spread.

        Units that share their pixels take turns together: else each would hold on to another whole picture.
        """
        period = self._settings.refresh_frames
        if period <= 0:
            return [False] * len(units)
        turns: dict[int, int] = {}
        for unit in units:
            turns.setdefault(id(unit.pixels), len(turns))
        return [(self._num_frames + turns[id(unit.pixels)] * period // len(turns)) % period == 0 for unit in units]


def block_means(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Compute the mean colour of square blocks of pixels, 32 along the shorter side where they have 8 to 16 pixels.

    Args:
        pixels: uint8 (height, width, 3), RGB.

    Returns:
        float32 (num_rows, num_columns, 3), 0 to 255. Where the blocks do not divide a side, the last one overlaps the
        one before it.
    """
    height, width = pixels.shape[:2]
    side = min(max(min(height, width) // _BLOCKS_PER_SIDE, _MIN_BLOCK_SIDE), _MAX_BLOCK_SIDE)
    down, across = min(side, height), min(side, width)
    rows = pixels.reshape(height, width * 3)
    # Sums of at most 16 rows fit in 16 bits, and whole rows are summed at the speed of memory.
    sums = np.add.reduce(rows[: height // down * down].reshape(-1, down, width * 3), axis=1, dtype=np.uint16)
    if height % down:
        sums = np.concatenate([sums, np.add.reduce(rows[-down:], axis=0, dtype=np.uint16)[None]])
    columns = sums.astype(np.float32).reshape(len(sums), width, 3)
    if width % across:
        columns = np.concatenate([columns[:, : width // across * across], columns[:, -across:]], axis=1)
    to_mean = np.tile(np.eye(3, dtype=np.float32), (across, 1)) / np.float32(down * across)
    means: NDArray[np.float32] = columns.reshape(len(sums), -1, across * 3) @ to_mean
    return means


def _all_means(units: Sequence[ImageUnit]) -> list[NDArray[np.float32]]:
    """Compute the block means of all units; units that an engine cut share the pixels of the whole picture."""
    found: dict[int, NDArray[np.float32]] = {}
    for unit in units:
        if id(unit.pixels) not in found:
            found[id(unit.pixels)] = block_means(unit.pixels)
    return [found[id(unit.pixels)] for unit in units]


def _difference(now: NDArray[np.float32], before: NDArray[np.float32], max_light: float) -> _Difference:
    """Compare block means, each float32 (num_rows, num_columns, 3), after fitting the light of each channel."""
    change = now - before
    # Relative to blocks of some brightness only: in dark ones a ratio is noise.
    light = np.median((change / np.maximum(before, _DARK_LEVELS)).reshape(-1, 3), axis=0)
    residual = change - before * np.clip(light, -max_light, max_light).astype(np.float32)
    return _Difference(residual, float(np.sqrt(np.square(residual).sum(axis=2).max())))


def _with_thumbnail(units: Sequence[ImageUnit], changed: Sequence[bool]) -> list[bool]:
    """Let a thumbnail change with any of its tiles: it shows them all."""
    any_tile = any(is_changed for unit, is_changed in zip(units, changed, strict=True) if unit.kind != "thumbnail")
    return [
        is_changed or (any_tile and unit.kind == "thumbnail") for unit, is_changed in zip(units, changed, strict=True)
    ]


def _layout(grid: ImageGrid) -> object:
    """Return what two pictures must have in common for their units to be comparable."""
    return (
        grid.rows,
        grid.columns,
        grid.markers,
        tuple((unit.kind, unit.row, unit.column, unit.pixels.shape, unit.num_tokens) for unit in grid.units),
    )
