"""Streams of frames: flat memory, nothing stale, and what a new frame and a running answer cost each other.

1,000 frames of a camera that is faster than the bundled model: its buffer is overwritten, every tenth frame is damaged
and every tenth was taken too long ago. Then, on the SmolVLM-256M shape with longest edge 1024 (2x2 tiles and a
thumbnail), a long answer while a watch answers frames of 640x480, against each of them alone. Then two watches that
share the device 1 to 3. Times of the second and third part are those of the machine at work, in turns with the
undisturbed ones.
"""

from __future__ import annotations

import gc
import io
import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.long_answer import LongAnswer
from benchmarks.models import shape_model
from benchmarks.process_memory import anonymous_kib, growth, num_descriptors
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl import Frame, Runtime
from edge_vl.machine import usable_cores
from edge_vl.watch import Watch
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene

MODEL = "smolvlm-256m"
LONGEST_EDGE = 1024
CONTEXT = 4096
QUESTION = "What is at the top left?"
STORY = "Tell a long story about the picture."
FRAMES_PER_S = 50.0
KEEP_MIB = 4
"""Little enough that what is kept for later reaches its bound before the memory is looked at."""

MAX_AGE_S = 1.0
STALE_S = 60.0
MAX_GROWTH = 0.05
MIN_RATE = 0.5
MAX_FIRST_TOKEN = 2.2
SHARES = (1.0, 3.0)

Table = list[dict[str, Cell]]


def run(quick: bool) -> Result:
    """Play the camera, then disturb answers with frames and frames with answers, then share."""
    bars, table = _camera(200 if quick else 1_000)
    with Runtime.open(
        shape_model(MODEL, longest_edge=LONGEST_EDGE),
        vision_engine="onnxruntime",
        vision_dtype="int8",
        language_engine="llama_cpp",
        language_dtype="q8_0",
        context_length=CONTEXT,
        threads=usable_cores(),
    ) as runtime:
        more_bars, more_rows = _interference(runtime, num_rounds=2 if quick else 5, num_frames=2)
        rows = _sharing(runtime, 30.0 if quick else 60.0)
    return Result(bars | more_bars, [*table, *more_rows, *rows])


