"""Long conversations about several pictures, for the quality of compressed KV caches on the bundled model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edge_vl.engine import ImageEmbeds, Tokenizer, VisionEncoder
from edge_vl.families import Family
from edge_vl.message import Message
from edge_vl.pictures import load_picture
from edge_vl.plan import ImageUnit
from edge_vl.verify_answers import VerifyPrompt
from tools.bundled_model.questions import KINDS, Question, ask, facts, random_question
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import SIZES, random_scene

__all__ = ["MIN_ENTRIES", "conversation", "encode_units"]

MIN_ENTRIES = 512
"""Of every prompt."""

_SEED = 5_000_000
_FEWEST_PICTURES, _MOST_PICTURES = 5, 9
_QUESTIONS_PER_PICTURE = 2
_SIZES = SIZES[:12]
"""Of the pictures: the smaller ones, which are drawn faster."""


def conversation(
    seed: int, family: Family, tokenizer: Tokenizer, *, num_questions: int
) -> tuple[VerifyPrompt, tuple[str, ...]]:
    """Make a conversation of 5 to 9 pictures, two turns about each, with several last questions about the last one.

    The answers of earlier turns are the true ones.

    Args:
        seed: of everything.
        family: of the model.
        tokenizer: of the model.
        num_questions: most last questions; fewer where the scene allows no more kinds.

    Returns:
        The prompt, and the true answers to its last questions.

    Raises:
        RuntimeError: the prompt is too short to say anything about compressed caches.
    """
    rng = np.random.default_rng((_SEED, seed))
    num_pictures = int(rng.integers(_FEWEST_PICTURES, _MOST_PICTURES + 1))
    messages: list[Message] = []
    for number in range(num_pictures - 1):
        scene_seed = _SEED + 100 * seed + number
        scene = random_scene(scene_seed, held_out=True)
        grid = family.tile(load_picture(render(scene, *_SIZES[scene_seed % len(_SIZES)])))
        for turn in range(_QUESTIONS_PER_PICTURE):
            question = random_question(facts(scene), rng)
            parts = (question.text,) if turn else (grid, question.text)
            messages += [Message("user", parts), Message("assistant", (question.answer,))]
    scene_seed = _SEED + 100 * seed + num_pictures
    scene = random_scene(scene_seed, held_out=True)
    grid = family.tile(load_picture(render(scene, *_SIZES[scene_seed % len(_SIZES)])))
    questions = list(_last_questions(seed, facts(scene)))[:num_questions]
    plans = [family.layout([*messages, Message("user", (grid, question.text))], tokenizer) for question in questions]
    if min(plan.num_tokens for plan in plans) < MIN_ENTRIES:
        raise RuntimeError(f"conversation {seed} is too short")
    prompt = VerifyPrompt(tuple(question.text for question in questions), tuple(plans))
    return prompt, tuple(question.answer for question in questions)


def encode_units(vision: VisionEncoder, prompt: VerifyPrompt) -> dict[str, ImageEmbeds]:
    """Encode the pictures of a prompt, each unit once."""
    units: dict[str, ImageUnit] = {chunk.unit.key: chunk.unit for plan in prompt.plans for chunk in plan.images}
    return {key: vision.encode(unit) for key, unit in units.items()}


def _last_questions(seed: int, scene: tuple[object, ...]) -> Iterator[Question]:
    """Ask each kind of question that a scene allows, beginning with another one for each seed."""
    for place in range(len(KINDS)):
        number = (seed + 5 * place) % len(KINDS)
        question = ask(KINDS[number], scene, np.random.default_rng((_SEED, seed, number)))  # type: ignore[arg-type]
        if question is not None:
            yield question
