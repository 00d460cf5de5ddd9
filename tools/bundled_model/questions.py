"""Questions about a scene and their true answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tools.bundled_model.scenes import COLORS, PLACES, SHAPES, Scene
from tools.bundled_model.small_talk import OFF_TOPIC_ANSWER, small_talk

#: Kinds of question; `off_topic` is asked in training only.
SHORT_KINDS = (
    "what_at", "color_at", "shape_at", "color_of", "shape_of", "place_of",
    "count_all", "count_shape", "count_color", "exists",
)  # fmt: skip
LONG_KINDS = ("describe", "json")
KINDS = (*SHORT_KINDS, *LONG_KINDS)

COLOR_WORDS = tuple(COLORS)
PLURALS = {shape: shape + ("es" if shape.endswith("s") else "s") for shape in SHAPES}


class Fact(NamedTuple):
    """What is true of one object."""

    shape: str
    color: str
    place: str

    def __str__(self) -> str:
        """Return the object's name with its article."""
        return f"{'an' if self.color[0] in 'aeiou' else 'a'} {self.color} {self.shape}"


class Piece(NamedTuple):
    """A piece of an answer and the places of the objects that it rests on; no places: it rests on no object.

    `places` is None for text that follows from the words before it.
    """

    text: str
    places: tuple[str, ...] | None


class Question(NamedTuple):
    """A question, its kind, and its answer in pieces."""

    kind: str
    text: str
    pieces: tuple[Piece, ...]

    @property
    def answer(self) -> str:
        """Return the answer's text."""
        return "".join(piece.text for piece in self.pieces)


Asked = tuple[str, Iterable[Piece]] | None


def facts(scene: Scene) -> tuple[Fact, ...]:
    """Return what is true of a scene, in reading order."""
    return tuple(Fact(item.shape, item.color, item.place) for item in scene.objects)


def ask(kind: str, scene: Sequence[Fact], rng: np.random.Generator) -> Question | None:
    """Draw a question of a kind, or None where the scene allows no unambiguous one.

    Raises:
        KeyError: the kind is unknown.
    """
    asked = _ASKERS[kind](scene, rng)
    if asked is None:
        return None
    text, pieces = asked
    return Question(kind, _vary(text, rng), tuple(pieces))


def random_question(scene: Sequence[Fact], rng: np.random.Generator, kinds: Sequence[str] = KINDS) -> Question:
    """Draw a question of a random kind that the scene allows."""
    while True:
        question = ask(_pick(kinds, rng), scene, rng)
        if question is not None:
            return question


