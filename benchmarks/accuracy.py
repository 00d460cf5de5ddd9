"""How often the bundled model's answer is exactly the true one, on scenes that it has never seen."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl import Runtime
from tools.bundled_model.questions import KINDS, LONG_KINDS, SHORT_KINDS, ask, facts
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene, random_size

MIN_SHORT = 0.95
MIN_KIND = 0.90


@dataclass(slots=True)
class Score:
    """Answers counted so far."""

    asked: int = 0
    right: int = 0

    @property
    def accuracy(self) -> float:
        """Share of right answers; NaN before the first."""
        return self.right / self.asked if self.asked else float("nan")


def run(quick: bool) -> Result:
    """Ask one question of every kind that a scene allows. The seeds of scenes and questions are fixed."""
    num_scenes = 100 if quick else 1_000
    kinds = {kind: Score() for kind in KINDS}
    backgrounds: dict[str, Score] = {}
    sizes: dict[str, Score] = {}
    started_s = time.monotonic()
    with Runtime.open(model="bundled") as runtime:
        # Training draws its scenes from seeds far above these, and its photographs' other halves.
        for seed in range(num_scenes):
            scene = random_scene(seed, held_out=True)
            width, height = random_size(seed)
            pixels = render(scene, width, height)
            for number, kind in enumerate(KINDS):
                question = ask(kind, facts(scene), np.random.default_rng((seed, 4, number)))
                if question is None:
                    continue
                is_right = runtime.ask(pixels, question.text).text == question.answer
                for score in (
                    kinds[kind],
                    backgrounds.setdefault(scene.background, Score()),
                    sizes.setdefault(f"{width}x{height}", Score()),
                ):
                    score.asked += 1
                    score.right += is_right
            if (seed + 1) % 50 == 0:
                right, asked = (sum(getattr(score, name) for score in kinds.values()) for name in ("right", "asked"))
                report(
                    f"{seed + 1} of {num_scenes} scenes, {right} of {asked} right, {time.monotonic() - started_s:.0f} s"
                )
    short = Score(sum(kinds[kind].asked for kind in SHORT_KINDS), sum(kinds[kind].right for kind in SHORT_KINDS))
    bars = {"short answers": Bar(short.accuracy, MIN_SHORT, at_least=True)}
    bars |= {kind: Bar(kinds[kind].accuracy, MIN_KIND, at_least=True) for kind in (*SHORT_KINDS, *LONG_KINDS)}
    table = [
        *_rows("kind", kinds),
        *_rows("background", dict(sorted(backgrounds.items()))),
        *_rows("size", dict(sorted(sizes.items(), key=lambda item: [int(side) for side in item[0].split("x")]))),
    ]
    return Result(bars, table)


def _rows(by: str, scores: Mapping[str, Score]) -> list[dict[str, Cell]]:
    """Make one row of the table for each score."""
    return [
        {"by": by, "value": name, "asked": score.asked, "right": score.right, "accuracy": round(score.accuracy, 4)}
        for name, score in scores.items()
    ]
