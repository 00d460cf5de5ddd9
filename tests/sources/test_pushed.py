"""Frames that a program pushes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from edge_vl import ImageError, PushedFrames, RequestError
from edge_vl.sources.view import View

GREY = np.full((4, 6, 3), 90, np.uint8)


def test_the_newest_frame_waits_for_every_reader() -> None:
    source = PushedFrames("robot")
    assert source.latest() is None
    assert [source.push(np.full((4, 6, 3), number, np.uint8)) for number in range(3)] == [0, 1, 2]
    for frame in (source.latest(), source.wait_newer(-1, 0.0), source.wait_newer(1, 0.0)):
        assert frame is not None
        assert (frame.index, frame.source, int(frame.pixels[0, 0, 0])) == (2, "robot", 2)
    assert source.wait_newer(2, 0.0) is None


def test_the_buffer_may_be_overwritten_at_once_and_bgr_is_turned() -> None:
    source = PushedFrames()
    buffer = np.zeros((2, 2, 3), np.uint8)
    buffer[..., 0] = 200
    source.push(buffer, bgr=True)
    buffer[:] = 9
    frame = source.latest()
    assert frame is not None
    assert frame.pixels[0, 0].tolist() == [0, 0, 200]


def test_a_frame_keeps_the_moment_when_it_was_taken() -> None:
    source = PushedFrames()
    taken_s = time.monotonic() - 0.5
    source.push(GREY, captured_s=taken_s)
    frame = source.latest()
    assert frame is not None
    assert frame.captured_s == pytest.approx(taken_s)
    assert time.time() - frame.captured_wall_s == pytest.approx(0.5, abs=0.4)


@pytest.mark.parametrize(
    "captured_s",
    [time.time(), float("nan"), "now", True, -float("inf"), -1e300],
    ids=["wall clock", "nan", "text", "flag", "minus infinity", "before the clock began"],
)
def test_a_time_of_another_clock_is_refused(captured_s: float) -> None:
    with pytest.raises(RequestError, match=r"time\.time\(\) is another clock"):
        PushedFrames().push(GREY, captured_s=captured_s)


def test_what_is_no_picture_is_refused_and_counts_nothing() -> None:
    source = PushedFrames()
    with pytest.raises(ImageError):
        source.push(np.zeros((4, 6, 7), np.uint8))
    assert (source.num_frames, source.latest()) == (0, None)


def test_the_view_is_taken_of_each_frame() -> None:
    source = PushedFrames(view=View(90, (0, 0, 1, 0.5)))
    source.push(np.zeros((4, 6, 3), np.uint8))
    frame = source.latest()
    assert frame is not None
    assert frame.pixels.shape == (3, 4, 3)


def test_a_reader_may_wait_as_long_as_he_likes() -> None:
    source = PushedFrames()
    threading.Timer(0.05, source.push, [GREY]).start()
    frame = source.wait_newer(-1, 1e10)
    assert frame is not None
    assert frame.index == 0


def test_closing_ends_every_iteration_and_takes_no_more() -> None:
    source = PushedFrames()
    seen: list[int] = []
    readers = [threading.Thread(target=lambda: seen.extend(frame.index for frame in source)) for _ in range(2)]
    source.push(GREY)
    for reader in readers:
        reader.start()
    while len(seen) < 2:
        time.sleep(0.002)
    source.close()
    source.close()
    for reader in readers:
        reader.join(5.0)
        assert not reader.is_alive()
    assert (seen, source.push(GREY), source.latest(), source.is_closed) == ([0, 0], -1, None, True)
