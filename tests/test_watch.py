"""Tests of watches on fake engines, and one on the bundled model (cases C3 and C16)."""

from __future__ import annotations

import gc
import inspect
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from edge_vl import Cancelled, EngineFault, Frame, ImageError, RequestError, Runtime, SourceError
from edge_vl.answer_stream import AnswerStream
from edge_vl.commit_rule import MAX_CANCELLATIONS
from edge_vl.request import Progress
from edge_vl.testing import FakeFault, FakeLatencies
from edge_vl.watch import OWN_OPTIONS, Watch
from edge_vl.watch_counts import WatchCounts
from tests.conftest import OpenFake

WAIT_S = 20.0
PICTURES = Path(__file__).parent.parent / "examples" / "pictures"


def grey(number: int) -> NDArray[np.uint8]:
    """Return a picture that says which one it is."""
    return np.full((20, 30, 3), number, np.uint8)


def shown(watch: Watch) -> int:
    """Say which picture the last answer is about."""
    assert watch.frame is not None
    return int(watch.frame.pixels[0, 0, 0])


def jpeg(number: int, *, cut: int = 0) -> bytes:
    data = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (64, 96, 3), np.uint8)
    Image.fromarray(noise).save(data, "JPEG", quality=95)
    return data.getvalue()[: len(data.getvalue()) - cut]


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.002)


def num_threads() -> int:
    return sum(thread.name == "edge-vl-frames" for thread in threading.enumerate())


def check_sum(counts: WatchCounts) -> None:
    assert counts.frames == counts.answers + counts.dropped + counts.cancelled + counts.late + counts.bad


def blocked_after(number: int, gate: threading.Event) -> Iterator[NDArray[np.uint8]]:
    """Give so many pictures, then nothing until the gate opens."""
    yield from map(grey, range(number))
    gate.wait(WAIT_S)


