"""How a camera is read: what makes no sense is refused."""

from __future__ import annotations

from typing import Any

import pytest

from edge_vl.errors import RequestError
from edge_vl.sources.camera_settings import CameraSettings


@pytest.mark.parametrize("values", [{"max_fps": 0}, {"open_timeout_s": -1}, {"read_timeout_s": float("nan")}])
def test_numbers_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    [name] = values

    with pytest.raises(RequestError, match=f"{name} of a camera is more than 0") as caught:
        CameraSettings(**values)

    assert caught.value.field == name


def test_every_frame_may_be_wanted() -> None:
    assert CameraSettings(max_fps=None).max_fps is None
