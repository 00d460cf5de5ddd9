"""How old the frame is that an answer is about: a camera at 30 frames/s and a model at two answers a second.

The camera sends its frames in order over a connection, as cameras do: whoever does not take them off in time gets old
ones. Each frame has its number drawn into it, so what the frame behind an answer really was, and when it was made, is
read from its pixels, not believed. The model is the bundled one with a pause before every token. Once in one process
(`Camera`, `Runtime.watch`), and once through a gateway, a broker and their snapshots, from a camera over HTTP.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl import Runtime
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.synthetic import SyntheticCapture, read_number
from edge_vl.watch import Watch
from tests.flapping_camera import FlappingCamera
from tests.gateway_process import GatewayProcess
from tests.mosquitto import has_mosquitto, running_mosquitto
from tests.mqtt_observer import Heard, Observer, read_object
from tests.paced_engine import PacedEngine

FPS = 30.0
WIDTH, HEIGHT = 320, 240
DURATION_S = 60.0
QUICK_S = 10.0
MAX_EXTRA_S = 0.1
MAX_DRIFT_S = 0.03
QUESTION = "What is at the top left?"
ENGINE = PacedEngine("paced", token_s=0.1, is_endless=True)
NUM_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer.

    Attributes:
        number: drawn into its frame.
        age_s: from when that frame was made to when the answer was there.
        told_age_s: the same, as the answer says it.
        answer_s: how long the answer took, as it says.
        dropped: frames passed over before it, as it says.
    """

    number: int
    age_s: float
    told_age_s: float
    answer_s: float
    dropped: int


class NumberedCamera:
    """Makes numbered frames at a fixed rate and gives them in order, however late they are asked for."""

    def __init__(self) -> None:
        """Start its clock."""
        self._drawing = SyntheticCapture(WIDTH, HEIGHT, FPS)
        self._number = -1
        self._closed = threading.Event()
        self.started_s = time.monotonic()

    def grab(self) -> bool:
        """Take the next frame, waiting until it is made."""
        self._number += 1
        return not self._closed.wait(max(0.0, self.made_s(self._number) - time.monotonic()))

    def retrieve(self) -> NDArray[np.uint8]:
        """Draw the frame that was taken last."""
        return self._drawing.draw(self._number)

    def jpeg(self, number: int) -> bytes:
        """Return a frame as it goes over a network."""
        data = io.BytesIO()
        Image.fromarray(self._drawing.draw(number)).save(data, "JPEG", quality=85)
        return data.getvalue()

    def close(self) -> None:
        """End it."""
        self._closed.set()

    def made_s(self, number: int) -> float:
        """Return when a frame was made, on the monotonic clock."""
        return self.started_s + number / FPS


def run(quick: bool) -> Result:
    """Watch for a minute, twice."""
    duration_s = QUICK_S if quick else DURATION_S
    bars, rows = _judged("one process", _watch_here(duration_s))
    if has_mosquitto():
        more_bars, more_rows = _judged("gateway", _watch_through_gateway(duration_s))
        bars, rows = bars | more_bars, rows + more_rows
    else:
        report("mosquitto is not installed: nothing goes through a gateway")
    return Result(bars, rows)


def _watch_here(duration_s: float) -> list[Seen]:
    cameras: list[NumberedCamera] = []

    def open_camera() -> NumberedCamera:
        cameras.append(NumberedCamera())
        return cameras[-1]

    seen: list[Seen] = []
    with (
        Runtime.open("bundled", vision_engine="onnxruntime", language_engine=ENGINE, threads=1) as runtime,
        contextlib.closing(Camera(open_camera, name="numbered", settings=CameraSettings())) as camera,
        Watch(runtime, camera, QUESTION, max_tokens=NUM_TOKENS) as watch,
    ):
        began_s = time.monotonic()
        for answer in watch:
            now_s = time.monotonic()
            frame = watch.frame
            number = None if frame is None else read_number(frame.pixels)
            if number is None:
                raise RuntimeError("a frame has no number that can be read")
            age_s = now_s - cameras[-1].made_s(number)
            seen.append(Seen(number, age_s, answer.frame_age_s or 0.0, answer.timings.total_s, answer.dropped))
            _report("one process", seen)
            if now_s - began_s > duration_s:
                break
    return seen


