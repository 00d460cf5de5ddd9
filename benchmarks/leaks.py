"""Whether memory or descriptors grow: thousands of requests, and hundreds of runtimes, on each engine."""

from __future__ import annotations

import gc
import io

import numpy as np
from PIL import Image

from benchmarks.process_memory import anonymous_kib, growth, num_descriptors
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl import Cancelled, EdgeVLError, ImageError, Runtime

ENGINES = ("onnxruntime", "llama_cpp")
SIZES = ((96, 96), (128, 96), (160, 120), (320, 240), (480, 640), (640, 360), (800, 600), (1280, 960))
QUESTIONS = ("What is at the top left?", "Describe the picture.", "How many objects are there?", "Is there a circle?")
MAX_GROWTH = 0.05
EVERY = 25


def run(quick: bool) -> Result:
    """Ask, cancel, fail and converse in turn on each engine; then open and close runtimes."""
    bars: dict[str, Bar] = {}
    table: list[dict[str, Cell]] = []
    for engine in ENGINES:
        rows = _requests(engine, 400 if quick else 2_000)
        bars |= _bars(f"requests on {engine}", rows)
        table += rows
    for engine in ENGINES:
        rows = _cycles(engine, 40 if quick else 200)
        bars |= _bars(f"opening and closing {engine}", rows)
        table += rows
    return Result(bars, table)


def _requests(engine: str, num_requests: int) -> list[dict[str, Cell]]:
    """Compare memory after a warm-up with memory at the end."""
    num_warm_up = num_requests // 4
    rng = np.random.default_rng(0)
    rows: list[dict[str, Cell]] = []
    with Runtime.open(model="bundled", vision_engine=engine, language_engine=engine) as runtime:
        for number in range(num_requests + 1):
            _ask(runtime, number, rng)
            if number >= num_warm_up and number % EVERY == 0:
                rows.append(_row(f"{engine}, requests", number))
            if number % 200 == 0:
                report(f"{engine}: {number} of {num_requests} requests, {anonymous_kib()} KiB anonymous")
    return rows


def _cycles(engine: str, num_cycles: int) -> list[dict[str, Cell]]:
    """Open a runtime, ask it once and close it."""
    rows: list[dict[str, Cell]] = []
    pixels = np.random.default_rng(1).integers(0, 256, (96, 128, 3), np.uint8)
    for number in range(num_cycles + 1):
        with Runtime.open(model="bundled", vision_engine=engine, language_engine=engine) as runtime:
            runtime.ask(pixels, QUESTIONS[0], max_tokens=4)
        if number >= num_cycles // 4:
            rows.append(_row(f"{engine}, cycles", number))
        if number % 50 == 0:
            report(f"{engine}: {number} of {num_cycles} cycles, {anonymous_kib()} KiB anonymous")
    return rows


def _row(of: str, number: int) -> dict[str, Cell]:
    gc.collect()
    return {"of": of, "number": number, "anonymous_kib": anonymous_kib(), "descriptors": num_descriptors()}


def _bars(of: str, rows: list[dict[str, Cell]]) -> dict[str, Bar]:
    descriptors = [int(row["descriptors"] or 0) for row in rows]
    return {
        f"growth of anonymous memory, {of}": Bar(
            growth([float(row["anonymous_kib"] or 0) for row in rows]), MAX_GROWTH
        ),
        f"growth of descriptors, {of}": Bar(descriptors[-1] - descriptors[0], 0),
    }


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
