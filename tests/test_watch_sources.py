"""Watches of live sources: cameras, pushed frames, gates, events (cases C3, C12 and C16)."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl import Frame, MotionGate, PushedFrames, RequestError, SourceError, Token
from edge_vl.async_watch import AsyncWatch
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.opencv_capture import open_stream
from edge_vl.sources.synthetic import SyntheticCapture, read_number
from edge_vl.testing import FakeFault, FakeLatencies
from edge_vl.watch import Watch
from edge_vl.watch_counts import WatchCounts
from edge_vl.watch_events import AnswerBegan, AnswerGivenUp, WatchEvent
from tests.conftest import OpenFake
from tests.sources.mjpeg_server import jpeg, running_mjpeg_server

WAIT_S = 20.0


def grey(number: int) -> NDArray[np.uint8]:
    return np.full((20, 30, 3), number, np.uint8)


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.002)


def check_sum(counts: WatchCounts) -> None:
    assert counts.frames == sum(
        (counts.answers, counts.dropped, counts.cancelled, counts.late, counts.bad, counts.quiet)
    )


def num_feeds() -> int:
    return sum(thread.name == "edge-vl-frames" for thread in threading.enumerate())


def test_a_frame_keeps_its_own_moment_and_source(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    source = PushedFrames("robot")
    taken_s = time.monotonic() - 3.0
    source.push(grey(1), captured_s=taken_s)
    with runtime.watch(source, "Is it?") as watch:
        answer = next(watch)
        assert watch.frame is source.latest()
    assert answer.frame_age_s is not None
    assert answer.frame_age_s >= 3.0


def test_drops_are_counted_by_the_index_of_the_frames_and_not_by_what_the_watch_saw(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    source = PushedFrames()
    for number in range(5):  # before the watch began: not its frames
        source.push(grey(number))
    with runtime.watch(source, "Is it?") as watch:

        def push_and_release() -> None:
            assert fault.reached.wait(WAIT_S)
            for number in range(5, 105):
                source.push(grey(number))
            try:
                wait_for(lambda: watch.counts.frames == 101)
            finally:
                fault.release.set()

        helper = threading.Thread(target=push_and_release)
        helper.start()
        answers = [next(watch), next(watch)]
        assert watch.frame is not None
        assert (watch.frame.index, [answer.dropped for answer in answers]) == (104, [0, 99])
        source.close()
        assert next(watch, None) is None
        helper.join(WAIT_S)
    assert watch.counts == WatchCounts(frames=101, answers=2, dropped=99)


def test_closing_the_source_ends_the_watch_and_closing_the_watch_leaves_the_source(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    source = PushedFrames()
    source.push(grey(1))
    with runtime.watch(source, "Is it?") as first:
        next(first)
    assert not source.is_closed
    with runtime.watch(source, "Is it?") as second:
        next(second)
        threading.Timer(0.05, source.close).start()
        assert list(second) == []
    wait_for(lambda: num_feeds() == 0)


def test_a_watch_ends_at_once_although_its_camera_gives_nothing(open_fake: OpenFake) -> None:
    def away() -> SyntheticCapture:
        raise SourceError("nobody there")

    runtime, _ = open_fake(script="yes")
    with Camera(away, name="away") as camera:
        for _ in range(3):
            watch = runtime.watch(camera, "Is it?")
            watch.close()
            assert watch.counts.abandoned == 0
        wait_for(lambda: num_feeds() == 0)


def test_several_watches_of_one_camera_do_not_take_frames_from_each_other(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    source = PushedFrames()
    with runtime.watch(source, "Is it?") as first, runtime.watch(source, "Was it?") as second:
        source.push(grey(1))
        next(first)
        next(second)
        assert first.frame is second.frame


def test_a_gate_keeps_frames_back_and_they_are_no_drops(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    levels = [10, 10, 10, 200, 200, 10]
    start_s = time.monotonic()
    frames = [Frame(grey(level), start_s + number, 0.0) for number, level in enumerate(levels)]
    with runtime.watch(frames, "Is it?", every_frame=True, gate=MotionGate(max_silence_s=None)) as watch:
        answered = []
        for answer in watch:
            assert (answer.dropped, watch.frame is not None) == (0, True)
            answered.append(watch.frame.captured_s - start_s)  # type: ignore[union-attr]
    assert answered == [0, 3, 4, 5]
    assert watch.counts == WatchCounts(frames=6, answers=4, quiet=2)


def test_a_gate_sees_the_frames_that_come_while_an_answer_is_made(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    seen: list[int] = []

    class Gate:
        def passes(self, frame: Frame) -> bool:
            seen.append(frame.index)
            return frame.index in (0, 2)

    source = PushedFrames()
    with runtime.watch(source, "Is it?", gate=Gate()) as watch:

        def walk_past() -> None:
            try:
                for number in range(5):
                    source.push(grey(number))
                    wait_for(lambda number=number: seen[-1:] == [number])  # type: ignore[misc]
                    assert fault.reached.wait(WAIT_S)
            finally:
                fault.release.set()

        helper = threading.Thread(target=walk_past)
        helper.start()
        next(watch)
        next(watch)  # it was past before the first answer was ready
        assert watch.frame is not None
        assert watch.frame.index == 2
        source.close()
        assert next(watch, None) is None
        helper.join(WAIT_S)
    assert seen == [0, 1, 2, 3, 4]
    assert watch.counts == WatchCounts(frames=5, answers=2, quiet=3)


class Skipping:
    """A source that plays by itself and passes frames over, as their indexes tell."""

    name = "skipping"
    is_live = True

    def __init__(self, *indexes: int) -> None:
        self._indexes = indexes

    def __iter__(self) -> Iterator[Frame]:
        """Yield a frame of each index."""
        for index in self._indexes:
            yield Frame(grey(index), time.monotonic(), 0.0, self.name, index)

    def close(self) -> None:
        """Hold nothing."""


def test_what_a_camera_passes_over_while_nothing_moves_is_quiet_and_no_drop(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")

    class Gate:
        def passes(self, frame: Frame) -> bool:
            return frame.index in (0, 9)

    with runtime.watch(Skipping(0, 5, 9), "Is it?", every_frame=True, gate=Gate()) as watch:
        assert [answer.dropped for answer in watch] == [0, 3]
    assert watch.counts == WatchCounts(frames=10, answers=2, dropped=3, quiet=5)


def test_a_gate_that_fails_ends_the_watch_with_its_error(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")

    class Gate:
        def passes(self, frame: Frame) -> bool:
            raise OSError("broken gate")

    with (
        runtime.watch([grey(1)], "Is it?", gate=Gate()) as watch,
        pytest.raises(SourceError, match="broken gate"),
    ):
        next(watch)


@pytest.mark.parametrize(("option", "value"), [("gate", object()), ("on_event", 5), ("every_frame", "yes")])
def test_options_that_make_no_sense_are_refused(open_fake: OpenFake, option: str, value: object) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(RequestError) as caught:
        runtime.watch([grey(1)], "Is it?", **{option: value})  # type: ignore[arg-type]
    assert caught.value.field == option


def test_the_tokens_of_each_answer_are_told_while_it_is_made(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes, it is")
    events: list[WatchEvent] = []
    with runtime.watch(map(grey, range(2)), "Is it?", every_frame=True, on_event=events.append) as watch:
        for number, answer in enumerate(watch):
            began, *tokens = events
            assert isinstance(began, AnswerBegan)
            assert (began.frame is watch.frame, began.dropped, began.frame.index) == (True, 0, number)
            assert len(tokens) > 1
            assert "".join(token.text for token in tokens if isinstance(token, Token)) == answer.text == "yes, it is"
            events.clear()
    assert events == []


def test_an_answer_that_is_given_up_is_told(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes", latencies=FakeLatencies(decode_s=0.2))
    events: list[WatchEvent] = []
    with runtime.watch([grey(1)], "Is it?", deadline_s=0.05, on_event=events.append) as watch:
        assert list(watch) == []
    assert isinstance(events[-1], AnswerGivenUp)
    assert (events[-1].reason, watch.counts.late) == ("late", 1)


def test_what_a_listener_raises_ends_the_watch(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes, it is")

    def listen(event: WatchEvent) -> None:
        if isinstance(event, Token):
            raise BrokenPipeError("nobody reads any more")

    with runtime.watch(map(grey, range(9)), "Is it?", on_event=listen) as watch:
        with pytest.raises(BrokenPipeError):
            next(watch)
        assert next(watch, None) is None


async def test_the_asynchronous_twin_takes_the_same_options(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    source = PushedFrames()
    source.push(grey(1))
    events: list[WatchEvent] = []
    async with runtime.awatch(source, "Is it?", gate=MotionGate(), on_event=events.append) as watch:
        assert isinstance(watch, AsyncWatch)
        assert (await anext(watch)).text == "yes"
    assert any(isinstance(event, Token) for event in events)


class Flaky(SyntheticCapture):
    """A drawn camera; every third frame is damaged."""

    def retrieve(self) -> NDArray[np.uint8]:
        pixels = super().retrieve()
        if (read_number(pixels) or 0) % 3 == 0:
            raise SourceError("damaged")
        return pixels


def test_damaged_frames_of_a_camera_are_passed_over_and_the_watch_goes_on(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    with (
        Camera(lambda: Flaky(96, 96, 100.0), name="flaky", settings=CameraSettings(max_fps=None)) as camera,
        runtime.watch(camera, "Is it?") as watch,
    ):
        for _ in range(8):
            next(watch)
            assert watch.frame is not None
            number = read_number(watch.frame.pixels)
            assert number is not None
            assert number % 3 != 0
        assert camera.state.num_bad > 0
        counts = watch.counts
    assert counts.answers == 8
    assert counts.dropped + counts.bad > 0


def test_damaged_pictures_of_a_real_stream_are_counted_and_the_watch_goes_on(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    good = jpeg(50, (320, 240))
    damaged = [good[:-600], b"hello", b"", good[:20] + b"\0" * 500]
    with running_mjpeg_server() as server:
        server.pictures = [*[good, *damaged] * 5, good]
        server.interval_s = 0.02
        with Camera(
            lambda: open_stream(server.url, CameraSettings()), name="door", settings=CameraSettings(max_fps=None)
        ) as camera:
            with runtime.watch(camera, "Is it?") as watch:
                indexes: list[int] = []
                while camera.state.num_frames < 26 or not indexes or indexes[-1] < 25:
                    assert next(watch).text == "yes"
                    assert watch.frame is not None
                    indexes.append(watch.frame.index)
                counts = watch.counts
            state = camera.state
    assert (state.num_frames, state.num_bad) == (26, 20)
    assert indexes == sorted(set(indexes))
    assert not {index for index in indexes if index % 5}
    assert (counts.answers, counts.frames) == (len(indexes), 26 - indexes[0])
    assert 0 <= 20 - indexes[0] // 5 * 4 - counts.bad <= 1  # one that came together with the first frame
    check_sum(counts)


def watch_for(watch: Watch, camera_started_s: list[float], fps: float, seconds: float) -> tuple[list[float], int]:
    """Return how old each answer's frame really was when the answer was there, by the number drawn into it."""
    ages, num_dropped = [], 0
    until_s = time.monotonic() + seconds
    for answer in watch:
        now_s = time.monotonic()
        assert watch.frame is not None
        number = read_number(watch.frame.pixels)
        assert number is not None
        age_s = now_s - (camera_started_s[-1] + number / fps)
        assert answer.frame_age_s is not None
        assert now_s - watch.frame.captured_s == pytest.approx(age_s, abs=0.1)
        assert answer.frame_age_s == pytest.approx(age_s, abs=0.1)
        ages.append(age_s)
        num_dropped += answer.dropped
        if now_s > until_s:
            break
    return ages, num_dropped


