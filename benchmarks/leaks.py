"""Whether memory or descriptors grow: thousands of requests with pictures of mixed sizes."""

from __future__ import annotations

import gc
import io
import statistics
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.progress import report
from benchmarks.result import Bar, Result
from edge_vl import Cancelled, EdgeVLError, ImageError, Runtime

SIZES = ((96, 96), (128, 96), (160, 120), (320, 240), (480, 640), (640, 360), (800, 600), (1280, 960))
QUESTIONS = ("What is at the top left?", "Describe the picture.", "How many objects are there?", "Is there a circle?")
MAX_GROWTH = 0.05
EVERY = 25


def run(quick: bool) -> Result:
    """Ask, cancel, fail and converse in turn; compare memory after a warm-up with memory at the end."""
    num_requests = 400 if quick else 2_000
    num_warm_up = num_requests // 4
    rng = np.random.default_rng(0)
    table: list[dict[str, str | int | float]] = []
    with Runtime.open(model="bundled") as runtime:
        for number in range(num_requests + 1):
            _ask(runtime, number, rng)
            if number >= num_warm_up and number % EVERY == 0:
                gc.collect()
                table.append({"requests": number, "anonymous_kib": _anonymous_kib(), "descriptors": _num_descriptors()})
            if number % 200 == 0:
                report(f"{number} of {num_requests} requests, {_anonymous_kib()} KiB anonymous")
    # Medians of the first and the last fifth: single readings jump with what the allocator keeps.
    window = max(1, len(table) // 5)
    first = statistics.median(float(row["anonymous_kib"]) for row in table[:window])
    last = statistics.median(float(row["anonymous_kib"]) for row in table[-window:])
    bars = {
        "growth of anonymous memory": Bar((last - first) / first, MAX_GROWTH),
        "growth of descriptors": Bar(int(table[-1]["descriptors"]) - int(table[0]["descriptors"]), 0),
    }
    return Result(bars, table)


def _ask(runtime: Runtime, number: int, rng: np.random.Generator) -> None:
    """Make one request: mostly answered, now and then cancelled, refused, or a turn of a conversation."""
    width, height = SIZES[number % len(SIZES)]
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    question = QUESTIONS[number % len(QUESTIONS)]
    if number % 17 == 3:
        stream = runtime.stream(pixels, question)
        stream.cancel()
        try:
            answer = stream.answer
        except Cancelled:
            return
        raise AssertionError(f"a cancelled request was answered: {answer.text}")
    if number % 17 == 5:
        try:
            runtime.ask(_jpeg(pixels)[:-600], question)
        except ImageError:
            return
        raise AssertionError("a picture cut short was answered")
    if number % 17 == 7:
        with runtime.conversation() as conversation:
            conversation.ask(question, pixels)
            conversation.ask(QUESTIONS[0])
        return
    picture = _jpeg(pixels) if number % 2 else pixels
    try:
        runtime.ask(picture, question, max_tokens=64)
    except EdgeVLError as error:
        raise AssertionError(f"request {number} failed") from error


def _jpeg(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=60)
    return data.getvalue()


def _anonymous_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise RuntimeError("this kernel does not tell RssAnon; the benchmark needs Linux")


def _num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
