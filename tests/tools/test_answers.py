"""The shipped model's answers in the plainest loop; `python -m benchmarks accuracy` measures them at length."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tests.tools.onnx_model import OnnxModel
from tools.bundled_model.pictures import FOLDER, PICTURES
from tools.bundled_model.questions import KINDS, SHORT_KINDS, facts, parse_json, random_question
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene, random_size
from tools.bundled_model.small_talk import OFF_TOPIC_ANSWER


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    return OnnxModel()


@pytest.mark.parametrize("name", list(PICTURES))
def test_every_answer_about_the_example_pictures_is_true(model: OnnxModel, name: str) -> None:
    picture = np.array(Image.open(FOLDER / name).convert("RGB"))
    for question, answer in json.loads((FOLDER / "scenes.json").read_text(encoding="utf-8"))[name].items():
        assert model.ask(picture, question) == answer, question


def test_nearly_every_answer_about_unseen_scenes_is_true(model: OnnxModel) -> None:
    right = []
    for seed in range(20_000, 20_020):
        scene, rng = random_scene(seed, held_out=True), np.random.default_rng(seed)
        picture = render(scene, *random_size(seed))
        for _ in range(4):
            question = random_question(facts(scene), rng, KINDS)
            right.append(model.ask(picture, question.text) == question.answer)
    assert np.mean(right) >= 0.9


@pytest.mark.parametrize("num_pictures", [1, 3, 6])
def test_nearly_every_answer_in_conversations_is_true(model: OnnxModel, num_pictures: int) -> None:
    right = []
    for start in range(30_000, 30_000 + 10 * num_pictures, num_pictures):
        turns, truths = [], []
        for seed in range(start, start + num_pictures):
            scene, rng = random_scene(seed, held_out=True), np.random.default_rng(seed)
            for later in (False, True):
                question = random_question(facts(scene), rng, SHORT_KINDS)
                turns.append((None if later else render(scene, 160, 120), question.text))
                truths.append(question.answer)
        right += [answer == truth for answer, truth in zip(model.converse(turns), truths, strict=True)]
    assert np.mean(right) >= 0.9


def test_json_answers_parse(model: OnnxModel) -> None:
    for seed in range(40_000, 40_010):
        parse_json(model.ask(render(random_scene(seed), 200, 150), "Describe the picture as JSON."))


def test_other_questions_get_the_one_answer(model: OnnxModel) -> None:
    picture = render(random_scene(3), 128, 128)
    for question in ("What is the capital of France?", "Tell me a joke."):
        assert model.ask(picture, question) == OFF_TOPIC_ANSWER
