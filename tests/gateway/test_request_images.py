from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from edge_vl.errors import ImageError
from edge_vl.gateway.image_shelf import ImageShelf
from edge_vl.gateway.request_images import RequestImages, read_file_below
from edge_vl.mqtt.messages import ImageRef, Request
from edge_vl.mqtt.topics import NodeTopics

MOST = 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / "a.jpg").write_bytes(b"picture")
    (inside / "large.jpg").write_bytes(b"x" * (MOST + 1))
    (inside / "link.jpg").symlink_to(inside / "deep" / "a.jpg")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (inside / "out.jpg").symlink_to(tmp_path / "secret.jpg")
    (inside / "out").symlink_to(tmp_path)
    (inside / "loop.jpg").symlink_to(inside / "loop.jpg")
    os.mkfifo(inside / "pipe.jpg")
    return inside


@pytest.mark.parametrize("name", ["deep/a.jpg", "link.jpg", "./deep/./a.jpg"])
def test_files_below_the_folder_are_read_also_through_links_that_stay_in_it(folder: Path, name: str) -> None:
    assert read_file_below([folder], name, 0, MOST) == b"picture"


@pytest.mark.parametrize(
    "name",
    [
        "../secret.jpg",
        "deep/../../secret.jpg",
        "out.jpg",
        "out/secret.jpg",
        "loop.jpg",
        "pipe.jpg",
        "deep",
        ".",
        "missing.jpg",
        "a\0b",
        "x" * 300,
        "/etc/hostname",
    ],
)
def test_whatever_leads_out_or_is_no_regular_file_is_refused_in_the_same_words(folder: Path, name: str) -> None:
    with pytest.raises(ImageError, match="there is no such file") as found:
        read_file_below([folder], name, 0, MOST)
    assert "secret" not in str(found.value)


def test_an_absolute_path_is_refused_even_below_the_folder(folder: Path) -> None:
    with pytest.raises(ImageError):
        read_file_below([folder], str(folder / "deep" / "a.jpg"), 0, MOST)


def test_a_large_file_is_refused_by_its_size(folder: Path) -> None:
    with pytest.raises(ImageError, match="more than 100 bytes"):
        read_file_below([folder], "large.jpg", 0, MOST)


def test_without_folders_no_file_is_read() -> None:
    with pytest.raises(ImageError, match="names no folders"):
        read_file_below([], "a.jpg", 0, MOST)


def test_the_second_folder_is_looked_at_when_the_first_has_none(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert read_file_below([tmp_path / "empty", tmp_path / "gone", folder], "deep/a.jpg", 0, MOST) == b"picture"


async def test_the_pictures_of_one_request_have_a_bound_together(folder: Path) -> None:
    clock = asyncio.get_running_loop().time
    shelf = ImageShelf(max_image_bytes=MOST, max_bytes=MOST, max_wait_s=1, clock=clock)
    topics = NodeTopics("edge_vl", "gw")
    images = RequestImages({}, [folder], shelf, topics, max_image_bytes=MOST, max_bytes=20)
    ref = ImageRef(file="deep/a.jpg")
    two = await images.of(Request(id="x", question="?", images=[ref, ref]))
    assert [image.picture for image in two] == [b"picture"] * 2
    with pytest.raises(ImageError, match="picture 3: the pictures of one request may have 20 bytes"):
        await images.of(Request(id="x", question="?", images=[ref] * 3))