def test_every_frame_of_a_recording_is_answered_in_order_and_then_it_ends(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    seen = []
    with Watch(runtime, map(grey, range(5)), "Is it?", every_frame=True) as watch:
        for answer in watch:
            assert (answer.text, answer.dropped) == ("yes", 0)
            assert watch.frame is not None
            seen.append((shown(watch), watch.frame.index))
    assert seen == [(number, number) for number in range(5)]
    assert watch.counts == WatchCounts(frames=5, answers=5)
    assert next(watch, None) is None


def test_a_recording_is_not_read_ahead(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    taken: list[int] = []

    def source() -> Iterator[NDArray[np.uint8]]:
        for number in range(3):
            taken.append(number)
            yield grey(number)

    with Watch(runtime, source(), "Is it?", every_frame=True) as watch:
        for number in range(3):
            next(watch)
            assert taken == list(range(number + 1))


def test_while_an_answer_is_made_the_newest_frame_waits_and_the_others_are_dropped(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])

    def source() -> Iterator[NDArray[np.uint8]]:
        yield grey(0)
        assert fault.reached.wait(WAIT_S)
        yield from map(grey, range(1, 6))
        fault.release.set()

    with Watch(runtime, source(), "Is it?") as watch:
        answers = [(shown(watch), answer.dropped) for answer in watch]
    assert answers == [(0, 0), (5, 4)]
    assert watch.counts == WatchCounts(frames=6, answers=2, dropped=4)


def test_frames_are_copied_when_they_come_off_the_source(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="encode", at=0, kind="hang")
    runtime, engine = open_fake(script="yes", faults=[fault])
    buffer = grey(7)

    def source() -> Iterator[NDArray[np.uint8]]:
        yield buffer
        buffer[:] = 9
        fault.release.set()

    with Watch(runtime, source(), "Is it?") as watch:
        next(watch)
        assert shown(watch) == 7
    keys = {call.key for call in engine.calls if call.stage == "encode"}
    runtime.ask(grey(7), "Was it?")
    assert {call.key for call in engine.calls if call.stage == "encode"} == keys


def test_a_frame_keeps_the_moment_it_came_off_the_source_or_its_own(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    own = Frame(grey(1), captured_s=time.monotonic() - 3600, captured_wall_s=5.0, source="yard", index=77)
    moments: list[float] = []

    def source() -> Iterator[Any]:
        moments.append(time.monotonic())
        yield jpeg(0)
        moments.append(time.monotonic())
        yield own

    with Watch(runtime, source(), "Is it?", every_frame=True) as watch:
        next(watch)
        assert watch.frame is not None
        first = watch.frame
        next(watch)
        assert watch.frame is own
    assert moments[0] <= first.captured_s <= moments[1]
    assert (first.source, first.index) == ("<bytes>", 0)


@pytest.mark.parametrize("every_frame", [True, False])
def test_a_frame_that_is_no_picture_is_counted_and_passed_over(open_fake: OpenFake, every_frame: bool) -> None:
    runtime, _ = open_fake(script="yes")
    may_go_on = threading.Semaphore(0)

    def source() -> Iterator[Any]:
        for item in (jpeg(0), jpeg(1, cut=600), None, b"hello", "nowhere.png", grey(2)):
            yield item
            assert every_frame or may_go_on.acquire(timeout=WAIT_S)

    def let_go_on(watch: Watch) -> None:
        for number in range(1, 7):
            wait_for(lambda number=number: watch.counts.answers + watch.counts.bad >= number)  # type: ignore[misc]
            may_go_on.release()

    with Watch(runtime, source(), "Is it?", every_frame=every_frame) as watch:
        helper = threading.Thread(target=let_go_on, args=(watch,), daemon=True)
        helper.start()
        assert [answer.dropped for answer in watch] == [0, 4]
        helper.join(WAIT_S)
    assert watch.counts == WatchCounts(frames=6, answers=2, bad=4)


def test_a_damaged_frame_gives_its_turn_back_to_the_one_that_it_displaced(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])

    def source() -> Iterator[Any]:
        yield grey(0)
        assert fault.reached.wait(WAIT_S)
        yield grey(1)
        yield jpeg(2, cut=600)
        fault.release.set()
        raise OSError("unplugged in the middle of a frame")

    watch = Watch(runtime, source(), "Is it?")
    for number in range(2):
        next(watch)
        assert shown(watch) == number
    with pytest.raises(SourceError, match="unplugged"):
        next(watch)
    assert watch.counts == WatchCounts(frames=3, answers=2, bad=1)


def test_frames_that_are_too_old_are_counted_as_late_and_never_answered(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    now_s = time.monotonic()
    frames = [Frame(grey(number), now_s - (3600 if number % 2 else 0), 0.0, index=number) for number in range(6)]
    with Watch(runtime, frames, "Is it?", every_frame=True, max_frame_age_s=1800) as watch:
        seen = [shown(watch) for _ in watch]
    assert seen == [0, 2, 4]
    assert watch.counts == WatchCounts(frames=6, answers=3, late=3)


def test_a_frame_whose_answer_takes_too_long_is_counted_as_late_and_the_watch_goes_on(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])

    def source() -> Iterator[NDArray[np.uint8]]:
        yield grey(0)
        fault.release.set()
        yield grey(1)

    with Watch(runtime, source(), "Is it?", every_frame=True, deadline_s=1.0) as watch:
        answer = next(watch)
        assert (shown(watch), answer.dropped) == (1, 1)
    assert watch.counts == WatchCounts(frames=2, answers=1, late=1)


def test_a_fault_of_an_engine_ends_the_watch(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes", faults=[FakeFault(stage="encode", at=0)])
    watch = Watch(runtime, map(grey, range(5)), "Is it?", every_frame=True)
    with pytest.raises(EngineFault):
        next(watch)
    assert next(watch, None) is None
    wait_for(lambda: watch.counts == WatchCounts(frames=1, cancelled=1))
    assert runtime.ask(grey(1), "Is it?").text == "yes"


def test_a_source_that_fails_is_told_after_its_last_frame_was_answered(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")

    def source() -> Iterator[NDArray[np.uint8]]:
        yield grey(3)
        raise OSError("the camera was unplugged")

    watch = Watch(runtime, source(), "Is it?")
    assert next(watch).text == "yes"
    assert shown(watch) == 3
    with pytest.raises(SourceError, match=r"after 1 frames: OSError: the camera was unplugged") as caught:
        next(watch)
    assert isinstance(caught.value.__cause__, OSError)
    assert next(watch, None) is None


def test_an_error_of_our_own_comes_out_of_a_source_as_it_is(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")

    def source() -> Iterator[NDArray[np.uint8]]:
        yield from ()
        raise SourceError("no camera at /dev/video7")

    with pytest.raises(SourceError, match=r"^no camera at /dev/video7$"):
        next(Watch(runtime, source(), "Is it?"))


def test_a_source_that_cannot_even_begin_is_a_source_error(open_fake: OpenFake) -> None:
    class Broken:
        def __iter__(self) -> Iterator[Any]:
            raise PermissionError("no access")

    runtime, _ = open_fake(script="yes")
    with pytest.raises(SourceError, match="no access"):
        next(Watch(runtime, Broken(), "Is it?"))


def test_an_empty_source_ends_at_once(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    with Watch(runtime, [], "Is it?") as watch:
        assert list(watch) == []
    assert watch.counts == WatchCounts()


def test_closing_from_another_thread_ends_the_wait_for_a_frame_even_if_the_source_hangs(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    gate = threading.Event()
    watch = Watch(runtime, blocked_after(1, gate), "Is it?")
    next(watch)
    closer = threading.Thread(target=watch.close, args=(0.05,))
    closer.start()
    assert next(watch, None) is None
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert watch.counts == WatchCounts(frames=1, answers=1, abandoned=1)
    gate.set()
    wait_for(lambda: watch.counts.abandoned == 0)


def test_closing_ends_the_thread_with_the_next_frame_and_closes_a_generator(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    before = num_threads()
    ended: list[str] = []

    def source() -> Iterator[NDArray[np.uint8]]:
        try:
            while True:
                yield grey(1)
                time.sleep(0.005)
        finally:
            ended.append(threading.current_thread().name)

    with Watch(runtime, source(), "Is it?") as watch:
        next(watch)
        assert num_threads() == before + 1
    assert ended == ["edge-vl-frames"]
    assert num_threads() == before
    check_sum(watch.counts)


def test_closing_while_an_answer_is_made_cancels_it(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    watch = Watch(runtime, [grey(0)], "Is it?")
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(next(watch, None)))
    reader.start()
    assert fault.reached.wait(WAIT_S)
    watch.close()
    reader.join(WAIT_S)
    fault.release.set()
    assert found == [None]
    assert watch.counts == WatchCounts(frames=1, cancelled=1)


def test_a_source_may_close_its_own_watch(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    watches: list[Watch] = []
    ready = threading.Event()

    def source() -> Iterator[NDArray[np.uint8]]:
        assert ready.wait(WAIT_S)
        watches[0].close()
        yield grey(0)

    watches.append(Watch(runtime, source(), "Is it?"))
    ready.set()
    assert list(watches[0]) == []
    wait_for(lambda: watches[0].counts.abandoned == 0)


def test_a_watch_that_its_owner_drops_ends_its_thread(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    before = num_threads()

    def source() -> Iterator[NDArray[np.uint8]]:
        while True:
            yield grey(1)
            time.sleep(0.005)

    watch = Watch(runtime, source(), "Is it?")
    next(watch)
    del watch
    gc.collect()
    wait_for(lambda: num_threads() == before)


def test_two_hundred_watches_leave_no_thread_behind(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    before = num_threads()
    for number in range(200):
        with Watch(runtime, [grey(number)], "Is it?") as watch:
            if number % 2:
                next(watch)
    wait_for(lambda: num_threads() == before)


def test_answers_start_so_far_apart_whatever_the_wall_clock_does(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _ = open_fake(script="yes")
    real_time = time.time
    jumps_s = iter([-3600.0, 86_400.0, -7200.0, 0.0])
    starts_s: list[float] = []
    ask = runtime.stream

    def stream(*args: Any, **options: Any) -> AnswerStream:
        starts_s.append(time.monotonic())
        jump_s = next(jumps_s)
        monkeypatch.setattr(time, "time", lambda: real_time() + jump_s)
        return ask(*args, **options)

    monkeypatch.setattr(runtime, "stream", stream)

    def source() -> Iterator[NDArray[np.uint8]]:
        number = 0
        while True:
            yield grey(number)
            number += 1
            time.sleep(0.005)

    with Watch(runtime, source(), "Is it?", every_s=0.1, max_frame_age_s=60, deadline_s=60) as watch:
        started_s = time.monotonic()
        for _ in range(4):
            next(watch)
        assert time.monotonic() - started_s < WAIT_S
    gaps_s = np.diff(starts_s)
    assert min(gaps_s) >= 0.099
    assert watch.counts.late == 0
    check_sum(watch.counts)


def test_when_it_is_due_the_newest_frame_is_taken(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    watch = Watch(runtime, map(grey, range(50)), "Is it?", every_s=0.2)
    wait_for(lambda: watch.counts.frames == 50)
    next(watch)
    assert shown(watch) == 49
    watch.close()
    assert watch.counts == WatchCounts(frames=50, answers=1, dropped=49)


def overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every running answer look as if it would need an hour more."""
    monkeypatch.setattr(AnswerStream, "progress", property(lambda self: Progress(0.1, 3600.0)))


def test_an_answer_that_will_be_too_late_makes_room_for_a_newer_frame_but_not_for_ever(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FakeFault(stage="decode", at=0, times=1000, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    overdue(monkeypatch)
    started: list[int] = []
    ask = runtime.stream

    def stream(frame: Frame, *args: Any, **options: Any) -> AnswerStream:
        started.append(int(frame.pixels[0, 0, 0]))
        if len(started) > MAX_CANCELLATIONS:
            fault.release.set()
        return ask(frame, *args, **options)

    monkeypatch.setattr(runtime, "stream", stream)

    def source() -> Iterator[NDArray[np.uint8]]:
        for number in range(MAX_CANCELLATIONS + 3):
            yield grey(number)
            wait_for(lambda number=number: len(started) > min(number, MAX_CANCELLATIONS))  # type: ignore[misc]
            if number < MAX_CANCELLATIONS:
                time.sleep(0.01)

    with Watch(runtime, source(), "Is it?", max_frame_age_s=600) as watch:
        answer = next(watch)
        assert started == list(range(MAX_CANCELLATIONS + 1))
        assert shown(watch) == MAX_CANCELLATIONS
        assert answer.dropped == MAX_CANCELLATIONS
        assert watch.counts.cancelled == MAX_CANCELLATIONS
    check_sum(watch.counts)


@pytest.mark.parametrize("options", [{}, {"max_frame_age_s": 600, "every_frame": True}])
def test_no_answer_is_given_up_without_a_limit_or_when_every_frame_counts(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    runtime, _ = open_fake(script="yes", latencies=FakeLatencies(decode_s=0.01))
    overdue(monkeypatch)
    with Watch(runtime, map(grey, range(20)), "Is it?", **options) as watch:
        assert len(list(watch)) >= 1
    assert watch.counts.cancelled == 0
    check_sum(watch.counts)


def test_answers_that_measured_costs_say_will_be_late_are_given_up_early(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGE_VL_CACHE_DIR", str(tmp_path))  # no costs from before
    runtime, _ = open_fake(script="x" * 60, latencies=FakeLatencies(decode_s=0.01))
    runtime.ask(grey(0), "Is it?")

    def source() -> Iterator[NDArray[np.uint8]]:
        number = 0
        while True:
            yield grey(number % 200)
            number += 1
            time.sleep(0.02)

    with Watch(runtime, source(), "Is it?", max_frame_age_s=0.3) as watch:
        reader = threading.Thread(target=lambda: list(watch))
        reader.start()
        wait_for(lambda: watch.counts.late >= 2)
        watch.close()
        reader.join(WAIT_S)
    counts = watch.counts
    assert counts.answers == 0
    assert MAX_CANCELLATIONS <= counts.cancelled <= MAX_CANCELLATIONS * (counts.late + 1) + 1
    check_sum(counts)


def test_a_full_queue_is_waited_for_and_newer_frames_take_the_place(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault], max_waiting=1)
    other = runtime.stream([], "Who is first?")
    assert fault.reached.wait(WAIT_S)

    def source() -> Iterator[NDArray[np.uint8]]:
        yield grey(0)
        time.sleep(0.1)
        yield grey(1)
        wait_for(lambda: watch.counts.dropped == 1)
        fault.release.set()

    watch = Watch(runtime, source(), "Is it?")
    with watch:
        assert next(watch).text == "yes"
        assert shown(watch) == 1
        assert next(watch, None) is None
    assert other.answer.text == "yes"
    assert watch.counts == WatchCounts(frames=2, answers=1, dropped=1)


def test_each_watch_is_a_stream_of_its_own_unless_it_is_named(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _ = open_fake(script="yes")
    names: list[str] = []
    ask = runtime.stream

    def stream(*args: Any, **options: Any) -> AnswerStream:
        names.append(options["stream"])
        return ask(*args, **options)

    monkeypatch.setattr(runtime, "stream", stream)
    for options in ({}, {}, {"stream": "yard"}):
        with Watch(runtime, map(grey, range(2)), "Is it?", every_frame=True, **options) as watch:  # type: ignore[arg-type]
            list(watch)
    assert names[0] == names[1] != names[2] == names[3]
    assert names[4:] == ["yard", "yard"]
    assert names[0]


def test_the_end_of_the_runtime_ends_the_watch_with_an_error(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    watch = Watch(runtime, map(grey, range(3)), "Is it?", every_frame=True)
    found: list[BaseException] = []

    def read() -> None:
        try:
            next(watch)
        except Cancelled as error:
            found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert fault.reached.wait(WAIT_S)
    runtime.close(0.01)
    reader.join(WAIT_S)
    fault.release.set()
    assert [type(error) for error in found] == [Cancelled]
    assert watch.counts.cancelled == 1
    check_sum(watch.counts)


@pytest.mark.parametrize(
    "source",
    [b"bytes", bytearray(b"bytes"), np.zeros((4, 4, 3), np.uint8), Frame(np.zeros((4, 4, 3), np.uint8), 0, 0)],
)
def test_one_picture_is_no_source(open_fake: OpenFake, source: Any) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(RequestError, match="source is one picture") as caught:
        Watch(runtime, source, "Is it?")
    assert caught.value.field == "source"


@pytest.mark.parametrize("source", ["synthetic", "door.jpg", Path("door.jpg"), 0])
def test_what_open_source_takes_is_no_source_yet(open_fake: OpenFake, source: Any) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(RequestError, match=r"open_source\(\.\.\.\) opens a camera") as caught:
        runtime.watch(source, "Is it?")
    assert caught.value.field == "source"


def test_a_mistyped_option_is_named_with_the_one_that_was_meant(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(
        RequestError, match=r"'evry_s'; did you mean 'every_s'\? Known: every_s, .*, max_tokens"
    ) as caught:
        runtime.watch([grey(0)], "Is it?", evry_s=1)  # type: ignore[call-arg]
    assert caught.value.field == "evry_s"
    with pytest.raises(RequestError, match=r"'dead_line_s'; did you mean 'deadline_s'\?"):
        runtime.awatch([grey(0)], "Is it?", dead_line_s=1)


def test_every_option_of_a_watch_is_among_the_known_ones() -> None:
    parameters = inspect.signature(Watch).parameters.values()
    own = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    assert list(OWN_OPTIONS) == own


def test_a_clip_in_one_array_is_a_source(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    with Watch(runtime, np.zeros((3, 20, 30, 3), np.uint8), "Is it?", every_frame=True) as watch:
        assert len(list(watch)) == 3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"source": 5}, "source"),
        ({"question": " "}, "question"),
        ({"question": b"Is it?"}, "question"),
        ({"every_s": 0}, "every_s"),
        ({"every_s": float("nan")}, "every_s"),
        ({"every_s": "1"}, "every_s"),
        ({"every_frame": 1}, "every_frame"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_frame_age_s": -1}, "max_frame_age_s"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_starts(
    open_fake: OpenFake, options: dict[str, Any], field: str
) -> None:
    runtime, _ = open_fake(script="yes")
    before = num_threads()
    with pytest.raises(RequestError) as caught:
        Watch(runtime, **{"source": [grey(0)], "question": "Is it?", **options})
    assert caught.value.field == field
    assert num_threads() == before


def test_a_model_that_reads_text_only_cannot_watch(open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = open_fake(script="yes")
    monkeypatch.setattr(Runtime, "vision_spec", None)
    with pytest.raises(ImageError, match="reads text only"):
        Watch(runtime, [grey(0)], "Is it?")


def test_a_wrong_mix_of_colour_order_and_picture_is_the_callers_error(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    pictures: list[Any] = [np.zeros((20, 30, 3), np.uint8) + np.array([9, 0, 0], np.uint8), Image.new("RGB", (30, 20))]
    watch = Watch(runtime, pictures, "Is it?", bgr=True, every_frame=True)
    next(watch)
    assert watch.frame is not None
    assert watch.frame.pixels[0, 0].tolist() == [0, 0, 9]
    with pytest.raises(RequestError, match="bgr"):
        next(watch)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_every_frame_is_accounted_for(open_fake: OpenFake, seed: int) -> None:
    runtime, _ = open_fake(script="yes", latencies=FakeLatencies(encode_s=0.0005, decode_s=0.0005))
    rng = np.random.default_rng(seed)
    damaged = jpeg(0, cut=600)

    def source() -> Iterator[Any]:
        for number in range(150):
            if rng.random() < 0.5:
                time.sleep(float(rng.exponential(0.003)))
            kind = rng.integers(4)
            old_s = time.monotonic() - (100 if kind == 2 else 0)
            yield (grey(number), damaged, Frame(grey(number), old_s, 0.0), jpeg(number))[kind]

    last = -1
    total = 0
    with Watch(runtime, source(), "Is it?", max_frame_age_s=50, every_frame=seed == 3) as watch:
        for answer in watch:
            total += answer.dropped + 1
            assert watch.frame is not None
            assert watch.frame.index > last
            last = watch.frame.index
            assert time.monotonic() - watch.frame.captured_s < 50
            if watch.counts.answers == 60 and seed == 2:
                break
    counts = watch.counts
    check_sum(counts)
    assert counts.answers > 0
    assert total <= counts.frames


def test_the_bundled_model_tells_truly_what_each_frame_shows() -> None:
    scenes: dict[str, dict[str, str]] = json.loads((PICTURES / "scenes.json").read_text())
    question = "Describe the picture."
    names = sorted(scenes)
    with Runtime.open(model="bundled", threads=1) as runtime:
        truth = {name: runtime.ask(PICTURES / name, question).text for name in names}
        assert len(set(truth.values())) == len(names)
        paths = [PICTURES / name for name in names]
        with Watch(runtime, paths, question, every_frame=True) as watch:
            found = {}
            for answer in watch:
                assert watch.frame is not None
                found[Path(watch.frame.source).name] = answer.text
        assert found == truth
        with Watch(runtime, (path.read_bytes() for path in paths), question) as watch:
            assert [answer.text for answer in watch][-1] == truth[names[-1]]
        check_sum(watch.counts)


_FORKING = """
import os, sys, threading, time
import numpy as np
from edge_vl import Runtime
from edge_vl.sources.pushed import PushedFrames
from edge_vl.testing import FakeEngine

engine = FakeEngine()
runtime = Runtime.open(sys.argv[1], vision_engine=engine, language_engine=engine)
watch = runtime.watch(PushedFrames(), "what?")
held = threading.Event()

def hold():
    with watch._feed.mailbox._condition:  # as the watch's thread does whenever a frame comes
        held.set()
        time.sleep(1)

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    with watch:  # ends by closing it
        pass
    os._exit(0)
until_s = time.monotonic() + 10
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if time.monotonic() > until_s:
        os.kill(child, 9)
        sys.exit("the child hangs")
    time.sleep(0.01)
assert watch._feed._thread.is_alive(), "the parent's goes on"
runtime.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_ends_without_waiting_for_the_watch_of_its_parent(model_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKING, str(model_folder)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