def _camera(num_frames: int) -> tuple[dict[str, Bar], Table]:
    """Watch a camera that is too fast, and ask about every tenth answered frame once more by itself."""
    question = "What is in the image?"
    memory_kib: list[float] = []
    ages_s: list[float] = []
    num_stale = num_wrong = num_passed = 0
    descriptors: list[int] = []
    with (
        Runtime.open("bundled", keep_mib=KEEP_MIB) as runtime,
        Watch(runtime, _camera_frames(num_frames), question, max_frame_age_s=MAX_AGE_S) as watch,
    ):
        for answer in watch:
            age_s = time.monotonic() - _captured_s(watch)
            ages_s.append(age_s)
            num_stale += age_s > MAX_AGE_S
            num_passed += answer.dropped
            if watch.counts.answers % 10 == 0:
                num_wrong += runtime.ask(watch.frame, question).text != answer.text
            if watch.counts.frames >= num_frames // 4 and watch.counts.answers % 4 == 0:
                gc.collect()
                memory_kib.append(anonymous_kib())
                descriptors.append(num_descriptors())
        counts = watch.counts
    report(f"{counts}, highest age {max(ages_s):.3f} s")
    accounted = counts.answers + counts.dropped + counts.cancelled + counts.late + counts.bad
    after_last = counts.frames - counts.answers - num_passed
    bars = {
        f"growth of anonymous memory, {num_frames} frames": Bar(growth(memory_kib), MAX_GROWTH),
        f"growth of descriptors, {num_frames} frames": Bar(descriptors[-1] - descriptors[0], 0),
        f"answers about frames older than {MAX_AGE_S:g} s": Bar(num_stale, 0),
        "answers that differ from those about the same frame by itself": Bar(num_wrong, 0),
        "frames of which nobody knows what became": Bar(abs(counts.frames - accounted), 0),
        "frames dropped, so that the camera was really too fast": Bar(counts.dropped, num_frames // 10, at_least=True),
    }
    window = max(1, len(ages_s) // 5)
    found: dict[str, float] = {
        "frames": counts.frames,
        "answers": counts.answers,
        "dropped": counts.dropped,
        "late": counts.late,
        "cancelled": counts.cancelled,
        "bad": counts.bad,
        "frames passed over before an answer, as the answers say": num_passed,
        "frames after the last answer": after_last,
        "age at the answer, median of the first fifth, s": statistics.median(ages_s[:window]),
        "age at the answer, median of the last fifth, s": statistics.median(ages_s[-window:]),
        "age at the answer, highest, s": max(ages_s),
    }
    return bars, [_row("camera", name, value) for name, value in found.items()]


def _camera_frames(num_frames: int) -> Iterator[Any]:
    """Give frames at a fixed rate, as a camera does: in one buffer, some damaged, some delivered far too late."""
    scenes = [render(random_scene(seed, held_out=True), 320, 240) for seed in range(20)]
    rng = np.random.default_rng(0)
    buffer = np.empty_like(scenes[0])
    due_s = time.monotonic()
    for number in range(num_frames):
        due_s += 1 / FRAMES_PER_S
        time.sleep(max(0.0, due_s - time.monotonic()))
        grain = rng.integers(-2, 3, buffer.shape, np.int16)
        buffer[:] = np.clip(scenes[number // 10 % len(scenes)] + grain, 0, 255)
        if number % 10 == 3:
            yield _jpeg(buffer)[:-600]
        elif number % 10 == 7:
            yield Frame(buffer.copy(), time.monotonic() - STALE_S, time.time() - STALE_S, "delayed", number)
        else:
            yield buffer


def _interference(runtime: Runtime, *, num_rounds: int, num_frames: int) -> tuple[dict[str, Bar], Table]:
    """Measure a long answer and new frames, each alone and both together, in turns."""
    alone_rate: list[float] = []
    shared_rate: list[float] = []
    alone_s: list[float] = []
    shared_s: list[float] = []
    pictures = map(_picture, itertools.count())
    for turn in range(num_rounds + 1):
        first_s = [_first_token_s(runtime, next(pictures)) for _ in range(num_frames)]
        with (
            LongAnswer(runtime, next(pictures), STORY, max_tokens=2_000) as disturbed,
            Watch(runtime, pictures, QUESTION, every_frame=True, max_tokens=4) as watch,
        ):
            disturbed.wait_for_tokens(8)
            began_s = time.monotonic()
            timings = [next(watch).timings for _ in range(num_frames)]
            ended_s = time.monotonic()
        with LongAnswer(runtime, next(pictures), STORY, max_tokens=2_000) as alone:
            alone.wait_for_tokens(disturbed.num_tokens)  # the same tokens: later ones take longer
        if turn:  # the first turn warms up, and the runtime learns what its units cost
            alone_rate.append(alone.rate())
            alone_s += first_s
            shared_rate.append(disturbed.rate(began_s, ended_s))
            shared_s += [found.first_token_s for found in timings if found.first_token_s is not None]
            report(
                f"round {turn} of {num_rounds}: {alone_rate[-1]:.1f} and {shared_rate[-1]:.1f} tokens/s, "
                f"first token {statistics.median(first_s):.3f} and {statistics.median(shared_s):.3f} s"
            )
    rates = [one / other for one, other in zip(shared_rate, alone_rate, strict=True)]
    slower = statistics.median(shared_s) / statistics.median(alone_s)
    bars = {
        "speed of a running answer while frames come, share of undisturbed": Bar(
            statistics.median(rates), MIN_RATE, at_least=True
        ),
        "first token of a frame while an answer runs, times undisturbed": Bar(slower, MAX_FIRST_TOKEN),
    }
    found = {
        "answer alone, tokens/s": statistics.median(alone_rate),
        "answer while frames come, tokens/s": statistics.median(shared_rate),
        "the same, share of undisturbed, lowest": min(rates),
        "the same, share of undisturbed, highest": max(rates),
        "frame alone, first token, s": statistics.median(alone_s),
        "frame while an answer runs, first token, s": statistics.median(shared_s),
        "the same, highest, s": max(shared_s),
    }
    return bars, [_row("interference", name, value) for name, value in found.items()]


def _sharing(runtime: Runtime, duration_s: float) -> Table:
    """Let two watches with different shares run for a while; compare the device time of their answers."""
    device_s = [0.0] * len(SHARES)
    num_answers = [0] * len(SHARES)

    def answer_all(number: int, watch: Watch) -> None:
        for answer in watch:
            device_s[number] += answer.timings.lane_s("vision") + answer.timings.lane_s("language")
            num_answers[number] += 1

    watches = [
        Watch(runtime, map(_picture, itertools.count(start)), QUESTION, every_frame=True, max_tokens=4, share=share)
        for share, start in zip(SHARES, (1_000_000, 2_000_000), strict=True)
    ]
    readers = [threading.Thread(target=answer_all, args=pair) for pair in enumerate(watches)]
    for reader in readers:
        reader.start()
    time.sleep(duration_s)
    for watch in watches:
        watch.close()
    for reader in readers:
        reader.join()
    ratio = device_s[1] / device_s[0] if device_s[0] else None  # nothing was answered
    report(f"shares 1 and 3: {num_answers} answers, {device_s[0]:.1f} and {device_s[1]:.1f} s of device time")
    return [
        *(
            _row("sharing", f"share {share:g}, answers", count)
            for share, count in zip(SHARES, num_answers, strict=True)
        ),
        *(
            _row("sharing", f"share {share:g}, device time, s", used)
            for share, used in zip(SHARES, device_s, strict=True)
        ),
        _row("sharing", "device time of share 3, times that of share 1", ratio),
    ]


def _first_token_s(runtime: Runtime, picture: NDArray[np.uint8]) -> float:
    found_s = runtime.ask(picture, QUESTION, max_tokens=4).timings.first_token_s
    return float("nan") if found_s is None else found_s


def _captured_s(watch: Watch) -> float:
    return float("nan") if watch.frame is None else watch.frame.captured_s


def _picture(seed: int) -> NDArray[np.uint8]:
    """Return a picture of 640x480 that no other seed has: soft shapes, as a camera would see them."""
    small = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8))
    return np.asarray(small.resize((640, 480), Image.Resampling.BICUBIC))


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG")
    return data.getvalue()


def _row(part: str, what: str, value: float | None) -> dict[str, Cell]:
    return {"part": part, "what": what, "value": round(value, 4) if isinstance(value, float) else value}
