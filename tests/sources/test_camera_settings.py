"""How a camera is read: what makes no sense is refused."""

from __future__ import annotations

from typing import Any

import pytest

from edge_vl.errors import RequestError
from edge_vl.sources.camera_settings import CameraSettings


@pytest.mark.parametrize(
    "values",
    [
        {"max_fps": 0},
        {"open_timeout_s": -1},
        {"read_timeout_s": float("nan")},
        {"open_timeout_s": None},
        {"read_timeout_s": True},
        {"open_timeout_s": 1e300},
        {"read_timeout_s": 1e-9},
        {"max_fps": 1e-320},
        {"max_fps": "5"},
        {"view": None},
        {"backoff": 3},
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    [name] = values

    with pytest.raises(RequestError, match=f"{name} of a camera is ") as caught:
        CameraSettings(**values)

    assert caught.value.field == name


def test_every_frame_may_be_wanted() -> None:
    assert CameraSettings(max_fps=None).max_fps is None
