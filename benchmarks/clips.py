"""Clips of a camera that stands still while one object of a drawn scene changes."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tools.bundled_model.questions import ask, facts
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import (
    COLORS,
    PLACES,
    SHAPES,
    Scene,
    SceneObject,
    coverage,
    random_object,
    random_scene,
    random_size,
)

__all__ = ["CHANGES", "NUM_FRAMES", "Change", "Clip", "random_clip"]

Change = Literal["appears", "vanishes", "moves", "recolors"]
CHANGES: tuple[Change, ...] = get_args(Change)

NUM_FRAMES = 40
MIN_SHARE, MAX_SHARE = 0.02, 0.10
MAX_NOISE = 8.0
MAX_LIGHT = 0.03
_FIRST_CHANGE, _MIN_APART = 2, 3


@dataclass(frozen=True, slots=True)
class Clip:
    """A scene that changes at some frames and is otherwise still, seen by a noisy camera.

    Attributes:
        seed: seeds noise and light.
        scenes: what is shown, one after the other.
        starts: frame from which each scene is shown; the first is 0.
        changes: what happens at each start but the first.
        share: part of the picture that the object covers, 0 to 1.
        size: (width, height) in pixels.
        question: what is asked about every frame.
        truths: its true answer in each scene; neighbours differ.
        noise: standard deviation of the sensor noise, of 255.
        light: largest relative change of the light, to and fro over the clip.
        jpeg_quality: 0 for none.
    """

    seed: int
    scenes: tuple[Scene, ...]
    starts: tuple[int, ...]
    changes: tuple[Change, ...]
    share: float
    size: tuple[int, int]
    question: str
    truths: tuple[str, ...]
    noise: float
    light: float
    jpeg_quality: int

    def frames(self) -> Iterator[NDArray[np.uint8]]:
        """Draw the frames, each uint8 (height, width, 3), RGB. The same clip gives the same frames."""
        rng = np.random.default_rng((self.seed, 6))
        phase = rng.uniform(0, 2 * np.pi)
        still: NDArray[np.float32] | None = None
        for number in range(NUM_FRAMES):
            if number in self.starts or still is None:
                still = render(self.scenes[self.starts.index(number)], *self.size).astype(np.float32)
            light = np.float32(1 + self.light * np.sin(phase + 2 * np.pi * number / NUM_FRAMES))
            grain = rng.standard_normal(still.shape, np.float32) * np.float32(self.noise)
            pixels = np.clip(still * light + grain + np.float32(0.5), 0, 255).astype(np.uint8)
            yield _compressed(pixels, self.jpeg_quality) if self.jpeg_quality else pixels


def random_clip(seed: int) -> Clip:
    """Draw a clip with two changes; the same seed gives the same clip."""
    rng = np.random.default_rng((seed, 5))
    scene = replace(random_scene(seed, held_out=True), noise=0.0, jpeg_quality=0)
    size = random_size(seed)
    kind = ("appears", "moves", "recolors")[seed % 3]
    others = scene.objects[: 2 if kind == "moves" else 3]  # leave places to move to
    free = [place for place in PLACES if place not in {item.place for item in others}]
    rng.shuffle(free)
    item = _sized(random_object(rng, free[0], shaded=any(other.shading for other in others)), size, rng)
    changes: tuple[Change, ...]
    items: list[SceneObject | None]
    if kind == "appears":
        changes, items = ("appears", "vanishes"), [None, item, None]
    elif kind == "moves":
        changes = ("moves", "moves")
        items = [item, replace(item, place=free[1]), item]
    else:
        changes, items = ("recolors", "recolors"), [item, *_recolored(item, rng)]
    scenes = tuple(
        replace(scene, objects=tuple(sorted((*others, *([shown] if shown else [])), key=_reading_order)))
        for shown in items
    )
    question, truths = _question(scenes, item, rng)
    first = int(rng.integers(_FIRST_CHANGE, NUM_FRAMES - 2 * _MIN_APART))
    second = int(rng.integers(first + _MIN_APART, NUM_FRAMES - _MIN_APART + 1))
    return Clip(
        seed=seed,
        scenes=scenes,
        starts=(0, first, second),
        changes=changes,
        share=_share(item, size),
        size=size,
        question=question,
        truths=truths,
        noise=float(rng.uniform(0, MAX_NOISE)),
        light=float(rng.uniform(0, MAX_LIGHT)) if rng.random() < 0.5 else 0.0,
        jpeg_quality=int(rng.integers(50, 96)) if rng.random() < 0.5 else 0,
    )


def _sized(item: SceneObject, size: tuple[int, int], rng: np.random.Generator) -> SceneObject:
    """Give an object the size at which it covers a drawn part of the picture, as far as its quadrant has room."""
    wanted = float(np.exp(rng.uniform(np.log(MIN_SHARE), np.log(MAX_SHARE))))
    return replace(item, radius=min(item.radius * (wanted / _share(item, size)) ** 0.5, 0.48))


def _share(item: SceneObject, size: tuple[int, int]) -> float:
    return float(coverage(item, *size).mean())


def _recolored(item: SceneObject, rng: np.random.Generator) -> list[SceneObject]:
    """Return an object in two other colours, each other than the one before."""
    found = []
    for _ in range(2):
        color = str(rng.choice([name for name in COLORS if name != item.color]))
        hue, saturation, value = (float(rng.uniform(*bounds)) for bounds in COLORS[color])
        item = replace(item, color=color, rgb=colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value))
        found.append(item)
    return found


def _question(scenes: tuple[Scene, ...], item: SceneObject, rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """Choose a question about the object whose true answer changes with every scene."""
    questions: list[tuple[str, tuple[str, ...]]] = []
    for place in PLACES:
        seen = [next((fact for fact in facts(scene) if fact.place == place), None) for scene in scenes]
        questions += [
            (f"What is at the {place}?", tuple(str(fact) if fact else "nothing" for fact in seen)),
            (f"What color is the object at the {place}?", tuple(fact.color if fact else "none" for fact in seen)),
            (f"What shape is the object at the {place}?", tuple(fact.shape if fact else "none" for fact in seen)),
        ]
    questions.append(("How many objects are there?", tuple(str(len(scene.objects)) for scene in scenes)))
    for shape in SHAPES:
        counts = tuple(sum(fact.shape == shape for fact in facts(scene)) for scene in scenes)
        if max(counts) <= 1:  # a question for one of several would be ambiguous
            found = [next((fact for fact in facts(scene) if fact.shape == shape), None) for scene in scenes]
            questions += [
                (f"Where is the {shape}?", tuple(fact.place if fact else "nowhere" for fact in found)),
                (f"What color is the {shape}?", tuple(fact.color if fact else "none" for fact in found)),
                (f"Is there a {shape}?", tuple("yes" if fact else "no" for fact in found)),
            ]
    described = [ask("describe", facts(scene), rng) for scene in scenes]
    questions.append(("Describe the picture.", tuple(found.answer if found else "" for found in described)))
    asking = [
        (text, truths) for text, truths in questions if all(before != after for before, after in pairwise(truths))
    ]
    return asking[int(rng.integers(len(asking)))]


def _reading_order(item: SceneObject) -> int:
    return PLACES.index(item.place)


def _compressed(pixels: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "jpeg", quality=quality)
    return np.array(Image.open(encoded))
