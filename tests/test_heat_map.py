from __future__ import annotations

import numpy as np
import pytest

from edge_vl.heat_map import draw_heat_map


def colours(picture: object) -> set[tuple[int, ...]]:
    pixels = np.asarray(picture).reshape(-1, 3)
    return {tuple(int(part) for part in pixel) for pixel in np.unique(pixels, axis=0)}


def test_the_least_and_the_largest_number_of_a_column_have_the_ends_of_the_palette() -> None:
    found = colours(draw_heat_map("Errors", ["keys"], ["layer 0", "layer 1"], [[0.001], [0.5]]))
    assert {(68, 1, 84), (253, 231, 37)} <= found


def test_columns_have_scales_of_their_own() -> None:
    one = np.asarray(draw_heat_map("E", ["a", "b"], ["0", "1"], [[1.0, 1e-6], [2.0, 2e-6]]))
    assert ((one == (253, 231, 37)).all(axis=2).any(axis=0).sum()) > 200  # light cells in both columns


@pytest.mark.parametrize("value", [0.0, None, float("inf"), 3.0])
def test_odd_numbers_are_drawn_as_well(value: float | None) -> None:
    picture = draw_heat_map("A title", ["keys"], ["layer 0", "layer 1"], [[value], [0.1]], "a note")
    assert picture.mode == "RGB"


def test_a_long_title_or_note_makes_the_picture_wider() -> None:
    short = draw_heat_map("A", ["keys"], ["0"], [[1.0]])
    assert draw_heat_map("A" * 200, ["keys"], ["0"], [[1.0]]).width > short.width
    assert draw_heat_map("A", ["keys"], ["0"], [[1.0]], "b" * 200).width > short.width


def test_a_table_with_holes_is_refused() -> None:
    with pytest.raises(ValueError, match="one value for each"):
        draw_heat_map("A", ["keys", "values"], ["0"], [[1.0]])
    with pytest.raises(ValueError, match="one value for each"):
        draw_heat_map("A", [], [], [])
