"""What `kv-quality` measures with: prompts, a model that is hard to compress, and rules held against our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.biased_model import make_biased_model
from benchmarks.kv_prompts import MIN_ENTRIES, conversation, encode_units
from benchmarks.kv_quality import Score
from benchmarks.requantised import KEY_RULES, RequantisedModel, values_in_4_bits
from edge_vl.agreement import compare_logits
from edge_vl.engine import ImageEmbeds, LaneOptions, LanguageModel
from edge_vl.families import family_of
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.models import find_model
from edge_vl.verify_answers import PromptAnswers, Reply, VerifyPrompt, answer_prompt, follow_prompt
from edge_vl_onnxruntime import engine
from edge_vl_onnxruntime.cut_language import CutLanguageModel

BUNDLED = find_model("bundled")
UNGUARDED = "text=int4,first_layers=none,last_layers=none"


@pytest.fixture(scope="module")
def plain() -> Iterator[CutLanguageModel]:
    model = engine.load_language(BUNDLED, LaneOptions(threads=1))
    assert isinstance(model, CutLanguageModel)
    yield model
    model.close()


@pytest.fixture(scope="module")
def prompt(plain: CutLanguageModel) -> VerifyPrompt:
    family = family_of(BUNDLED)
    assert family is not None
    return conversation(1, family, plain.tokenizer, num_questions=3)[0]


@pytest.fixture(scope="module")
def embeds(prompt: VerifyPrompt) -> dict[str, ImageEmbeds]:
    vision = engine.load_vision(BUNDLED, LaneOptions(threads=1))
    try:
        return encode_units(vision, prompt)
    finally:
        vision.close()


def rows(answers: PromptAnswers) -> NDArray[np.float32]:
    return np.concatenate([reply.logits for reply in answers.replies])


def follow(
    model: LanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds], expected: PromptAnswers
) -> PromptAnswers:
    return follow_prompt(model, prompt, embeds, expected.replies, max_tokens=32)


def test_conversations_are_long_always_the_same_and_answered_truly(plain: CutLanguageModel) -> None:
    family = family_of(BUNDLED)
    assert family is not None
    vision = engine.load_vision(BUNDLED, LaneOptions(threads=1))
    asked = right = 0
    try:
        for seed in range(2):
            (found, truths), (again, _) = (
                conversation(seed, family, plain.tokenizer, num_questions=4) for _ in range(2)
            )
            assert found.questions == again.questions
            assert [plan.num_tokens for plan in found.plans] == [plan.num_tokens for plan in again.plans]
            assert min(plan.num_tokens for plan in found.plans) >= MIN_ENTRIES
            assert len({chunk.image for chunk in found.plans[0].images}) >= 5
            answers = answer_prompt(plain, found, encode_units(vision, found), max_tokens=64)
            asked += len(truths)
            right += sum(reply.text == truth for reply, truth in zip(answers.replies, truths, strict=True))
    finally:
        vision.close()
    assert asked == 8
    assert right >= 7


def test_the_biased_model_answers_as_the_trained_one_and_only_its_keys_are_large(
    tmp_path: Path, plain: CutLanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    make_biased_model(tmp_path)
    expected = answer_prompt(plain, prompt, embeds, max_tokens=32)
    model = engine.load_language(find_model(tmp_path), LaneOptions(threads=1))
    try:
        assert isinstance(model, CutLanguageModel), model.spec.notes
        found = follow(model, prompt, embeds, expected)
        largest: dict[int, float] = {}
        model.observer = lambda layer, queries, keys, values: largest.update({layer: float(np.abs(keys).max())})
        cache = model.new_cache()
        model.decode(cache, 9)
        cache.close()
    finally:
        model.close()
    assert [reply.text for reply in found.replies] == [reply.text for reply in expected.replies]
    assert compare_logits(rows(expected), rows(found)).error < 1e-4
    assert min(largest[0], largest[3]) > 5 * max(largest[1], largest[2])


def test_rounding_by_rule_is_what_our_own_caches_do_where_the_rule_is_theirs(
    plain: CutLanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    expected = answer_prompt(plain, prompt, embeds, max_tokens=32)
    own = engine.load_language(BUNDLED, LaneOptions(threads=1, kv=parse_kv_policy(UNGUARDED)))
    by_rule = RequantisedModel(plain, KEY_RULES["4 bit per channel and block, by NumPy"], values_in_4_bits)
    try:
        ours, theirs = (follow(model, prompt, embeds, expected) for model in (own, by_rule))
    finally:
        by_rule.close()
        own.close()

    assert ours.num_compressed == theirs.num_compressed == (ours.num_tokens - 5) // 64 * 64
    apart = compare_logits(rows(ours), rows(theirs)).error
    assert apart < 0.2 * compare_logits(rows(expected), rows(ours)).error


def test_without_rounding_a_requantised_model_is_the_model(
    plain: CutLanguageModel, prompt: VerifyPrompt, embeds: dict[str, ImageEmbeds]
) -> None:
    expected = answer_prompt(plain, prompt, embeds, max_tokens=32)
    same = RequantisedModel(plain, lambda keys: keys, lambda values: values)
    try:
        found = follow(same, prompt, embeds, expected)
    finally:
        same.close()
    np.testing.assert_allclose(rows(found), rows(expected), atol=2e-3)


@pytest.mark.parametrize("name", KEY_RULES)
def test_a_rule_rounds_no_farther_than_its_step(name: str) -> None:
    keys = np.random.default_rng(0).standard_normal((64, 2, 32)).astype(np.float32)
    lost = np.linalg.norm(KEY_RULES[name](keys) - keys) / np.linalg.norm(keys)
    assert lost < (0.02 if name.startswith("8") else 0.12)
    assert lost > 0.001


def test_rotation_spreads_a_large_channel_over_all() -> None:
    keys = np.random.default_rng(0).standard_normal((64, 1, 64)).astype(np.float32)
    keys[:, :, 5] += 100
    plain_loss, rotated_loss, by_channel = (
        float(np.linalg.norm(np.delete(KEY_RULES[name](keys) - keys, 5, axis=2)))
        for name in ("4 bit per entry", "4 bit per entry, rotated", "4 bit per channel and block, by NumPy")
    )
    assert by_channel < rotated_loss / 2
    assert rotated_loss < plain_loss


def test_a_score_counts_answers_and_next_tokens() -> None:
    one, other = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), np.array([[1.0, 0.0], [1.0, 0.0]], np.float32)
    expected = PromptAnswers((Reply((0, 1), "a", one),), 100, 0, 1000)
    found = PromptAnswers((Reply((0, 0), "b", other),), 100, 64, 250)
    score = Score()

    score.add(expected, expected, ["a"])
    score.add(expected, found, ["a"])

    assert score.same == 0.5
    assert score.next_token == 0.75
    row = score.row("bundled", "int8", 2000)
    assert (row["right"], row["compressed"], row["of f32 bytes"]) == (0.5, 0.0, 0.625)
