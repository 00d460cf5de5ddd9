"""Whether all four combinations of lanes answer alike on the bundled model, and cut the same tiles."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl import Runtime
from edge_vl.engine import LaneOptions, PictureCutter
from edge_vl.families import family_of
from edge_vl.message import Message
from edge_vl.models import find_model
from edge_vl.pictures import load_picture
from edge_vl.plan import TextChunk
from edge_vl.registry import engine_named
from edge_vl.tokenizer import HFTokenizer
from tools.bundled_model.questions import KINDS, Question, ask, facts
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene, random_size

ENGINES = ("onnxruntime", "llama_cpp")
DTYPES = {"onnxruntime": "fp32", "llama_cpp": "fp16"}
MIN_SAME = 0.995
MAX_ACCURACY_POINTS = 0.8
GRID_SIDES = (17, 64, 100, 128, 199, 256, 300, 480)


def run(quick: bool) -> Result:
    """Ask one question about each scene on every combination, the kinds of question in turn."""
    num_scenes = 100 if quick else 1_000
    answers: dict[tuple[str, str], list[str]] = {}
    truth = _truth(num_scenes)
    for sees, speaks in itertools.product(ENGINES, ENGINES):
        answers[sees, speaks] = _answers(sees, speaks, num_scenes)
    asked = sum(text is not None for text in truth)
    accuracy = {
        pair: sum(text is not None and text == answer for text, answer in zip(truth, found, strict=True)) / asked
        for pair, found in answers.items()
    }
    bars = {}
    for sees in ENGINES:
        one, other = (answers[sees, speaks] for speaks in ENGINES)
        same = sum(a == b for a, b, text in zip(one, other, truth, strict=True) if text is not None)
        bars[f"same answers whichever language lane speaks, {sees} sees"] = Bar(same / asked, MIN_SAME, at_least=True)
    for speaks in ENGINES:
        one_share, other_share = (accuracy[sees, speaks] for sees in ENGINES)
        bars[f"accuracy points between the vision lanes, {speaks} speaks"] = Bar(
            100 * abs(one_share - other_share), MAX_ACCURACY_POINTS
        )
    table: list[dict[str, Cell]] = [
        {"vision": sees, "language": speaks, "asked": asked, "accuracy": round(accuracy[sees, speaks], 4), "note": ""}
        for sees, speaks in answers
    ]
    exceptions = _compare_grids()
    bars["picture sizes of 60 that llama.cpp by itself would cut in another way"] = Bar(len(exceptions), 0)
    table += [
        {"vision": "llama_cpp, cutting by itself", "language": "", "asked": 0, "accuracy": None, "note": text}
        for text in exceptions or ("no picture size has another grid",)
    ]
    return Result(bars, table)


def _truth(num_scenes: int) -> list[str | None]:
    """Return the true answers; None where a scene allows no question of its kind."""
    truth: list[str | None] = []
    for seed in range(num_scenes):
        question = _question(seed)
        truth.append(None if question is None else question.answer)
    return truth


def _question(seed: int) -> Question | None:
    """Return the question about a scene; None where it allows none of its kind."""
    number = seed % len(KINDS)
    return ask(KINDS[number], facts(random_scene(seed, held_out=True)), np.random.default_rng((seed, 4, number)))


def _answers(sees: str, speaks: str, num_scenes: int) -> list[str]:
    started_s = time.monotonic()
    found: list[str] = []
    with Runtime.open(
        "bundled",
        vision_engine=sees,
        language_engine=speaks,
        vision_dtype=DTYPES[sees],
        language_dtype=DTYPES[speaks],
        threads=1,  # the model is tiny: a second thread would only wait
    ) as runtime:
        for seed in range(num_scenes):
            question = _question(seed)
            if question is None:
                found.append("")
                continue
            pixels = render(random_scene(seed, held_out=True), *random_size(seed))
            found.append(runtime.ask(pixels, question.text).text)
            if (seed + 1) % 100 == 0:
                report(f"{sees} sees, {speaks} speaks: {seed + 1} scenes, {time.monotonic() - started_s:.0f} s")
    return found


def _compare_grids() -> list[str]:
    """Cut 60 sizes with the family of the model and with llama.cpp, which then has the GGUF files only.

    Returns:
        A sentence for each size with other units, or other row and column markers between them.
    """
    spec = find_model("bundled")
    family, tokenizer = family_of(spec), HFTokenizer(spec)
    assert family is not None
    exceptions = []
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "pair"
        shutil.copytree(spec.path / "gguf", pair)
        encoder = engine_named("llama_cpp").load_vision(find_model(pair), LaneOptions(threads=1))
        assert isinstance(encoder, PictureCutter)
        for width, height in [*itertools.product(GRID_SIDES, GRID_SIDES)][:60]:
            frame = load_picture(np.zeros((height, width, 3), np.uint8))
            plan = family.layout([Message("user", (family.tile(frame), "What?"))], tokenizer)
            ours = [chunk.token_ids for chunk in plan.chunks if isinstance(chunk, TextChunk)][1:-1]
            theirs = list(encoder.cut(frame).markers[1:-1])
            if ours != theirs:
                exceptions.append(f"{width}x{height}: {len(ours) + 1} units here, {len(theirs) + 1} there")
        encoder.close()
    return exceptions