def test_a_slow_model_answers_about_the_newest_frame_of_a_fast_camera(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 frames per second, two answers per second, and the wall clock is set back and ahead meanwhile."""
    runtime, _ = open_fake(script="yes", latencies=FakeLatencies(encode_s=0.06, decode_s=0.05))
    starts: list[float] = []

    def open_capture() -> SyntheticCapture:
        capture = SyntheticCapture(96, 96, 30.0)
        starts.append(capture.started_s)
        return capture

    real = time.time
    with Camera(open_capture, name="drawn", settings=CameraSettings(max_fps=None)) as camera:
        assert camera.wait_newer(-1, WAIT_S) is not None
        with runtime.watch(camera, "Is it?") as watch:
            first, dropped_first = watch_for(watch, starts, 30.0, 2.0)
            monkeypatch.setattr(time, "time", lambda: real() - 3600)
            second, dropped_second = watch_for(watch, starts, 30.0, 2.0)
            monkeypatch.setattr(time, "time", lambda: real() + 86_400)
            third, dropped_third = watch_for(watch, starts, 30.0, 1.5)
            counts = watch.counts
    answer_s = statistics.median(first)
    assert len(first + second + third) >= 6
    for ages in (first, second, third):
        assert statistics.median(ages) == pytest.approx(answer_s, abs=0.25)  # flat: not one frame older per answer
    assert counts.answers == len(first + second + third)
    assert dropped_first + dropped_second + dropped_third >= 5 * counts.answers
    check_sum(watch.counts)
