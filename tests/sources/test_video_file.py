"""Recordings, made here."""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from edge_vl import SourceError, open_source
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.synthetic import SyntheticCapture, read_number
from edge_vl.sources.video_file import VideoFile, _let_end
from edge_vl.sources.view import View
from edge_vl.watch_counts import WatchCounts
from tests.conftest import OpenFake
from tests.sources.mjpeg_server import jpeg

cv2 = pytest.importorskip("cv2")

DRAWN = SyntheticCapture(192, 144, 30.0)


def record(path: Path, num_frames: int, *, fps: float = 30.0, fourcc: str = "MJPG") -> Path:
    """Make a recording whose frames say which they are."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*fourcc), fps, (DRAWN.width, DRAWN.height))
    assert writer.isOpened()
    for number in range(num_frames):
        writer.write(DRAWN.draw(number)[..., ::-1])
    writer.release()
    return path


def turned(path: Path) -> Path:
    """Say in the header of an MP4 that it is to be shown turned by 90 degrees clockwise, as telephones do."""
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 44
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, DRAWN.height << 16, 0, 1 << 30)
    path.write_bytes(data)
    return path


def numbers(frames: Iterable[object]) -> list[int | None]:
    return [read_number(frame.pixels) for frame in frames]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("video") / "walk.avi", 20)


def test_unpaced_every_frame_comes_and_then_the_end(recording: Path) -> None:
    source = open_source(recording, paced=False)
    assert isinstance(source, VideoFile)
    began_s = time.monotonic()
    frames = list(source)
    assert numbers(frames) == [frame.index for frame in frames] == list(range(20))
    assert all(began_s <= frame.captured_s <= time.monotonic() for frame in frames)
    assert (source.is_live, source.num_bad, frames[0].source) == (False, 0, str(recording))


def test_paced_it_takes_as_long_as_it_is_and_its_frames_are_of_their_moments(recording: Path) -> None:
    source = open_source(recording)
    began_s = time.monotonic()
    frames = list(source)
    assert source.is_live
    assert time.monotonic() - began_s >= 19 / 30
    for frame in frames:
        assert frame.captured_s - frames[0].captured_s == pytest.approx((frame.index - frames[0].index) / 30, abs=0.02)
    assert numbers(frames) == [frame.index for frame in frames]


def test_a_reader_who_comes_late_misses_frames_but_not_the_time(recording: Path) -> None:
    seen = []
    for frame in open_source(recording):
        seen.append(frame.index)
        if frame.index == 3:
            time.sleep(0.25)
    after = seen[seen.index(3) + 1]
    assert after >= 8  # a quarter of a second is seven frames
    assert seen == sorted(set(seen))


def test_in_a_watch_dropped_frames_are_counted_exactly(recording: Path, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    answered, dropped = [], 0
    with runtime.watch(open_source(recording), "Is it?", every_s=0.15) as watch:
        for answer in watch:
            assert watch.frame is not None
            answered.append(watch.frame.index)
            dropped += answer.dropped
            assert answered[-1] + 1 == len(answered) + dropped
    counts = watch.counts
    assert counts.frames == 20
    assert counts.answers + counts.dropped == 20
    assert 3 <= counts.answers < 15


def test_a_loop_goes_on_and_its_indexes_too(recording: Path) -> None:
    source = open_source(recording, paced=False, loop=True)
    seen = []
    for frame in source:
        seen.append((frame.index, read_number(frame.pixels)))
        if frame.index == 44:
            source.close()
    assert seen == [(index, index % 20) for index in range(45)]


def test_closing_ends_the_wait_for_the_next_frame(tmp_path: Path) -> None:
    source = open_source(record(tmp_path / "slow.avi", 3, fps=0.2))
    threading.Timer(0.1, source.close).start()
    began_s = time.monotonic()
    assert len(list(source)) == 1
    assert time.monotonic() - began_s < 3


def test_a_recording_is_upright_as_its_header_says(tmp_path: Path) -> None:
    straight = record(tmp_path / "straight.mp4", 3, fourcc="mp4v")
    first = next(iter(open_source(straight, paced=False)))
    telephone = next(iter(open_source(turned(straight), paced=False)))
    assert telephone.pixels.shape == (192, 144, 3)
    assert np.abs(telephone.pixels.astype(int) - np.rot90(first.pixels, -1)).mean() < 2


def test_the_view_is_taken_of_each_frame(recording: Path) -> None:
    settings = CameraSettings(view=View(180, (0, 0, 0.5, 1)))
    assert next(iter(open_source(recording, paced=False, settings=settings))).pixels.shape == (144, 96, 3)


def test_a_recording_that_is_cut_short_gives_what_is_there_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = record(tmp_path / "cut.avi", 20)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with caplog.at_level(logging.WARNING):
        seen = numbers(open_source(path, paced=False))
    assert 5 <= len([number for number in seen if number is not None]) < 20
    assert "cut short" in caplog.text


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.mp4", b"\0\0\0\x20ftypisom" + bytes(range(256)) * 8, "cannot be opened as a video"),
        ("a.avi", b"RIFF\xff\xff\0\0AVI LIST" + bytes(500), "cannot be opened as a video"),
        ("a.mkv", b"\x1aE\xdf\xa3" + b"\x93" * 800, "cannot be opened as a video"),
        ("a.mp4", b"", "nothing: 0 bytes"),
        ("a.mp4", b"<!doctype html><html>", "an HTML page"),
        ("a.m3u8", b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/x.ts\n", "neither a picture nor a video"),
    ],
)  # fmt: skip
def test_what_is_no_recording_is_an_error_that_says_what_it_is(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SourceError, match=words) as caught:
        open_source(path)
    assert name in str(caught.value)


def test_a_recording_that_vanishes_between_two_rounds_is_an_error(tmp_path: Path) -> None:
    path = record(tmp_path / "gone.avi", 3)
    source = iter(open_source(path, paced=False, loop=True))
    for _ in range(3):
        next(source)
    path.unlink()
    with pytest.raises(SourceError, match="cannot be opened"):
        next(source)


def test_a_program_may_end_while_a_recording_is_read(recording: Path) -> None:
    script = (
        "import sys, threading, time\n"
        "from edge_vl import open_source\n"
        "source = open_source(sys.argv[1], paced=False, loop=True)\n"
        "threading.Thread(target=lambda: [None for _ in source], daemon=True).start()\n"
        "other = iter(open_source(sys.argv[1], paced=False))\n"
        "next(other)\n"
        "time.sleep(0.1)\n"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script, str(recording)], capture_output=True, timeout=30, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_one_that_was_watched_counts_as_many_frames_as_it_has(recording: Path, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    with runtime.watch(open_source(recording, paced=False), "Is it?") as watch:
        assert len(list(watch)) == 20
    assert watch.counts == WatchCounts(frames=20, answers=20)


def test_the_end_of_a_fork_does_not_wait_for_what_its_parent_decodes() -> None:
    closed, native = threading.Event(), threading.Lock()
    native.acquire()

    _let_end(closed, native, os.getpid() + 1)
    assert not closed.is_set()

    native.release()
    _let_end(closed, native, os.getpid())
    assert closed.is_set()
    assert native.locked(), "no other call begins"


def test_a_picture_that_changes_its_size_on_the_way_loses_no_frame(tmp_path: Path) -> None:
    path = tmp_path / "both.mjpeg"
    sizes = [(64, 48)] * 5 + [(96, 48)] * 5
    path.write_bytes(b"".join(jpeg(90, size) for size in sizes))
    source = VideoFile(path, paced=False)
    assert [frame.pixels.shape for frame in source] == [(48, 64, 3)] * 10
    source.close()
