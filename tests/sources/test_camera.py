"""The camera: its slot, its states, its counters, and what it does when its library fails or hangs."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest

from edge_vl.backoff import Backoff
from edge_vl.errors import SourceError
from edge_vl.frame import Frame
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.open import open_source
from edge_vl.sources.source import LiveSource
from edge_vl.sources.view import View
from tests.sources.fake_capture import FakeCamera, StateLog, until

SOON = Backoff(first_s=0.01, cap_s=0.02)
QUICK = CameraSettings(open_timeout_s=0.2, read_timeout_s=0.2, max_fps=None, backoff=SOON)
PATIENT = CameraSettings(open_timeout_s=10, read_timeout_s=10, max_fps=None, backoff=SOON)

OpenCamera = Callable[..., Camera]


@pytest.fixture
def fake() -> Iterator[FakeCamera]:
    fake = FakeCamera()
    yield fake
    for event in (fake.opening, fake.grabbing, fake.closing):
        event.set()
    fake.give(1000)


@pytest.fixture
def start(fake: FakeCamera) -> Iterator[OpenCamera]:
    started: list[Camera] = []

    def start_one(settings: CameraSettings = PATIENT, **options: object) -> Camera:
        camera = Camera(fake.open, name="door", settings=settings, **options)  # type: ignore[arg-type]
        started.append(camera)
        return camera

    yield start_one
    for event in (fake.opening, fake.grabbing, fake.closing):
        event.set()
    fake.give(1000)
    for camera in started:
        camera.close()
    assert until(lambda: fake.num_open == 0), "every connection is given back"


def next_frame(camera: Camera, fake: FakeCamera, index: int = -1) -> Frame:
    fake.give()
    frame = camera.wait_newer(index, 5)
    assert frame is not None
    return frame


def test_it_is_a_live_source(start: OpenCamera) -> None:
    source: LiveSource = start()

    assert source.is_live
    assert source.name == "door"


def test_the_first_frame_makes_it_online_and_waits_for_readers(fake: FakeCamera, start: OpenCamera) -> None:
    log = StateLog()
    before_s, before_wall_s = time.monotonic(), time.time()
    camera = start(on_state=log)
    assert camera.latest() is None
    assert camera.state.status == "connecting"

    frame = next_frame(camera, fake)

    assert camera.latest() is frame
    assert (frame.source, frame.index, frame.width, frame.height) == ("door", 0, 8, 6)
    assert before_s <= frame.captured_s <= time.monotonic()
    assert before_wall_s <= frame.captured_wall_s <= time.time()
    assert until(lambda: log.statuses == ["online"])
    state = camera.state
    assert (state.status, state.reason, state.width, state.height, state.num_connections) == ("online", "", 8, 6, 1)


def test_pixels_are_contiguous_and_cannot_be_written_to(fake: FakeCamera, start: OpenCamera) -> None:
    settings = CameraSettings(max_fps=None, view=View(rotate_deg=90, region=(0, 0, 0.5, 1)))
    frame = next_frame(start(settings), fake)

    assert frame.pixels.shape == (8, 3, 3), "rotated, then cut"
    assert frame.pixels.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        frame.pixels[0, 0, 0] = 1


def test_every_reader_sees_the_newest_frame_and_takes_it_from_nobody(fake: FakeCamera, start: OpenCamera) -> None:
    camera = start()
    first = next_frame(camera, fake)
    assert camera.wait_newer(-1, 0) is first
    assert camera.wait_newer(-1, 0) is first
    assert camera.wait_newer(first.index, 0) is None

    seen: list[int] = []

    def read() -> None:
        frame = camera.wait_newer(first.index, 5)
        seen.append(-1 if frame is None else frame.index)

    readers = [threading.Thread(target=read) for _ in range(5)]
    for reader in readers:
        reader.start()
    fake.give()
    for reader in readers:
        reader.join(5)

    assert seen == [1] * 5


def test_a_slow_reader_gets_the_newest_frame_and_the_index_tells_how_many_it_missed(
    fake: FakeCamera, start: OpenCamera
) -> None:
    camera = start()
    frames = iter(camera)
    fake.give()
    assert next(frames).index == 0

    fake.give(7)
    assert until(lambda: camera.state.num_frames == 8 and camera.state.num_kept == 8)

    frame = next(frames)
    assert frame.index == 7
    assert frame.pixels[0, 0, 0] == 7


def test_frames_beyond_the_limit_are_taken_off_the_camera_but_not_decoded(fake: FakeCamera, start: OpenCamera) -> None:
    fake.interval_s = 0.002
    camera = start(CameraSettings(max_fps=20, backoff=SOON))
    began_s = time.monotonic()

    assert until(lambda: camera.state.num_frames >= 150)

    state = camera.state
    took_s = time.monotonic() - began_s
    assert 1 <= state.num_kept <= took_s * 20 + 2
    assert fake.num_retrieved <= state.num_kept + 1
    frame = camera.latest()
    assert frame is not None
    assert frame.pixels[0, 0, 0] == frame.index % 256, "the index counts the frames passed over, too"


def test_a_damaged_frame_is_dropped_and_counted_and_the_next_one_is_shown(fake: FakeCamera, start: OpenCamera) -> None:
    fake.bad = {1, 2}
    camera = start()
    assert next_frame(camera, fake).index == 0

    fake.give(3)

    frame = camera.wait_newer(0, 5)
    assert frame is not None
    assert frame.index == 3
    state = camera.state
    assert (state.num_frames, state.num_kept, state.num_bad, state.status) == (4, 2, 2, "online")


def test_a_camera_that_gives_damaged_frames_only_is_offline(fake: FakeCamera, start: OpenCamera) -> None:
    fake.interval_s = 0.01
    fake.bad = set(range(10_000))
    camera = start(QUICK)

    assert until(lambda: camera.state.status == "offline")
    assert "none of its frames could be decoded for 0.2 s: damaged" in camera.state.reason
    assert camera.latest() is None


def test_it_is_offline_with_the_reason_and_comes_back_by_itself(fake: FakeCamera, start: OpenCamera) -> None:
    log = StateLog()
    fake.grab_timeout_s = 0.05
    camera = start(on_state=log)
    next_frame(camera, fake)
    assert until(lambda: camera.state.status == "offline")
    assert camera.latest() is None, "an old frame is not shown as if it were of now"

    frame = next_frame(camera, fake, index=0)

    assert frame.index == 1
    assert until(lambda: log.statuses == ["online", "offline", "online"])
    assert log.states[1].reason == "rtsp://***@host/ gave nothing"
    assert camera.state.num_connections == 2
    assert fake.max_open == 1, "the old connection is closed before the next is opened"


def test_the_end_of_a_stream_is_a_failure(fake: FakeCamera, start: OpenCamera, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sources.fake_capture.FakeCapture.grab", lambda capture: False)
    camera = start()

    assert until(lambda: camera.state.reason == "it gives no more frames")
    assert camera.state.status == "offline"


@pytest.mark.parametrize("error", [RuntimeError("rtsp://a:hidden@b/ odd"), MemoryError(), SourceError("gone")])
def test_whatever_the_library_raises_is_a_failure_and_never_the_end(
    fake: FakeCamera, start: OpenCamera, error: BaseException
) -> None:
    fake.retrieve_error = error if not isinstance(error, SourceError) else None
    fake.open_error = error if isinstance(error, SourceError) else None
    camera = start()
    fake.give(20)
    assert until(lambda: camera.state.num_failures >= 3)
    assert "hidden" not in camera.state.reason
    assert camera.state.status == "offline"

    fake.retrieve_error = fake.open_error = None

    next_frame(camera, fake)
    assert camera.state.num_failures == 0


def test_a_camera_that_is_missing_two_hundred_times_costs_nothing(fake: FakeCamera, start: OpenCamera) -> None:
    fake.open_error = SourceError("there is no camera")
    log = StateLog()
    tiny = CameraSettings(backoff=Backoff(first_s=0.001, cap_s=0.001))
    camera = start(tiny, on_state=log)
    assert until(lambda: fake.num_opened >= 50)
    process = psutil.Process()
    gc.collect()
    threads, files, objects = process.num_threads(), process.num_fds(), len(gc.get_objects())

    assert until(lambda: fake.num_opened >= 250)

    gc.collect()
    assert process.num_threads() <= threads
    assert process.num_fds() <= files
    assert len(gc.get_objects()) - objects < 150, "200 failures leave nothing"
    assert log.statuses == ["offline"], "one event, not two hundred"
    assert camera.state.num_failures >= 249


def test_delays_grow_with_each_failure_and_begin_anew_only_after_a_good_connection(
    fake: FakeCamera, start: OpenCamera, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def delay_s(backoff: Backoff, num_failures: int, random_source: object) -> float:
        asked.append(num_failures)
        return 0.005

    monkeypatch.setattr(Backoff, "delay_s", delay_s)
    fake.grab_timeout_s = 0.01
    camera = start()
    for _ in range(3):  # online for a moment, then away
        next_frame(camera, fake, index=camera.state.num_frames - 1)
        assert until(lambda: camera.state.status == "offline")
    assert asked == sorted(set(asked)), "a connection that lived for a moment does not start over"

    monkeypatch.setattr("edge_vl.sources.camera_record._LONG_LIFE_S", 0.0)
    next_frame(camera, fake, index=camera.state.num_frames - 1)
    assert until(lambda: camera.state.status == "offline")

    assert 1 in asked[3:]


def test_switched_off_it_gives_the_camera_back_and_has_no_frame(fake: FakeCamera, start: OpenCamera) -> None:
    log = StateLog()
    camera = start(on_state=log)
    next_frame(camera, fake)

    camera.enable(False)

    assert camera.state.status == "disabled"
    assert camera.latest() is None
    fake.give()  # lets the grab that is under way return
    assert until(lambda: fake.num_open == 0)
    opened = fake.num_opened
    fake.give()
    assert camera.wait_newer(-1, 0.05) is None
    assert fake.num_opened == opened

    camera.enable(True)
    assert camera.wait_newer(0, 5) is not None
    assert until(lambda: log.statuses == ["online", "disabled", "connecting", "online"])


def test_switching_it_to_what_it_is_changes_nothing(fake: FakeCamera, start: OpenCamera) -> None:
    log = StateLog()
    camera = start(on_state=log)
    next_frame(camera, fake)

    camera.enable(True)

    assert camera.state.status == "online"
    assert fake.num_opened == 1


def test_switching_it_on_does_not_wait_for_the_delay(fake: FakeCamera, start: OpenCamera) -> None:
    fake.open_error = SourceError("gone")
    camera = start(CameraSettings(backoff=Backoff(first_s=60, cap_s=60)))
    assert until(lambda: camera.state.status == "offline")
    fake.open_error = None

    camera.enable(False)
    camera.enable(True)

    next_frame(camera, fake)


def test_an_opening_that_hangs_is_told_and_left_behind(fake: FakeCamera, start: OpenCamera) -> None:
    fake.opening.clear()
    camera = start(QUICK)

    assert until(lambda: camera.state.status == "offline", 2)
    assert camera.state.reason == "opening it hangs: it did not return within 0.2 s"
    assert until(lambda: camera.state.num_abandoned == 1)


def test_a_reading_that_hangs_makes_it_offline_and_another_connection_takes_over(
    fake: FakeCamera, start: OpenCamera
) -> None:
    log = StateLog()
    camera = start(QUICK, on_state=log)
    next_frame(camera, fake)
    fake.grabbing.clear()
    fake.give()
    assert until(lambda: log.statuses[-1:] == ["offline"], 2)
    assert "reading it hangs" in log.states[-1].reason
    stuck = fake.grabbing
    fake.grabbing = threading.Event()
    fake.grabbing.set()

    assert next_frame(camera, fake, index=0).index == 1
    assert camera.state.num_abandoned == 1

    stuck.set()  # returns at last, with a frame that nobody wants any more
    fake.interval_s = 0.01
    assert until(lambda: camera.state.num_abandoned == 0)
    assert until(lambda: fake.num_open == 1), "its connection was closed"
    assert camera.state.status == "online"


def test_no_more_than_one_hanging_call_is_left_behind(fake: FakeCamera, start: OpenCamera) -> None:
    fake.opening.clear()
    threads = threading.active_count()
    camera = start(QUICK)
    assert until(lambda: fake.num_opened == 2, 3), "the replacement is tried"

    time.sleep(0.8)

    assert fake.num_opened == 2, "and hangs: nothing more is begun"
    assert threading.active_count() <= threads + 3
    assert camera.state.num_abandoned == 1

    fake.opening.set()
    fake.interval_s = 0.01
    assert camera.wait_newer(-1, 5) is not None, "as soon as they return it goes on"
    assert until(lambda: camera.state.num_abandoned == 0)
    assert until(lambda: fake.num_open == 1)


class NoThreads:
    """The system as it is when it has no thread left for some names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self.num_refused = 0
        start_thread = threading.Thread.start

        def start_or_refuse(thread: threading.Thread) -> None:
            if thread.name in self.names:
                self.num_refused += 1
                raise RuntimeError("can't start new thread")
            start_thread(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_refuse)


