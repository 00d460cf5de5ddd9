"""Golden tests of the modes: whatever runs at the same time, the logits are those of the serial loop, bit by bit.

Bits can only be the same where passes have the same borders, since matrix products of other sizes round otherwise; so
each comparison looks at the borders, too, and says what it does where they may differ: what a cancelled request leaves
in its cache depends on the mode, and a later prompt may begin with it. llama.cpp adds its own: all caches of a context
lie in one row of cells, and where an entry lies changes the order in which attention sums, by some 1e-3 in the logits.
Where caches of other requests are kept, its cells are the same only if nothing was cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, takewhile

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl import AnswerStream, Cancelled
from edge_vl.engine import KVCache, LanguageModel, LanguageSpec, Prefillable, Tokenizer
from edge_vl.mode_choice import Mode
from edge_vl.plan import Chunk, ImageUnit, TextChunk
from edge_vl.request import Generation
from edge_vl.scheduler_limits import SchedulerLimits
from edge_vl.serial import answer_serially
from edge_vl.text_head import text_head
from tests.asking_scripts import (
    ENGINES,
    QUESTIONS,
    Asked,
    EveryGrid,
    Outcome,
    Shown,
    ask_all,
    asking,
    differing,
    load,
    script,
)
from tests.recording import History, Recorded, replay

MODES: tuple[Mode, ...] = ("serial", "interleaved", "overlapped")
NUM_PLANS = 200

MANY_FAULTS = 1_000_000  # a lane is not to be given up in the middle of a script
APART = SchedulerLimits(max_idle_caches=0, max_faults_in_row=MANY_FAULTS)
"""A request begins with what every prompt begins with, a conversation with its turns, and nothing else is kept."""

KEPT = SchedulerLimits(max_faults_in_row=MANY_FAULTS)
"""Caches are kept and shared as usual."""

LLAMA_TOLERANCE = 0.05
"""Largest difference of logits where only their cells differ; 0.008 was seen."""


@dataclass(frozen=True)
class Comparison:
    """A script, and what came of it in each mode.

    Attributes:
        questions: the script.
        outcomes: by mode.
        num_beside: by mode, how often one lane began to work while the other did.
    """

    questions: list[Asked]
    outcomes: dict[Mode, list[Outcome]]
    num_beside: dict[Mode, int]


@cache
def compared(engine: str) -> Comparison:
    """Ask the large script in every mode, each time of a runtime of its own."""
    pytest.importorskip("llama_cpp" if engine == "llama_cpp" else engine)
    questions = script(seed=31, count=NUM_PLANS)
    outcomes: dict[Mode, list[Outcome]] = {}
    num_beside: dict[Mode, int] = {}
    for mode in MODES:
        outcomes[mode], num_beside[mode] = ask_all(engine, mode, questions, APART)
    return Comparison(questions, outcomes, num_beside)


def asked_of(engine: str, questions: list[Asked], limits: SchedulerLimits) -> dict[Mode, list[Outcome]]:
    pytest.importorskip("llama_cpp" if engine == "llama_cpp" else engine)
    return {mode: ask_all(engine, mode, questions, limits)[0] for mode in MODES}


def units_of(outcomes: Sequence[Outcome]) -> dict[str, ImageUnit]:
    return {chunk.unit.key: chunk.unit for outcome in outcomes for chunk in outcome.plan.images}


def worst_difference(one: Outcome, other: Outcome) -> float:
    pairs = zip(one.recorded, other.recorded, strict=True)
    return max(float(np.abs(left.logits - right.logits).max()) for left, right in pairs)


def wrong_bits(recorded: Sequence[Recorded], expected: Sequence[NDArray[np.float32]]) -> int:
    assert len(recorded) == len(expected)
    return sum(one.logits.tobytes() != other.tobytes() for one, other in zip(recorded, expected, strict=True))


@pytest.mark.parametrize("mode", ["interleaved", "overlapped"])
@pytest.mark.parametrize("engine", ENGINES)
def test_200_random_plans_with_cancels_and_faults_in_between_give_the_bits_of_serial_mode(
    engine: str, mode: Mode
) -> None:
    found = compared(engine)
    assert differing(found.outcomes["serial"], found.outcomes[mode]) == {}
    assert sum(outcome.is_answered for outcome in found.outcomes[mode]) > NUM_PLANS / 2


@pytest.mark.parametrize("engine", ENGINES)
def test_those_plans_are_of_every_kind_and_trouble_happens_in_every_stage(engine: str) -> None:
    found = compared(engine)
    outcomes = found.outcomes["serial"]
    num_units = {len(outcome.plan.images) for outcome in outcomes if outcome.is_answered}
    assert {0, 1, 3, 5, 9, 17} <= num_units
    assert len(outcomes) >= NUM_PLANS
    assert {outcome.happened for outcome in outcomes if outcome.result == "cancelled"} == {
        "encode",
        "prefill",
        "decode",
    }
    assert {outcome.happened for outcome in outcomes if outcome.result == "failed"} == {"encode", "prefill", "decode"}
    assert sum(asked.talk is not None for asked in found.questions) > 10
    assert any("e" not in outcome.order for outcome in outcomes if outcome.is_answered and outcome.plan.images)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_modes_do_what_they_are_named_after(engine: str) -> None:
    found = compared(engine)
    assert found.num_beside["serial"] == found.num_beside["interleaved"] == 0
    assert found.num_beside["overlapped"] > NUM_PLANS / 2
    for serial, interleaved in zip(found.outcomes["serial"], found.outcomes["interleaved"], strict=True):
        assert "pe" not in serial.order
        num_encodes = interleaved.order.count("e")
        if interleaved.is_answered and num_encodes > 1:
            assert "pe" in interleaved.order


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_is_said_to_be_where_it_was(engine: str, mode: Mode) -> None:
    failed = [outcome for outcome in compared(engine).outcomes[mode] if outcome.result == "failed"]
    assert [outcome.stage for outcome in failed] == [outcome.happened for outcome in failed]
    assert failed


class HeadFirst:
    """A language model that takes the head of a prompt in a pass of its own and trims it, as a runtime does."""

    def __init__(self, inner: LanguageModel, head: TextChunk) -> None:
        """Wrap a language model."""
        self._inner, self._head = inner, head
        self.new_cache, self.decode, self.close = inner.new_cache, inner.decode, inner.close

    @property
    def spec(self) -> LanguageSpec:
        """Pass on."""
        return self._inner.spec

    @property
    def tokenizer(self) -> Tokenizer:
        """Pass on."""
        return self._inner.tokenizer

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        """Pass on, the head first."""
        if not cache.num_tokens:
            first = run[0]
            assert isinstance(first, TextChunk)
            pairs = zip(first.token_ids, self._head.token_ids, strict=False)
            count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self._inner.prefill(cache, [self._head], want_logits=False)
            cache.trim(count)
            left = [TextChunk(first.token_ids[count:], count)] if count < first.num_tokens else []
            run = [*left, *run[1:]]
        return self._inner.prefill(cache, run, want_logits=want_logits)


@pytest.mark.parametrize("engine", ENGINES)
def test_serial_mode_gives_the_bits_of_the_serial_loop_at_the_same_borders(engine: str) -> None:
    found = compared(engine)
    vision, language = load(engine)
    head = text_head(EveryGrid(), language.tokenizer, has_vision=True)
    assert head is not None
    num_compared = 0
    for asked, outcome in zip(found.questions, found.outcomes["serial"], strict=True):
        if asked.talk is not None or not outcome.is_answered:
            continue
        plan = outcome.plan
        expected = answer_serially(vision, HeadFirst(language, head), plan, Generation(max_tokens=asked.max_tokens))
        assert wrong_bits(outcome.recorded, expected.logits) == 0
        assert outcome.text == expected.text
        num_compared += 1
        if num_compared == 60:
            break
    assert num_compared == 60
    vision.close()
    language.close()


def test_what_is_kept_of_other_requests_has_the_bits_of_one_computed_anew_at_the_same_borders() -> None:
    questions = script(seed=104, count=40, trouble=0.5, changes=True)
    outcomes = asked_of("onnxruntime", questions, KEPT)
    vision, language = load("onnxruntime")
    units = units_of(outcomes["serial"])
    num_reused = 0
    for mode in MODES:
        assert set(differing(outcomes["serial"], outcomes[mode]).values()) <= {"borders"}
        for outcome in outcomes[mode]:
            if outcome.is_answered:
                expected = replay(vision, language, outcome.recorded[-1].history, units)
                assert wrong_bits(outcome.recorded, expected[-len(outcome.recorded) :]) == 0
                passes = [one for one in outcome.recorded[0].history if not one.is_decode]
                num_reused += outcome.order.count("p") + 1 < len(passes)
    assert num_reused > 15
    vision.close()
    language.close()


def test_what_llama_cpp_keeps_of_other_requests_has_the_same_bits_in_every_mode_while_nothing_is_cancelled() -> None:
    outcomes = asked_of("llama_cpp", script(seed=11, count=30, trouble=0.0, changes=True), KEPT)
    assert all(outcome.is_answered for outcome in chain.from_iterable(outcomes.values()))
    assert differing(outcomes["serial"], outcomes["interleaved"]) == {}
    assert differing(outcomes["serial"], outcomes["overlapped"]) == {}


def test_what_llama_cpp_keeps_after_cancels_and_faults_gives_the_same_tokens_and_nearly_the_same_logits() -> None:
    outcomes = asked_of("llama_cpp", script(seed=104, count=40, trouble=0.5, changes=True), KEPT)
    for mode in MODES:
        for one, other in zip(outcomes["serial"], outcomes[mode], strict=True):
            assert (one.result, one.text) == (other.result, other.text)
            if one.is_answered:
                assert worst_difference(one, other) <= LLAMA_TOLERANCE


@pytest.mark.parametrize("mode", MODES)
def test_requests_side_by_side_have_the_bits_of_ones_computed_alone_at_the_same_borders(mode: Mode) -> None:
    shown = [Shown(seed, *size) for seed, size in enumerate([(64, 128), (48, 64), (128, 128), (60, 190)] * 3)]
    vision, language = load("onnxruntime")
    with asking("onnxruntime", mode, APART) as asker:
        streams: list[AnswerStream] = []
        for number, one in enumerate(shown):
            question = QUESTIONS[number % len(QUESTIONS)]
            streams.append(asker.runtime.stream(one.pixels(), question, max_tokens=4))
            if number % 4 == 2:
                streams[-2].cancel()
        plans = asker.family.plans[-len(shown) :]
        is_answered = []
        for stream in streams:
            try:
                is_answered.append(bool(stream.answer.text))
            except Cancelled:
                is_answered.append(False)
        recorded = asker.recording.end()
    assert sum(is_answered) >= 9
    units = {chunk.unit.key: chunk.unit for plan in plans for chunk in plan.images}
    for plan, is_there in zip(plans, is_answered, strict=True):
        if is_there:
            prompt = _content(plan.chunks)
            own = [one for one in recorded if _held(one.history)[: len(prompt)] == prompt]
            expected = replay(vision, language, own[-1].history, units)
            assert 1 <= len(own) <= 4
            assert wrong_bits(own, expected[-len(own) :]) == 0
    vision.close()
    language.close()


def _content(chunks: Sequence[Chunk]) -> list[int | str]:
    parts = ([chunk.unit.key] if not isinstance(chunk, TextChunk) else chunk.token_ids for chunk in chunks)
    return list(chain.from_iterable(parts))


def _held(history: History) -> list[int | str]:
    """Return what a cache holds: token ids, and the key of each unit."""
    held: list[int | str] = []
    for one in history:
        left = one.num_kept
        for item in one.items:
            if isinstance(item, str):
                held += [item] if left > 0 else []
                left = 0
            else:
                held += item[: max(0, left)]
                left -= len(item)
    return held


@pytest.mark.parametrize("engine", ENGINES)
def test_one_number_that_differs_in_one_unit_is_found_in_every_answer_about_it_and_in_no_other(engine: str) -> None:
    questions = script(seed=3, count=14, trouble=0.0)
    right, _ = ask_all(engine, "serial", questions, APART)
    key = next(iter(units_of(right)))
    wrong, _ = ask_all(engine, "overlapped", questions, APART, spoiled_key=key)
    about_it = [
        number for number, outcome in enumerate(right) if any(chunk.unit.key == key for chunk in outcome.plan.images)
    ]
    assert differing(right, wrong) == dict.fromkeys(about_it, "logits")
    assert 0 < len(about_it) < len(questions)


def test_other_borders_and_other_outcomes_are_found() -> None:
    questions = script(seed=3, count=3, trouble=0.0)
    right, _ = ask_all("onnxruntime", "serial", questions, APART)
    first = right[0].recorded[0]
    moved = replace(first, history=(*first.history[:-1], replace(first.history[-1], num_kept=1)))
    assert differing(right, [replace(right[0], recorded=(moved, *right[0].recorded[1:])), *right[1:]]) == {0: "borders"}
    assert differing(right, [*right[:2], replace(right[2], result="failed")]) == {2: "result"}
