"""The prompts of `edge-vl verify`: conversations about several pictures, drawn here or brought by the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from edge_vl.engine import Tokenizer
from edge_vl.errors import ContextLengthError
from edge_vl.families import Family
from edge_vl.message import Message
from edge_vl.pictures import Picture, load_picture
from edge_vl.plan import ImageGrid, Plan
from edge_vl.verify_answers import VerifyPrompt

__all__ = ["MIN_ENTRIES", "Scene", "draw_scene", "make_prompts", "random_scene"]

MIN_ENTRIES = 512
"""Of a prompt, where the context has room: what is too short to be compressed proves nothing."""

_NUM_SCENES = 8
_WIDTH, _HEIGHT = 320, 240
_COLORS = {
    "red": (214, 40, 40), "orange": (245, 140, 30), "yellow": (245, 220, 40), "green": (50, 160, 70),
    "blue": (40, 90, 205), "purple": (150, 60, 190),
}  # fmt: skip
_SHAPES = ("circle", "square", "triangle", "star", "cross")
_PLACES = ("top left", "top right", "bottom left", "bottom right")
_OWN_QUESTIONS = (
    "What is in the picture?", "Describe the picture.", "How many objects are there?", "What is at the top left?",
)  # fmt: skip
_OWN_ANSWER = "I have seen the picture."


@dataclass(frozen=True, slots=True)
class Scene:
    """What a drawn picture shows.

    Attributes:
        objects: shape, colour and place of each, in reading order.
        grey: of the background, 0 to 255.
    """

    objects: tuple[tuple[str, str, str], ...]
    grey: int

    @property
    def text(self) -> str:
        """All of it, as an answer says it."""
        return ", ".join(f"{_named(shape, color)} at the {place}" for shape, color, place in self.objects)

    def asked(self) -> tuple[tuple[str, str], ...]:
        """Return questions and their true answers."""
        shape, color, place = self.objects[0]
        at_last = {where: _named(what, hue) for what, hue, where in self.objects}.get(_PLACES[3], "nothing")
        return (
            ("Describe the picture.", self.text),
            (f"What is at the {place}?", _named(shape, color)),
            ("How many objects are there?", str(len(self.objects))),
            (f"What is at the {_PLACES[3]}?", at_last),
            (f"Is there {_named(shape, color)}?", "yes"),
        )


def random_scene(seed: int) -> Scene:
    """Draw one to four objects, each of a shape and a colour of its own."""
    rng = np.random.default_rng((831, seed))
    places = sorted(rng.permutation(len(_PLACES))[: int(rng.integers(1, 5))])
    shapes, colors = rng.permutation(_SHAPES), rng.permutation(list(_COLORS))
    return Scene(
        tuple((str(shapes[n]), str(colors[n]), _PLACES[place]) for n, place in enumerate(places)),
        int(rng.integers(200, 250)),
    )


def draw_scene(scene: Scene) -> NDArray[np.uint8]:
    """Return uint8 (240, 320, 3) RGB pixels."""
    picture = Image.new("RGB", (_WIDTH, _HEIGHT), (scene.grey,) * 3)
    draw = ImageDraw.Draw(picture)
    for shape, color, place in scene.objects:
        number = _PLACES.index(place)
        x, y = _WIDTH * (1 + 2 * (number % 2)) // 4, _HEIGHT * (1 + 2 * (number // 2)) // 4
        _draw(draw, shape, x, y, 42, _COLORS[color])
    return np.asarray(picture)


def make_prompts(
    family: Family,
    tokenizer: Tokenizer,
    *,
    has_vision: bool,
    max_entries: int,
    num_prompts: int,
    num_questions: int,
    pictures: Sequence[Picture] = (),
) -> tuple[VerifyPrompt, ...]:
    """Make conversations, each with several last questions, of `MIN_ENTRIES` entries or more where there is room.

    Args:
        family: of the model.
        tokenizer: of the model.
        has_vision: whether it sees; otherwise the scenes are told in words.
        max_entries: that a prompt may have.
        num_prompts: how many.
        num_questions: last questions of each.
        pictures: taken in the place of drawn ones; all about them is asked in general words.

    Raises:
        ImageError: a picture cannot be used.
        ContextLengthError: not even one picture and a question fit.
    """
    if pictures:
        turns = [_own_turn(family, picture, index) for index, picture in enumerate(pictures)]
    else:
        turns = [_drawn_turn(family, random_scene(seed), seed, has_vision=has_vision) for seed in range(_NUM_SCENES)]
    return tuple(
        _make_prompt(
            family,
            tokenizer,
            turns[number % len(turns) :] + turns[: number % len(turns)],
            number,
            max_entries,
            num_questions,
        )
        for number in range(num_prompts)
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    """What can be asked about a picture.

    Attributes:
        parts: the picture, or words in its place.
        asked: questions and answers.
    """

    parts: tuple[str | ImageGrid, ...]
    asked: tuple[tuple[str, str], ...]

    def message(self, question: str) -> Message:
        if self.parts and isinstance(self.parts[0], str):
            return Message("user", (f"{self.parts[0]} {question}",))
        return Message("user", (*self.parts, question))


def _own_turn(family: Family, picture: Picture, index: int) -> _Turn:
    grid = family.tile(load_picture(picture, index=index))
    return _Turn((grid,), tuple((question, _OWN_ANSWER) for question in _OWN_QUESTIONS))


def _drawn_turn(family: Family, scene: Scene, seed: int, *, has_vision: bool) -> _Turn:
    if has_vision:
        return _Turn((family.tile(load_picture(draw_scene(scene))),), scene.asked())
    return _Turn((f"Picture {seed + 1} has a grey background of {scene.grey} and shows {scene.text}.",), scene.asked())


def _make_prompt(
    family: Family,
    tokenizer: Tokenizer,
    turns: Sequence[_Turn],
    number: int,
    max_entries: int,
    num_questions: int,
) -> VerifyPrompt:
    """Put turns before the last ones until there are enough entries, or no room for more."""
    last = turns[0]
    questions = [question for question, _ in last.asked[:num_questions]]

    def lay_out(before: Sequence[Message]) -> tuple[Plan, ...]:
        return tuple(family.layout([*before, last.message(question)], tokenizer) for question in questions)

    before: list[Message] = []
    plans = lay_out(before)
    if max(plan.num_tokens for plan in plans) > max_entries:
        raise ContextLengthError(max(plan.num_tokens for plan in plans), max_entries)
    place = 1
    while len(before) < 4 or min(plan.num_tokens for plan in plans) < MIN_ENTRIES:
        turn = turns[place % len(turns)]
        question, answer = turn.asked[(number + place) % len(turn.asked)]
        longer = [turn.message(question), Message("assistant", (answer,)), *before]
        found = lay_out(longer)
        if max(plan.num_tokens for plan in found) > max_entries:
            break
        before, plans, place = longer, found, place + 1
    return VerifyPrompt(tuple(questions), plans)


def _named(shape: str, color: str) -> str:
    return f"{'an' if color[0] in 'aeiou' else 'a'} {color} {shape}"


def _draw(draw: ImageDraw.ImageDraw, shape: str, x: int, y: int, radius: int, fill: tuple[int, int, int]) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        draw.ellipse(box, fill)
    elif shape == "square":
        side = round(0.8 * radius)
        draw.rectangle((x - side, y - side, x + side, y + side), fill)
    elif shape == "cross":
        arm = radius // 3
        draw.rectangle((x - radius, y - arm, x + radius, y + arm), fill)
        draw.rectangle((x - arm, y - radius, x + arm, y + radius), fill)
    else:
        corners = 3 if shape == "triangle" else 10
        angles = np.arange(corners) * 2 * np.pi / corners - np.pi / 2
        reach = (
            np.full(corners, radius) if shape == "triangle" else np.where(np.arange(corners) % 2, 0.45, 1.0) * radius
        )
        draw.polygon(
            [(float(x + r * np.cos(a)), float(y + r * np.sin(a))) for r, a in zip(reach, angles, strict=True)], fill
        )
