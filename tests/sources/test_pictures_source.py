"""Pictures on disk as a source."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_vl import ImageError, Runtime, SourceError, open_source
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.pictures_source import PicturesSource, natural_order, pictures_in
from edge_vl.sources.view import View
from edge_vl.watch_counts import WatchCounts
from tests.conftest import OpenFake


def write(path: Path, level: int = 90, *, cut: int = 0) -> Path:
    """Write a picture of one grey, and take bytes off its end."""
    rng = np.random.default_rng(level)
    Image.fromarray(rng.integers(0, 256, (40, 60, 3), np.uint8)).save(path)
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])
    return path


def answers_of(runtime: Runtime, source: PicturesSource) -> tuple[list[str], WatchCounts]:
    with runtime.watch(source, "Is it?") as watch:
        seen = []
        for _ in watch:
            assert watch.frame is not None
            seen.append(Path(watch.frame.source).name)
    return seen, watch.counts


def test_a_folder_gives_its_pictures_in_natural_order_and_nothing_else(tmp_path: Path) -> None:
    for name in ("shot10.jpg", "shot9.jpg", "Shot1.PNG", ".hidden.jpg"):
        write(tmp_path / name)
    (tmp_path / "notes.txt").write_text("nothing to see")
    (tmp_path / "sub.jpg").mkdir()
    assert [path.name for path in pictures_in(tmp_path)] == ["Shot1.PNG", "shot9.jpg", "shot10.jpg"]
    frames = list(open_source(tmp_path))
    assert [(Path(frame.source).name, frame.index) for frame in frames] == [
        ("Shot1.PNG", 0), ("shot9.jpg", 1), ("shot10.jpg", 2),
    ]  # fmt: skip


def test_names_that_differ_in_zeros_alone_have_an_order_too() -> None:
    names = ["1", "a1", "a001", "a01", "b", "²"]
    assert sorted(map(Path, names), key=natural_order) == sorted(map(Path, names[::-1]), key=natural_order)


def test_a_damaged_picture_of_a_folder_is_passed_over_and_counted_by_the_watch(
    tmp_path: Path, open_fake: OpenFake, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.jpg", number, cut=600 if number in (0, 2, 4) else 0)
    runtime, _ = open_fake(script="yes")
    source = open_source(tmp_path)
    assert isinstance(source, PicturesSource)
    with caplog.at_level(logging.WARNING):
        seen, counts = answers_of(runtime, source)
    assert seen == ["1.jpg", "3.jpg"]
    assert counts == WatchCounts(frames=5, answers=2, bad=3)
    assert source.num_bad == 3
    assert "2.jpg" in caplog.text


def test_a_single_picture_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "one.jpg", cut=600)
    with pytest.raises(ImageError, match=r"one\.jpg"):
        list(open_source(path))


def test_a_folder_of_damaged_pictures_is_an_error_even_in_a_loop(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"{number}.jpg", cut=600)
    with pytest.raises(ImageError):
        list(open_source(tmp_path, loop=True))


def test_pictures_begin_again_and_end_when_they_are_closed(tmp_path: Path) -> None:
    write(tmp_path / "a.png", 1)
    write(tmp_path / "b.png", 2)
    source = open_source(tmp_path, loop=True)
    seen = []
    for frame in source:
        seen.append((Path(frame.source).name, frame.index))
        if len(seen) == 5:
            source.close()
    assert seen == [("a.png", 0), ("b.png", 1), ("a.png", 2), ("b.png", 3), ("a.png", 4)]


def test_every_picture_is_answered_although_the_watch_was_not_told_so(tmp_path: Path, open_fake: OpenFake) -> None:
    for number in range(8):
        write(tmp_path / f"{number}.png", number)
    runtime, _ = open_fake(script="yes")
    source = open_source(str(tmp_path / "*.png"))
    assert isinstance(source, PicturesSource)
    seen, counts = answers_of(runtime, source)
    assert seen == [f"{number}.png" for number in range(8)]
    assert counts == WatchCounts(frames=8, answers=8)


def test_the_view_is_taken_of_each_picture(tmp_path: Path) -> None:
    path = write(tmp_path / "a.png")
    settings = CameraSettings(view=View(90, (0.5, 0, 1, 1)))
    assert [frame.pixels.shape for frame in open_source(path, settings=settings)] == [(60, 20, 3)]


def test_an_empty_folder_and_a_pattern_that_matches_nothing_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no picture in the folder"):
        open_source(tmp_path)
    with pytest.raises(SourceError, match="no file matches"):
        open_source(str(tmp_path / "*.jpg"))


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a[1].png")
    assert [frame.source for frame in open_source(str(path))] == [str(path)]
