"""Tests of pictures on their way to a gateway."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_vl.errors import ImageError, RequestError
from edge_vl.mqtt.messages import ImageRef
from edge_vl.mqtt.remote_pictures import RawPicture, take_picture

PICTURES = Path(__file__).parent.parent.parent / "examples" / "pictures"


def raw(picture: Any) -> RawPicture:
    taken = take_picture(picture, 0)
    assert isinstance(taken, RawPicture)
    return taken


def test_files_that_are_compressed_go_as_they_are() -> None:
    for name in ("bricks.jpg", "four.png"):
        path = PICTURES / name
        assert raw(path).encoded() == raw(str(path)).encoded() == raw(path.read_bytes()).encoded() == path.read_bytes()


def test_what_is_not_compressed_goes_as_jpeg(tmp_path: Path) -> None:
    pixels = np.full((40, 60, 3), (200, 30, 40), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "red.bmp")
    for picture in (pixels, Image.fromarray(pixels), tmp_path / "red.bmp"):
        encoded = raw(picture).encoded()
        assert encoded.startswith(b"\xff\xd8\xff")
        decoded = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
        assert decoded.shape == pixels.shape
        assert np.abs(decoded.astype(int) - pixels).max() < 12


def test_a_buffer_may_be_overwritten_at_once() -> None:
    pixels = np.full((32, 32, 3), 255, np.uint8)
    taken = raw(pixels)
    pixels[:] = 0
    assert np.asarray(Image.open(io.BytesIO(taken.encoded()))).min() > 240


def test_what_the_gateway_knows_is_named() -> None:
    assert take_picture({"camera": "door"}, 0) == ImageRef(camera="door")
    assert take_picture(ImageRef(file="a.jpg"), 0) == ImageRef(file="a.jpg")


@pytest.mark.parametrize(
    "fields", [{}, {"camera": "a", "file": "b"}, {"camera": "no spaces"}, {"url": "http://x"}, {"camera": 1}]
)
def test_a_reference_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"picture 3 .*camera"):
        take_picture(fields, 2)


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello there")
    for picture, words in (
        (tmp_path / "missing.jpg", "missing.jpg"),
        (tmp_path / "notes.txt", "text, not a picture"),
        (b"", "nothing"),
        (tmp_path, "folder|directory"),
    ):
        with pytest.raises(ImageError, match=words):
            raw(picture).encoded()
    with pytest.raises(ImageError, match="None"):
        take_picture(None, 0)  # type: ignore[arg-type]
