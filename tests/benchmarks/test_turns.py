"""What a conversation reused, counted by its benchmark."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.turns import LIMITS, SHORT_QUESTIONS, Reuse, hits, talk
from edge_vl import Runtime
from edge_vl.trace import Span
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene

PICTURE = render(random_scene(0, held_out=True), 160, 120)


def test_a_conversation_encodes_its_picture_once_and_reuses_what_came_before() -> None:
    with Runtime.open("bundled", threads=1) as runtime:
        short = talk(runtime, PICTURE, SHORT_QUESTIONS, 1)
        long = talk(runtime, render(random_scene(1, held_out=True), 160, 120), SHORT_QUESTIONS, 8)

    assert short.num_queries == short.last_prompt_tokens
    assert len(long.first_token_s) == 8
    assert min(long.first_token_s) > 0
    assert short.num_encoded == long.num_encoded == 5
    assert short.rate < 0.1
    assert long.rate >= LIMITS[8][0]
    assert long.num_hits < long.num_queries
    assert 0 < long.memory_saved < long.rate


def test_the_longest_conversation_fits_into_the_bundled_model() -> None:
    with Runtime.open("bundled", threads=1) as runtime:
        found = talk(runtime, PICTURE, SHORT_QUESTIONS, max(LIMITS))

        assert found.last_prompt_tokens < runtime.language_spec.context_length


def test_shares_are_of_everything_that_was_asked_for() -> None:
    found = Reuse(
        num_queries=80, num_hits=60, num_answered=20, num_encoded=5, last_prompt_tokens=30, first_token_s=(0.1,)
    )

    assert (found.rate, found.memory_saved) == (0.75, 0.6)
    assert Reuse(0, 0, 0, 0, 0, ()).rate == 0.0


def test_an_answer_that_its_trace_contradicts_is_refused() -> None:
    with Runtime.open("bundled", threads=1) as runtime:
        answer = runtime.ask(PICTURE, "How many?", max_tokens=1)
    half = Span("prefill", 0.0, 0.0, answer.usage.prompt_tokens, source="kv")
    timings = dataclasses.replace(answer.timings, spans=(*answer.timings.spans, half))

    hits(answer)
    with pytest.raises(RuntimeError, match="its trace"):
        hits(dataclasses.replace(answer, timings=timings))