def _watch_through_gateway(duration_s: float) -> list[Seen]:
    numbered = NumberedCamera()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(running_mosquitto(folder))
        camera = stack.enter_context(FlappingCamera(fps=FPS, picture_of=numbered.jpeg, started_s=numbered.started_s))
        observer = stack.enter_context(Observer(broker.port, ["edge_vl/gw/#"]))
        tables = (
            f'[[camera]]\nname = "numbered"\nsource = "{camera.url}"\nquestion = "{QUESTION}"\n'
            f"max_tokens = {NUM_TOKENS}\nsnapshot = true\n"
        )
        stack.enter_context(GatewayProcess(folder / "gateway", broker.port, tables=tables, engine=ENGINE))
        time.sleep(duration_s)
        heard = observer.heard()
    seen: list[Seen] = []
    answered: Heard | None = None
    for message in heard:
        if message.topic.endswith("/answer"):
            answered = message
        elif message.topic.endswith("/snapshot") and answered is not None:
            number = read_number(np.asarray(Image.open(io.BytesIO(message.payload)).convert("RGB")))
            if number is None:
                raise RuntimeError("a snapshot has no number that can be read")
            answer = read_object(answered.payload)
            age_s = answered.received_s - numbered.made_s(number)
            told_s, answer_s = answer["frame"]["age_ms"] / 1e3, answer["total_ms"] / 1e3
            seen.append(Seen(number, age_s, told_s, answer_s, answer["frame"]["dropped"]))
            answered = None
    _report("gateway", seen)
    return seen


def _judged(of: str, seen: list[Seen]) -> tuple[dict[str, Bar], list[dict[str, Cell]]]:
    """Judge answers, but for the first, which warms up."""
    kept = seen[1:]
    if len(kept) < 5:
        raise RuntimeError(f"{of}: only {len(kept)} answers")
    extra_s = [one.age_s - one.answer_s for one in kept]
    fifth = max(1, len(kept) // 5)
    drift_s = statistics.median(extra_s[-fifth:]) - statistics.median(extra_s[:fifth])
    miscounted = [(after.number - before.number - 1) - after.dropped for before, after in itertools.pairwise(kept)]
    wrong_s = [abs(one.age_s - one.told_age_s) for one in kept]
    span_s = (kept[-1].number - kept[0].number) / FPS
    bars = {
        f"{of}: age of the frame at the answer beyond the answer's own time, 99th percentile, s": Bar(
            float(np.percentile(extra_s, 99)), MAX_EXTRA_S
        ),
        f"{of}: the same, growth from the first fifth to the last, s": Bar(drift_s, MAX_DRIFT_S),
        f"{of}: frames passed over that were not counted, or counted in vain": Bar(sum(map(abs, miscounted)), 0),
        f"{of}: age as the answer tells it against the true one, 99th percentile, s": Bar(
            float(np.percentile(wrong_s, 99)), MAX_EXTRA_S
        ),
    }
    found: dict[str, float] = {
        "answers": len(kept),
        "answers per second": (len(kept) - 1) / span_s,
        "frames passed over": sum(one.dropped for one in kept),
        "answer's own time, median, s": statistics.median(one.answer_s for one in kept),
        "age at the answer, median, s": statistics.median(one.age_s for one in kept),
        "age at the answer, highest, s": max(one.age_s for one in kept),
        "beyond the answer's own time, median, s": statistics.median(extra_s),
        "beyond the answer's own time, highest, s": max(extra_s),
        "answers that counted dropped frames otherwise than the numbers say": sum(map(bool, miscounted)),
    }
    return bars, [{"of": of, "what": name, "value": round(value, 4)} for name, value in found.items()]


def _report(of: str, seen: list[Seen]) -> None:
    if len(seen) % 20 == 1:
        last = seen[-1]
        report(f"{of}: {len(seen)} answers, last age {last.age_s:.3f} s, of it {last.answer_s:.3f} s for the answer")
