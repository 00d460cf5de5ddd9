"""Which part of a picture is looked at, and which way is up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_vl import RequestError
from edge_vl.sources.view import View


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((45, None), "rotate_deg"),
        (("90", None), "rotate_deg"),
        (([90], None), "rotate_deg"),
        ((None, None), "rotate_deg"),
        ((0, 5), "region"),
        ((0, "abcd"), "region"),
        ((0, (0, 0, 1)), "region"),
        ((0, (0, 0, 1, None)), "region"),
        ((0, (0, 0, True, 1)), "region"),
        ((0, (0.5, 0, 0.5, 1)), "region"),
        ((0, (float("nan"), 0, 1, 1)), "region"),
        ((0, (0, 0, 1, 1.5)), "region"),
    ],
)
def test_what_is_no_view_is_refused(values: tuple[Any, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        View(*values)
    assert caught.value.field == field


def test_a_region_is_one_of_the_upright_picture() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    seen = View(90, (0, 0, 1, 0.5)).of(pixels)
    assert seen.tolist() == np.rot90(pixels, -1)[:2].tolist()
    assert seen.flags.c_contiguous
    assert View(180).of(pixels).tolist() == pixels[::-1, ::-1].tolist()