def test_where_no_thread_can_take_over_it_tries_again_until_one_can(
    fake: FakeCamera, start: OpenCamera, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge_vl.sources.camera._RETRY_S", 0.05)
    system = NoThreads(monkeypatch)
    stuck = fake.opening
    stuck.clear()
    camera = start(QUICK)
    system.names = {"edge-vl-camera-door"}
    assert until(lambda: system.num_refused >= 3), "again and again"
    assert (camera.state.status, camera.state.num_abandoned) == ("offline", 0)
    assert "camera door has no thread to go on: can't start new thread" in caplog.text

    fake.opening = threading.Event()
    fake.opening.set()
    system.names = set()
    fake.interval_s = 0.01
    try:
        assert camera.wait_newer(-1, 5) is not None
        assert camera.state.num_abandoned == 1
    finally:
        stuck.set()
    assert until(lambda: camera.state.num_abandoned == 0)


def test_where_no_thread_can_take_over_it_goes_on_when_the_call_returns_at_last(
    fake: FakeCamera, start: OpenCamera, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = NoThreads(monkeypatch)
    fake.opening.clear()
    camera = start(QUICK)
    system.names = {"edge-vl-camera-door"}
    assert until(lambda: system.num_refused >= 1)

    fake.interval_s = 0.01
    fake.opening.set()

    assert camera.wait_newer(-1, 5) is not None
    assert camera.state.num_abandoned == 0


@pytest.mark.parametrize("name", ["edge-vl-camera-door", "edge-vl-camera-watch-door"])
def test_where_a_thread_is_missing_from_the_start_it_is_an_error_and_leaves_none(
    fake: FakeCamera, start: OpenCamera, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    NoThreads(monkeypatch).names = {name}

    with pytest.raises(RuntimeError, match="can't start new thread"):
        start()

    fake.give()
    assert until(lambda: not [one for one in threading.enumerate() if one.name == "edge-vl-camera-door"])
    assert fake.num_open == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_library_that_ends_its_thread_is_replaced_by_another_connection(fake: FakeCamera, start: OpenCamera) -> None:
    fake.open_error = SystemExit(3)
    camera = start(QUICK)
    assert until(lambda: fake.num_opened == 1)
    fake.open_error = None
    fake.interval_s = 0.01

    assert camera.wait_newer(-1, 5) is not None
    assert until(lambda: camera.state.num_abandoned == 0)


def test_the_end_of_the_program_waits_for_a_closed_camera_until_it_was_given_back(
    fake: FakeCamera, start: OpenCamera, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go: list[object] = []
    monkeypatch.setattr(atexit, "unregister", let_go.append)
    fake.opening.clear()
    camera = start()
    assert until(lambda: fake.num_opened == 1)

    camera.close(0.05)
    assert let_go == [], "it is in the library still"
    fake.opening.set()

    assert until(lambda: camera.close in let_go)


def test_a_closing_that_hangs_is_left_behind_too(
    fake: FakeCamera, start: OpenCamera, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl.sources.camera_reader._CLOSE_S", 0.1)
    fake.grab_timeout_s = 0.05
    camera = start(QUICK)
    next_frame(camera, fake)
    fake.closing.clear()

    assert until(lambda: camera.state.num_abandoned == 1, 3)
    fake.closing.set()
    next_frame(camera, fake, index=0)


def test_closing_ends_every_wait_and_every_iteration(fake: FakeCamera, start: OpenCamera) -> None:
    log = StateLog()
    fake.grab_timeout_s = 0.05
    camera = start(on_state=log)
    results: list[object] = []
    readers = [
        threading.Thread(target=lambda: results.append(camera.wait_newer(-1, 60))),
        threading.Thread(target=lambda: results.append(list(camera))),
    ]
    for reader in readers:
        reader.start()

    camera.close()
    camera.close()

    for reader in readers:
        reader.join(5)
    assert None in results
    assert [] in results
    assert camera.state.status == "closed"
    assert log.statuses[-1] == "closed"
    camera.enable(False)
    assert camera.state.status == "closed"


def test_closing_does_not_wait_for_a_camera_that_hangs(fake: FakeCamera, start: OpenCamera) -> None:
    fake.opening.clear()
    camera = start(PATIENT)
    assert until(lambda: fake.num_opened == 1)
    began_s = time.monotonic()

    camera.close(timeout_s=0.1)

    assert time.monotonic() - began_s < 3, "not until its deadline of ten seconds"
    assert camera.state.status == "closed"


def test_closing_from_within_on_state_works(fake: FakeCamera, start: OpenCamera) -> None:
    holder: list[Camera] = []
    statuses: list[str] = []

    def on_state(state: object) -> None:
        statuses.append(holder[0].state.status)
        holder[0].close()

    holder.append(start(on_state=on_state))
    fake.give(2)

    assert until(lambda: statuses[-1:] == ["closed"])


def test_an_on_state_that_raises_is_logged_and_the_camera_lives_on(
    fake: FakeCamera, start: OpenCamera, caplog: pytest.LogCaptureFixture
) -> None:
    def on_state(state: object) -> None:
        raise ZeroDivisionError

    camera = start(on_state=on_state)
    next_frame(camera, fake)
    camera.enable(False)

    assert until(lambda: sum("on_state failed" in record.message for record in caplog.records) == 2)


def test_its_name_never_holds_a_password(fake: FakeCamera) -> None:
    with Camera(fake.open, name="rtsp://me:hidden@host/cam") as camera:
        fake.give()
        frame = camera.wait_newer(-1, 5)
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("edge-vl-camera")]

    assert camera.name == "rtsp://***@host/cam"
    assert frame is not None
    assert frame.source == camera.name
    assert {"edge-vl-camera-rtsp://***@host/cam", "edge-vl-camera-watch-rtsp://***@host/cam"} <= set(threads)
    assert not [name for name in threads if "hidden" in name]


def test_it_holds_one_frame_and_no_more(fake: FakeCamera, start: OpenCamera) -> None:
    fake.size = (2048, 2048)  # 12 MiB each
    camera = start()
    process = psutil.Process(os.getpid())
    next_frame(camera, fake)
    before = process.memory_info().rss
    for index in range(20):
        next_frame(camera, fake, index)

    assert process.memory_info().rss - before < 60 << 20
    frame = camera.latest()
    assert frame is not None
    assert np.count_nonzero(frame.pixels[0, 0]) == 3


def test_status_changes_are_logged_without_passwords(
    fake: FakeCamera, start: OpenCamera, caplog: pytest.LogCaptureFixture
) -> None:
    fake.open_error = SourceError("rtsp://me:hidden@host/ cannot be opened")
    with caplog.at_level(logging.DEBUG, logger="edge_vl"):
        camera = start()
        assert until(lambda: "is offline" in caplog.text)
        camera.close()

    assert "hidden" not in caplog.text
    assert "camera door is offline: rtsp://***@host/ cannot be opened" in caplog.text


def test_a_camera_that_comes_back_often_hides_no_line_about_its_loss(
    fake: FakeCamera, start: OpenCamera, caplog: pytest.LogCaptureFixture
) -> None:
    fake.grab_timeout_s = 0.02
    with caplog.at_level(logging.INFO, logger="edge_vl"):
        camera = start()
        for number in range(1, 5):
            fake.give()
            assert until(lambda number=number: camera.state.num_connections == number)  # type: ignore[misc]
            assert until(lambda number=number: caplog.text.count("camera door is offline") == number)  # type: ignore[misc]

    assert caplog.text.count("camera door is online") == 4


_FORKING = """
import os, sys, threading, time
from edge_vl.sources.camera import Camera
from edge_vl.sources.synthetic import SyntheticCapture

camera = Camera(lambda: SyntheticCapture(96, 96, 50.0), name="door")
assert camera.wait_newer(-1, 10) is not None
held = threading.Event()

def hold():
    with camera._record._lock:  # as a thread of the camera does whenever a frame comes
        held.set()
        time.sleep(1)

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    with camera:  # ends by closing it
        sys.exit(0)
until_s = time.monotonic() + 10
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if time.monotonic() > until_s:
        os.kill(child, 9)
        sys.exit("the child hangs")
    time.sleep(0.01)
assert camera.wait_newer(camera.state.num_frames, 10) is not None, "the parent's goes on"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_ends_without_waiting_for_the_camera_of_its_parent() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_library_says_reaches_no_terminal_as_it_is(fake: FakeCamera, start: OpenCamera) -> None:
    fake.open_error = RuntimeError("\x1b]0;PWNED\x07 rtsp://u:ge heim@h/?geheim\nnext")
    camera = start(QUICK)

    assert until(lambda: camera.state.status == "offline")
    assert camera.state.reason == "RuntimeError: \ufffd]0;PWNED\ufffd rtsp://***@h/?*** next"


@pytest.mark.parametrize(
    "login",
    ["admin:a'geheim", 'admin:a"geheim', "admin:<geheim>", "admin:geheim[", "geheim", "a@b:geheim@", "admin:%geheim"],
)
def test_a_password_in_an_address_is_in_nothing_that_a_camera_shows(
    login: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log = StateLog()
    with open_source(f"http://{login}@127.0.0.1:1/x?k=geheim", on_state=log) as camera:  # type: ignore[attr-defined]
        assert until(lambda: bool(log.states))
        shown = [camera.name, repr(camera), repr(camera.state), *(thread.name for thread in threading.enumerate())]
    assert (
        log.states[0].reason == "http://***@127.0.0.1:1/x?... cannot be opened: nobody listens on port 1 of 127.0.0.1"
    )
    assert "geheim" not in f"{shown} {caplog.text}"
