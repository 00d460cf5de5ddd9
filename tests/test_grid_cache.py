"""Tests of the pictures that are kept cut."""

from __future__ import annotations

import numpy as np

from edge_vl.frame import Frame
from edge_vl.grid_cache import GridCache
from edge_vl.plan import ImageGrid, ImageUnit


def frame(value: int, height: int = 4, width: int = 4) -> Frame:
    return Frame(np.full((height, width, 3), value, np.uint8), 0.0, 0.0)


class Cutter:
    """Cuts a picture into one unit, and counts."""

    def __init__(self) -> None:
        self.num_cuts = 0

    def __call__(self, frame: Frame, longest_edge: int | None) -> ImageGrid:
        self.num_cuts += 1
        return ImageGrid((ImageUnit.of(frame.pixels, "image"),), 0, 0)


def test_equal_pixels_are_cut_once() -> None:
    cache, cutter = GridCache(1000), Cutter()
    first = cache.cut(frame(1), None, cutter)
    assert cache.cut(frame(1), None, cutter) is first
    assert cutter.num_cuts == 1


def test_other_pixels_another_shape_and_another_setting_are_cut_anew() -> None:
    cache, cutter = GridCache(1000), Cutter()
    for one, edge in ((frame(1), None), (frame(2), None), (frame(1, 2, 8), None), (frame(1), 8)):
        cache.cut(one, edge, cutter)
    assert cutter.num_cuts == 4


def test_the_grid_not_used_for_longest_makes_room() -> None:
    cache, cutter = GridCache(max_bytes=100), Cutter()  # two pictures of 48 bytes
    for value in (1, 2, 1, 3, 1):
        cache.cut(frame(value), None, cutter)
    assert cutter.num_cuts == 3
    cache.cut(frame(2), None, cutter)
    assert cutter.num_cuts == 4


def test_a_picture_larger_than_the_cache_is_cut_all_the_same() -> None:
    cache, cutter = GridCache(max_bytes=10), Cutter()
    assert cache.cut(frame(1), None, cutter).units
    assert cache.cut(frame(1), None, cutter).units
    assert cutter.num_cuts == 2
