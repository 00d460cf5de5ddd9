"""The pipeline of a Jetson's CSI camera, as text: there is no Jetson to run it on."""

from __future__ import annotations

from typing import Any

import pytest

from edge_vl.errors import RequestError
from edge_vl.sources.csi_pipeline import csi_pipeline


def test_the_pipeline_begins_at_the_sensor_and_ends_in_the_newest_bgr_frame() -> None:
    elements = csi_pipeline(1, width=1920, height=1080, fps=60).split(" ! ")

    assert elements[0] == "nvarguscamerasrc sensor-id=1"
    assert elements[1] == "video/x-raw(memory:NVMM),width=1920,height=1080,framerate=60/1,format=NV12"
    assert elements[2:6] == ["nvvidconv", "video/x-raw,format=BGRx", "videoconvert", "video/x-raw,format=BGR"]
    assert elements[-1] == "appsink max-buffers=1 drop=true sync=false"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"sensor": -1}, "sensor"),
        ({"sensor": True}, "sensor"),
        ({"sensor": "0 ! filesink"}, "sensor"),
        ({"width": 0}, "width"),
        ({"height": 99999}, "height"),
        ({"fps": 29.97}, "fps"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        csi_pipeline(**values)

    assert caught.value.field == field
