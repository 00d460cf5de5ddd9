"""The prompts of `edge-vl verify`: conversations about several pictures, drawn here or brought by the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_vl.drawn_scene import Scene, draw_scene, random_scene
from edge_vl.engine import Tokenizer
from edge_vl.errors import ContextLengthError
from edge_vl.families import Family
from edge_vl.message import Message
from edge_vl.pictures import Picture, load_picture
from edge_vl.plan import ImageGrid, Plan
from edge_vl.verify_answers import VerifyPrompt

__all__ = ["MIN_ENTRIES", "make_prompts"]

MIN_ENTRIES = 512
"""Of a prompt, where the context has room: what is too short to be compressed proves nothing."""

_NUM_SCENES = 8
_OWN_QUESTIONS = (
    "What is in the picture?", "Describe the picture.", "How many objects are there?", "What is at the top left?",
)  # fmt: skip
_OWN_ANSWER = "I have seen the picture."


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
