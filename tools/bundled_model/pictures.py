"""Write the example pictures and what is true of them: `python -m tools.bundled_model.pictures`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tools.bundled_model.questions import Fact, Question, ask, facts
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import Scene, SceneObject

FOLDER = Path(__file__).parents[2] / "examples" / "pictures"

#: The middle of each colour.
RGB = {
    "red": (0.87, 0.1, 0.1),
    "orange": (0.98, 0.52, 0.08),
    "yellow": (0.96, 0.88, 0.1),
    "green": (0.15, 0.7, 0.2),
    "blue": (0.13, 0.4, 0.92),
    "purple": (0.6, 0.18, 0.8),
}


def place(
    shape: str, color: str, where: str, radius: float = 0.36, angle_rad: float = 0.0, shading: float = 0.0
) -> SceneObject:
    """Return an object a little off the middle of its quadrant."""
    return SceneObject(shape, color, where, (0.2, -0.1), radius, angle_rad, RGB[color], shading)


PICTURES: dict[str, tuple[tuple[int, int], Scene]] = {
    "shapes.png": ((320, 240), Scene(1, (
        place("circle", "red", "top left"), place("star", "blue", "top right", 0.42, 0.3),
        place("triangle", "green", "bottom right", 0.4, 0.2),
    ))),
    "four.png": ((640, 360), Scene(14, (
        place("square", "yellow", "top left", 0.36, 0.4), place("cross", "purple", "top right", 0.38, 0.2),
        place("circle", "orange", "bottom left", 0.33), place("square", "blue", "bottom right", 0.4, 0.1),
    ), background="gradient")),
    "portrait.jpg": ((360, 480), Scene(5, (
        place("star", "yellow", "top right", 0.42, 0.5), place("circle", "green", "bottom left", 0.4),
    ), background="wood", blur=0.003, noise=4)),
    "bricks.jpg": ((640, 480), Scene(41, (
        place("circle", "red", "top left", 0.4, 0, 1.0), place("triangle", "yellow", "top right", 0.42, 0.5, 1.0),
        place("star", "red", "bottom left", 0.42, 0.2, 1.0), place("cross", "green", "bottom right", 0.4, 0.3, 1.0),
    ), background="photo", blur=0.002, noise=3, held_out=True)),
    "ground.jpg": ((800, 600), Scene(2, (
        place("cross", "orange", "top left", 0.38, 0.6, 1.0), place("square", "blue", "bottom right", 0.4, 0.3, 1.0),
    ), background="photo", gain=0.9, noise=5, held_out=True)),
    "dark.png": ((96, 96), Scene(21, (
        place("triangle", "purple", "bottom left", 0.42, 0.7),
    ), background="noise", gain=0.8, noise=6)),
}  # fmt: skip


def questions(scene: tuple[Fact, ...]) -> list[Question]:
    """Return one question of several kinds, the same on every run."""
    kinds = ("what_at", "color_of", "place_of", "count_all", "count_shape", "exists", "describe", "json")
    drawn = (ask(kind, scene, np.random.default_rng(number)) for number, kind in enumerate(kinds))
    return [question for question in drawn if question]


def main() -> None:
    """Write every picture, and the questions with their true answers to `scenes.json`."""
    asked: dict[str, dict[str, str]] = {}
    for name, (size, scene) in PICTURES.items():
        Image.fromarray(render(scene, *size)).save(FOLDER / name, quality=85, optimize=True)
        asked[name] = {question.text: question.answer for question in questions(facts(scene))}
    (FOLDER / "scenes.json").write_text(json.dumps(asked, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
