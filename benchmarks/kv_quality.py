"""How close answers over compressed KV caches are to those over uncompressed ones, behind long prompts."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.biased_model import make_biased_model
from benchmarks.kv_prompts import conversation, encode_units
from benchmarks.progress import report
from benchmarks.requantised import KEY_RULES, RequantisedModel, values_in_4_bits
from benchmarks.result import Bar, Cell, Result
from edge_vl.agreement import compare_logits
from edge_vl.engine import LaneOptions, LanguageModel
from edge_vl.families import family_of
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.verify_answers import PromptAnswers, answer_prompt, follow_prompt
from edge_vl_onnxruntime import engine
from edge_vl_onnxruntime.cut_language import CutLanguageModel

MIN_SAME_INT8 = 0.995
MIN_SAME_INT4 = 0.97
MIN_NEXT_TOKEN_BIASED = 0.95
MIN_COMPRESSED = 0.70

NUM_QUESTIONS = 8
MAX_TOKENS = 64

UNGUARDED = "text=int4,first_layers=none,last_layers=none"
BUNDLED_POLICIES = ("f16", "int8", "k8v4", "int4", "text=int8,image=int4")
BIASED_POLICIES = ("int8", "int4", UNGUARDED)


@dataclass(slots=True)
class Score:
    """What one way of keeping keys and values gave so far.

    Attributes:
        note: what the model said about how it keeps them.
        num_same: answers equal to those over an uncompressed cache.
        num_right: answers equal to the true ones.
        num_answers: of both.
        reference: rows of logits over an uncompressed cache, behind each prompt and each token of the answers.
        rows: the same over this one.
        compressed: share of quantised entries of each prompt.
        nbytes: of the caches, together.
        is_emulated: rounded by rule, in caches that take as much memory as uncompressed ones.
    """

    note: str = ""
    num_same: int = 0
    num_right: int = 0
    num_answers: int = 0
    reference: list[NDArray[np.float32]] = field(default_factory=list)
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    compressed: list[float] = field(default_factory=list)
    nbytes: int = 0
    is_emulated: bool = False

    def add(self, expected: PromptAnswers, found: PromptAnswers, truths: Sequence[str]) -> None:
        """Count the answers to one prompt."""
        for one, other, truth in zip(expected.replies, found.replies, truths, strict=True):
            self.num_same += one.text == other.text
            self.num_right += other.text == truth
            self.num_answers += 1
            self.reference.append(one.logits)
            self.rows.append(other.logits)
        self.compressed.append((found.num_compressed or 0) / found.num_tokens)
        self.nbytes += found.nbytes

    @property
    def same(self) -> float:
        """Share of equal answers."""
        return self.num_same / self.num_answers

    @property
    def next_token(self) -> float:
        """Share of equal next tokens where both have seen the same tokens before."""
        return compare_logits(np.concatenate(self.reference), np.concatenate(self.rows)).token_agreement

    def row(self, model: str, way: str, uncompressed_bytes: int) -> dict[str, Cell]:
        """Return it as a row of the table."""
        logits = compare_logits(np.concatenate(self.reference), np.concatenate(self.rows))
        return {
            "model": model,
            "keys and values": way,
            "answers": self.num_answers,
            "same": round(self.same, 4),
            "right": round(self.num_right / self.num_answers, 4),
            "next tokens": logits.num_rows,
            "same next": round(logits.token_agreement, 4),
            "KL mean": round(logits.kl_mean, 6),
            "KL max": round(logits.kl_max, 4),
            "compressed": round(min(self.compressed), 3),
            "of f32 bytes": None if self.is_emulated else round(self.nbytes / uncompressed_bytes, 3),
            "note": self.note,
        }


def run(quick: bool) -> Result:
    """Ask several questions behind each of a number of long conversations; their seeds are fixed."""
    num_plain, num_biased = (2, 1) if quick else (90, 25)
    plain = _measure("bundled", find_model("bundled"), num_plain, BUNDLED_POLICIES, ())
    with tempfile.TemporaryDirectory() as folder:
        make_biased_model(Path(folder))
        biased = _measure("biased", find_model(Path(folder)), num_biased, BIASED_POLICIES, tuple(KEY_RULES))
    table = [
        score.row(name, way, scores["auto"].nbytes)
        for name, scores in (("bundled", plain), ("biased", biased))
        for way, score in scores.items()
    ]
    ways = (*BUNDLED_POLICIES[1:], *BIASED_POLICIES[1:])
    compressed = min(min(scores[way].compressed) for scores in (plain, biased) for way in ways if way in scores)
    bars = {
        "smallest share of a prompt's entries that is compressed": Bar(compressed, MIN_COMPRESSED, at_least=True),
        "bundled: answers equal to uncompressed, int8": Bar(plain["int8"].same, MIN_SAME_INT8, at_least=True),
        "bundled: answers equal to uncompressed, int4": Bar(plain["int4"].same, MIN_SAME_INT4, at_least=True),
        "biased: next tokens equal to uncompressed, int4": Bar(
            biased["int4"].next_token, MIN_NEXT_TOKEN_BIASED, at_least=True
        ),
    }
    return Result(bars, table)


def _measure(
    name: str, spec: ModelSpec, num_conversations: int, policies: Sequence[str], rules: Sequence[str]
) -> dict[str, Score]:
    """Ask the same questions over every kind of cache; `auto` does not compress and is what the others are held to."""
    family = family_of(spec)
    if family is None:
        raise RuntimeError(f"{name} has no family")
    started_s = time.monotonic()
    scores: dict[str, Score] = {}
    with contextlib.ExitStack() as stack:
        # One thread: a second one would only wait for so small a model.
        vision = engine.load_vision(spec, LaneOptions(threads=1))
        stack.callback(vision.close)
        models = dict(_models(stack, spec, policies, rules))
        scores = {
            way: Score("; ".join(model.spec.notes[1:]), is_emulated=isinstance(model, RequantisedModel))
            for way, model in models.items()
        }
        for seed in range(num_conversations):
            reference = models["auto"]
            prompt, truths = conversation(seed, family, reference.tokenizer, num_questions=NUM_QUESTIONS)
            embeds = encode_units(vision, prompt)
            expected = answer_prompt(reference, prompt, embeds, max_tokens=MAX_TOKENS)
            for way, model in models.items():
                found = expected
                if way != "auto":
                    found = follow_prompt(model, prompt, embeds, expected.replies, max_tokens=MAX_TOKENS)
                scores[way].add(expected, found, truths)
            if (seed + 1) % 10 == 0 or seed + 1 == num_conversations:
                same = ", ".join(f"{way} {score.same:.4f}" for way, score in scores.items())
                report(f"{name}: {seed + 1} of {num_conversations}, {time.monotonic() - started_s:.0f} s; same: {same}")
    return scores


def _models(
    stack: contextlib.ExitStack, spec: ModelSpec, policies: Sequence[str], rules: Sequence[str]
) -> Iterator[tuple[str, LanguageModel]]:
    for way in ("auto", *policies):
        model = engine.load_language(spec, LaneOptions(threads=1, kv=parse_kv_policy(way)))
        stack.callback(model.close)
        yield way, model
        if way == "auto" and not isinstance(model, CutLanguageModel):
            raise RuntimeError(f"{spec.name} runs whole: {'; '.join(model.spec.notes)}")
        if way == "auto" and isinstance(model, CutLanguageModel):
            uncompressed = model
    for rule in rules:
        requantised = RequantisedModel(uncompressed, KEY_RULES[rule], values_in_4_bits)
        stack.callback(requantised.close)
        yield f"keys {rule}, values 4 bit", requantised
