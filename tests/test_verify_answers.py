"""Answers, and a model held to another one's answers, with the bundled model and a fake one that answers otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edge_vl.drawn_scene import draw_scene, random_scene
from edge_vl.engine import ImageEmbeds, LaneOptions, LanguageModel
from edge_vl.families import Family, family_of
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.message import Message
from edge_vl.models import find_model
from edge_vl.passes import pieces_of
from edge_vl.pictures import load_picture
from edge_vl.registry import engine_named
from edge_vl.request import Generation
from edge_vl.serial import answer_serially
from edge_vl.verify_answers import Reply, VerifyPrompt, answer_prompt, follow_prompt, prefillables

SPEC = find_model("bundled")
QUESTIONS = ("Describe the picture.", "How many objects are there?", "What is at the top left?")
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def language() -> Iterator[LanguageModel]:
    model = engine_named("onnxruntime").load_language(SPEC, LaneOptions(threads=1))
    yield model
    model.close()


@pytest.fixture(scope="module")
def prompt(language: LanguageModel) -> VerifyPrompt:
    family = family_of(SPEC)
    assert family is not None
    return make_prompt(family, language)


def make_prompt(family: Family, language: LanguageModel) -> VerifyPrompt:
    grid = family.tile(load_picture(draw_scene(random_scene(3))))
    plans = [family.layout([Message("user", (grid, question))], language.tokenizer) for question in QUESTIONS]
    return VerifyPrompt(QUESTIONS, tuple(plans))


@pytest.fixture(scope="module")
def embeds(prompt: VerifyPrompt) -> dict[str, ImageEmbeds]:
    vision = engine_named("onnxruntime").load_vision(SPEC, LaneOptions(threads=1))
    try:
        return {chunk.unit.key: vision.encode(chunk.unit) for chunk in prompt.plans[0].images}
    finally:
        vision.close()


def test_answers_are_those_of_the_serial_loop(
    language: LanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    vision = engine_named("onnxruntime").load_vision(SPEC, LaneOptions(threads=1))
    try:
        serial = [answer_serially(vision, language, plan, Generation(max_tokens=MAX_TOKENS)) for plan in prompt.plans]
    finally:
        vision.close()

    found = answer_prompt(language, prompt, embeds, max_tokens=MAX_TOKENS)

    assert [reply.text for reply in found.replies] == [answer.text for answer in serial]
    for reply, answer in zip(found.replies, serial, strict=True):
        assert list(reply.token_ids[:-1]) == answer.token_ids
        assert reply.token_ids[-1] in language.tokenizer.eos_token_ids
        np.testing.assert_allclose(reply.logits, np.stack(answer.logits), atol=2e-3)
    lengths = [
        plan.num_tokens + len(reply.token_ids) - 1 for plan, reply in zip(prompt.plans, found.replies, strict=True)
    ]
    assert found.num_tokens == max(lengths)
    assert found.nbytes > 0
    assert found.num_compressed == 0


def test_a_model_held_to_its_own_answers_agrees_everywhere(
    language: LanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    own = answer_prompt(language, prompt, embeds, max_tokens=MAX_TOKENS)

    again = follow_prompt(language, prompt, embeds, own.replies, max_tokens=MAX_TOKENS)

    for one, other in zip(own.replies, again.replies, strict=True):
        assert (one.token_ids, one.text) == (other.token_ids, other.text)
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)


def test_a_model_held_to_other_answers_has_logits_along_them_and_an_answer_of_its_own(
    language: LanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    own = answer_prompt(language, prompt, embeds, max_tokens=MAX_TOKENS)
    wrong = [Reply((5, 7, *reply.token_ids), "nonsense", np.empty(0, np.float32)) for reply in own.replies]

    found = follow_prompt(language, prompt, embeds, wrong, max_tokens=MAX_TOKENS)

    for reply, other, plan in zip(found.replies, own.replies, prompt.plans, strict=True):
        assert reply.text == other.text, "chosen freely"
        assert reply.token_ids == other.token_ids
        assert len(reply.logits) == len(other.token_ids) + 2
        cache = language.new_cache()
        language.prefill(cache, prefillables(pieces_of(plan.chunks), embeds), want_logits=False)
        language.decode(cache, 5)
        np.testing.assert_allclose(language.decode(cache, 7), reply.logits[2], atol=2e-3)
        cache.close()


def test_an_answer_ends_where_its_tokens_run_out(
    language: LanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    found = answer_prompt(language, prompt, embeds, max_tokens=3)

    long = found.replies[0]
    assert (len(long.token_ids), len(long.logits)) == (3, 3)
    assert long.text


def test_the_share_of_compressed_entries_is_that_of_the_longest_cache(
    prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    options = LaneOptions(threads=1, kv=parse_kv_policy("int8"))
    model = engine_named("onnxruntime").load_language(SPEC, options)
    try:
        found = answer_prompt(model, prompt, embeds, max_tokens=MAX_TOKENS)
    finally:
        model.close()
    assert found.num_tokens > 4 + 64 + 1
    assert found.num_compressed == (found.num_tokens - 5) // 64 * 64


def test_a_single_question_shares_all_but_its_last_token(
    language: LanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    alone = VerifyPrompt(prompt.questions[:1], prompt.plans[:1])

    found = answer_prompt(language, alone, embeds, max_tokens=MAX_TOKENS)

    together = answer_prompt(language, prompt, embeds, max_tokens=MAX_TOKENS)
    assert found.replies[0].token_ids == together.replies[0].token_ids