def _pick(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def _vary(text: str, rng: np.random.Generator) -> str:
    """Change spelling, case and the mark at the end as people do."""
    if rng.random() < 0.4:
        text = text.replace("color", "colour")
    if rng.random() < 0.3:
        text = text.replace("What is", "What's").replace("Where is", "Where's")
    if rng.random() < 0.2:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.15:
        text = text.rstrip("?.")
    return text


def _spot(place: str, rng: np.random.Generator) -> str:
    forms = ("at the {}", "in the {}", "at the {} of the picture", "in the {} corner", "at {}", "on the {}")
    return _pick(forms, rng).format(place)


def _at(scene: Sequence[Fact], rng: np.random.Generator) -> tuple[str, Fact | None]:
    place = _pick(PLACES, rng)
    return place, next((fact for fact in scene if fact.place == place), None)


def _one(text: str, *found: Fact) -> list[Piece]:
    return [Piece(text, tuple(fact.place for fact in found))]


def _what_at(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    place, found = _at(scene, rng)
    question = _pick(("What is {}?", "What is {}?", "What do you see {}?", "Which object is {}?"), rng)
    return question.format(_spot(place, rng)), _one(str(found), found) if found else _one("nothing")


def _color_at(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    place, found = _at(scene, rng)
    forms = ("What color is the object {}?", "What is the color of the object {}?", "Which color is {}?")
    return _pick(forms, rng).format(_spot(place, rng)), _one(found.color, found) if found else _one("none")


def _shape_at(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    place, found = _at(scene, rng)
    forms = ("What shape is the object {}?", "What shape is {}?", "Which shape is {}?")
    return _pick(forms, rng).format(_spot(place, rng)), _one(found.shape, found) if found else _one("none")


def _named(
    scene: Sequence[Fact], rng: np.random.Generator, words: Sequence[str], trait: str
) -> tuple[str, Fact | None] | None:
    """Pick a shape or colour that exactly one object has, sometimes one that none has."""
    traits = [getattr(fact, trait) for fact in scene]
    unique = [fact for fact in scene if traits.count(getattr(fact, trait)) == 1]
    absent = [word for word in words if word not in traits]
    if absent and (rng.random() < 0.12 or not scene):
        return _pick(absent, rng), None
    if not unique:
        return None
    fact = unique[int(rng.integers(len(unique)))]
    return getattr(fact, trait), fact


def _color_of(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    named = _named(scene, rng, SHAPES, "shape")
    if named is None:
        return None
    shape, found = named
    forms = ("What color is the {}?", "What color is the {}?", "What is the color of the {}?", "Which color is the {}?",
             "What color does the {} have?", "What color is the {} in the picture?",
             "Tell me the color of the {}.")  # fmt: skip
    return _pick(forms, rng).format(shape), _one(found.color, found) if found else _one("none")


def _shape_of(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    named = _named(scene, rng, COLOR_WORDS, "color")
    if named is None:
        return None
    color, found = named
    forms = ("What shape is the {} object?", "What is the shape of the {} object?", "Which shape is {}?",
             "What is {}?", "What is the {} object?", "What is the shape of the {} thing?")  # fmt: skip
    return _pick(forms, rng).format(color), _one(found.shape, found) if found else _one("none")


def _place_of(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    forms = ("Where is the {}?", "Where is the {}?", "Where is the {} in the picture?", "Where can I find the {}?",
             "In which corner is the {}?", "Locate the {}.", "Where do you see the {}?")  # fmt: skip
    kind = int(rng.integers(3))
    if kind == 2 and scene:
        fact = scene[int(rng.integers(len(scene)))]
        if sum(fact[:2] == other[:2] for other in scene) != 1:
            return None
        return _pick(forms, rng).format(f"{fact.color} {fact.shape}"), _one(fact.place, fact)
    named = _named(scene, rng, *((SHAPES, "shape") if kind == 0 else (COLOR_WORDS, "color")))
    if named is None:
        return None
    word, found = named
    thing = word if kind == 0 else f"{word} object"
    return _pick(forms, rng).format(thing), _one(found.place, found) if found else _one("nowhere")


def _count(question: str, found: Sequence[Fact]) -> Asked:
    return question, _one(str(len(found)), *found)


def _count_all(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    forms = ("How many objects are there?", "How many objects are in the picture?", "How many shapes are there?",
             "How many objects do you see?", "Count the objects.", "How many things are there?",
             "How many objects does the picture show?", "How many objects can you see?")  # fmt: skip
    return _count(_pick(forms, rng), scene)


def _count_forms(rng: np.random.Generator) -> str:
    return _pick(("How many {} are there?", "How many {} are there?", "How many {} are in the picture?",
                  "How many {} do you see?", "Count the {}."), rng)  # fmt: skip


def _likely(words: Sequence[str], present: Sequence[str], rng: np.random.Generator) -> str:
    return _pick(present, rng) if present and rng.random() < 0.7 else _pick(words, rng)


def _count_shape(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    shape = _likely(SHAPES, sorted({fact.shape for fact in scene}), rng)
    return _count(_count_forms(rng).format(PLURALS[shape]), [fact for fact in scene if fact.shape == shape])


def _count_color(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    color = _likely(COLOR_WORDS, sorted({fact.color for fact in scene}), rng)
    noun = _pick(("objects", "objects", "shapes", "things"), rng)
    return _count(_count_forms(rng).format(f"{color} {noun}"), [fact for fact in scene if fact.color == color])


def _exists(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    """Ask for a shape, a colour, or both; yes and no are equally likely, and many a no has both words in the scene."""
    kind = int(rng.integers(6))
    if kind == 5 and scene:
        return _check(scene, rng)
    pairs = {fact[:2] for fact in scene}
    shapes, colors = sorted({fact.shape for fact in scene}), sorted({fact.color for fact in scene})
    wanted = bool(scene) and rng.random() < 0.5
    if kind == 0:
        options = shapes if wanted else [shape for shape in SHAPES if shape not in shapes]
        shape, color = _pick(options, rng), ""
    elif kind == 1:
        options = colors if wanted else [color for color in COLOR_WORDS if color not in colors]
        shape, color = "", _pick(options, rng)
    elif wanted:
        shape, color = sorted(pairs)[int(rng.integers(len(pairs)))]
    else:
        crossed = [(shape, color) for shape in shapes for color in colors if (shape, color) not in pairs]
        every = [(shape, color) for shape in SHAPES for color in COLOR_WORDS if (shape, color) not in pairs]
        choices = crossed if crossed and rng.random() < 0.5 else every
        shape, color = choices[int(rng.integers(len(choices)))]
    found = [fact for fact in scene if shape in ("", fact.shape) and color in ("", fact.color)]
    thing = f"{color} {shape or 'object'}".strip()
    if rng.random() < 0.2:
        things = f"{color} {PLURALS[shape] if shape else 'objects'}".strip()
        return f"Are there any {things}?", _yes_or_no(found)
    article = "an" if thing[0] in "aeiou" else "a"
    forms = ("Is there {}?", "Is there {}?", "Do you see {}?", "Is there {} in the picture?", "Can you see {}?")
    return _pick(forms, rng).format(f"{article} {thing}"), _yes_or_no(found)


def _check(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    """Ask whether one object is what the question says, by its place or by its shape."""
    fact = scene[int(rng.integers(len(scene)))]
    is_unique = [other.shape for other in scene].count(fact.shape) == 1
    wanted = rng.random() < 0.5
    if rng.random() < 0.5 or not is_unique:
        shape = fact.shape if wanted else _pick([shape for shape in SHAPES if shape != fact.shape], rng)
        form = _pick(("Is there a {} {}?", "Do you see a {} {}?"), rng)
        return form.format(shape, _spot(fact.place, rng)), _yes_or_no([fact], wanted)
    color = fact.color if wanted else _pick([color for color in COLOR_WORDS if color != fact.color], rng)
    return f"Is the {fact.shape} {color}?", _yes_or_no([fact], wanted)


def _yes_or_no(found: Sequence[Fact], true: bool = True) -> list[Piece]:
    return _one("yes" if found and true else "no", *found)


def _describe(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    forms = ("Describe the picture.", "Describe the image.", "Describe this picture.", "What is in the picture?",
             "What do you see?", "What is in the image?", "Describe the scene.", "What can you see?",
             "Which objects are in the picture?", "What objects are there?", "Tell me what you see.",
             "What is shown in the picture?")  # fmt: skip
    pieces: list[Piece] = []
    for fact in scene:
        pieces += [Piece(", ", None)] * bool(pieces)
        pieces += [Piece(str(fact), (fact.place,)), Piece(f" at the {fact.place}", (fact.place,))]
    return _pick(forms, rng), pieces or _one("nothing")


def _json(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    forms = ("Describe the picture as JSON.", "Describe the image as JSON.", "Describe the scene as JSON.",
             "List the objects as JSON.", "Answer in JSON: what is in the picture?", "Describe the picture in JSON.",
             "Give me the objects as JSON.", "What is in the picture? Answer as JSON.")  # fmt: skip
    pieces = [Piece("[", None)]
    for fact in scene:
        pieces.append(Piece(", {" if len(pieces) > 1 else "{", None))
        for position, (key, value) in enumerate(fact._asdict().items()):
            pieces.append(Piece(f'{", " if position else ""}"{key}": "', None))
            pieces.append(Piece(value, (fact.place,)))
            pieces.append(Piece('"', None))
        pieces.append(Piece("}", None))
    pieces.append(Piece("]", None))
    return _pick(forms, rng), pieces


def parse_json(text: str) -> tuple[Fact, ...]:
    """Read a JSON answer back.

    Raises:
        ValueError: the text is not the JSON that the model was taught.
    """
    try:
        return tuple(Fact(**item) for item in json.loads(text))
    except TypeError as error:
        raise ValueError(f"not a list of objects with shape, color and place: {text!r}") from error


def _off_topic(scene: Sequence[Fact], rng: np.random.Generator) -> Asked:
    return small_talk(rng), [Piece(OFF_TOPIC_ANSWER, None)]


_ASKERS = {
    "what_at": _what_at, "color_at": _color_at, "shape_at": _shape_at, "color_of": _color_of, "shape_of": _shape_of,
    "place_of": _place_of, "count_all": _count_all, "count_shape": _count_shape, "count_color": _count_color,
    "exists": _exists, "describe": _describe, "json": _json, "off_topic": _off_topic,
}  # fmt: skip
