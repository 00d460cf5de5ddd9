"""Tests of conversations on fake engines."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_vl import CacheFull, Cancelled, ContextLengthError, EngineFault, ImageError, RequestError
from edge_vl.scheduler_limits import SchedulerLimits
from edge_vl.testing import FakeFault, FakeLatencies
from tests.conftest import OpenFake, flush

Turns = list[tuple[str, int]]


def picture(seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 255, (20, 30, 3), np.uint8)


def test_a_later_turn_encodes_nothing_and_prefills_only_what_is_new(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    conversation = runtime.conversation()
    conversation.ask("First?", picture(1))
    before = len(engine.calls)
    answer = conversation.ask("Second?")
    calls = engine.calls[before:]
    assert not [call for call in calls if call.stage == "encode"]
    assert answer.reused["image_units"] == 5
    new = sum(call.num_tokens for call in calls if call.stage == "prefill")
    assert answer.reused["kv_tokens"] + new == answer.usage.prompt_tokens
    assert new < 40


def test_a_conversation_answers_as_a_fresh_runtime_with_the_same_turns(open_fake: OpenFake) -> None:
    runtime, _ = open_fake()
    kept = runtime.conversation()
    kept.ask("First?", picture(1), max_tokens=5)
    kept.ask("Second?", picture(2), max_tokens=5)
    answer = kept.ask("Third?", max_tokens=5)
    fresh = open_fake()[0].conversation()
    fresh.ask("First?", picture(1), max_tokens=5)
    fresh.ask("Second?", picture(2), max_tokens=5)
    flush(fresh._runtime)
    fresh._resident.drop()  # forget the cache, not the turns
    again = fresh.ask("Third?", max_tokens=5)
    assert again.reused["kv_tokens"] < 10 < answer.reused["kv_tokens"]  # what every prompt begins with
    assert answer.text == again.text


def test_the_turns_can_be_read(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    conversation = runtime.conversation(system="Be brief.")
    conversation.ask("Is it?", picture(1))
    assert conversation.turns == (("system", "Be brief."), ("user", "Is it?"), ("assistant", "yes"))


def test_a_cancelled_turn_leaves_no_trace(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(latencies=FakeLatencies(decode_s=0.003))
    conversation, other = runtime.conversation(), runtime.conversation()
    for one in (conversation, other):
        one.ask("First?", picture(1), max_tokens=5)
    stream = conversation.stream("Never mind?", picture(2), max_tokens=200)
    next(stream)
    stream.cancel()
    with pytest.raises(Cancelled):
        list(stream)
    assert len(conversation.turns) == 2
    assert conversation.ask("Second?", max_tokens=5).text == other.ask("Second?", max_tokens=5).text


def test_a_turn_after_a_fault_answers_as_if_nothing_had_been(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(faults=[FakeFault(stage="decode", at=7)])
    conversation = runtime.conversation()
    conversation.ask("First?", picture(1), max_tokens=5)
    with pytest.raises(EngineFault):
        conversation.ask("Second?", max_tokens=8)
    answer = conversation.ask("Second?", max_tokens=5)
    sound = open_fake()[0].conversation()
    sound.ask("First?", picture(1), max_tokens=5)
    assert answer.text == sound.ask("Second?", max_tokens=5).text


def test_a_second_turn_while_one_runs_is_refused(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="prefill", kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    conversation = runtime.conversation()
    stream = conversation.stream("First?")
    with pytest.raises(RequestError, match="still runs"):
        conversation.stream("Second?")
    fault.release.set()
    assert stream.answer.text == "yes"
    assert conversation.ask("Second?").text == "yes"


def test_a_turn_that_does_not_fit_is_refused_and_the_conversation_goes_on(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes", context_length=80)
    conversation = runtime.conversation()
    conversation.ask("First?")
    with pytest.raises(ContextLengthError):
        conversation.ask("long " * 30)
    assert conversation.ask("Short?").text == "yes"


def test_a_turn_needs_no_picture_but_none_is_not_taken_for_one(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    conversation = runtime.conversation()
    with pytest.raises(ImageError, match="None was given"):
        conversation.ask("What is there?", None)
    assert conversation.turns == ()
    assert conversation.ask("Hello?").text == "yes"
    assert conversation.ask("And?", []).text == "yes"


def test_a_bad_turn_does_not_block_the_next(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    conversation = runtime.conversation()
    with pytest.raises(RequestError):
        conversation.ask("")
    assert conversation.ask("Now?").text == "yes"


def test_closing_gives_the_cache_back_even_in_the_middle_of_a_turn(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes" * 100, latencies=FakeLatencies(decode_s=0.003))
    conversation = runtime.conversation()
    stream = conversation.stream("First?")
    next(stream)
    conversation.close()
    with pytest.raises(Cancelled):
        list(stream)
    runtime.ask([], "Behind it?", max_tokens=1)
    assert engine.num_open == 4  # both lanes, what every prompt begins with, and the cache of the last question
    with pytest.raises(RequestError, match="closed"):
        conversation.ask("Again?")


def test_a_forgotten_conversation_gives_its_cache_back(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    conversation = runtime.conversation()
    conversation.ask("First?")
    del conversation
    gc.collect()
    runtime.ask([], "Behind it?", max_tokens=1)
    assert engine.num_open == 4


def test_a_conversation_may_outlive_its_runtime(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    conversation = runtime.conversation()
    conversation.ask("First?")
    runtime.close()
    conversation.close()
    assert engine.num_open == 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=5), st.integers(0, 4))
def test_what_is_kept_never_changes_an_answer(open_fake: OpenFake, turns: Turns, forget_at: int) -> None:
    kept, forgetful = (open_fake(context_length=4000)[0].conversation() for _ in range(2))
    for number, (question, image) in enumerate(turns):
        shown = picture(image) if image else ()
        if number == forget_at:
            flush(forgetful._runtime)
            forgetful._resident.drop()
        options = {"max_tokens": 3 + number}
        assert kept.ask(question, shown, **options).text == forgetful.ask(question, shown, **options).text  # type: ignore[arg-type]


def test_the_conversation_that_waited_longest_makes_room_and_computes_its_cache_again(open_fake: OpenFake) -> None:
    alone = open_fake()[0].conversation()
    expected = [alone.ask(question, picture(1), max_tokens=4).text for question in ("One?", "Two?")]
    prompt = alone.ask("Three?", max_tokens=1).usage.prompt_tokens
    limits = SchedulerLimits(max_embeds_bytes=0)
    runtime, engine = open_fake(max_cache_tokens=prompt, limits=limits)
    first, second, third = (runtime.conversation() for _ in range(3))
    answers = [first.ask("One?", picture(1), max_tokens=4).text]
    second.ask("One?", picture(2), max_tokens=4)
    third.ask("One?", picture(3), max_tokens=4)
    before = len(engine.calls)
    answers.append(first.ask("Two?", picture(1), max_tokens=4).text)
    assert answers == expected
    assert len([call for call in engine.calls[before:] if call.stage == "encode"]) == 5  # the same twice


def test_a_cache_that_is_full_with_nobody_to_make_room_ends_that_request_only(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(max_cache_tokens=100, script="yes")
    with pytest.raises(CacheFull, match="no room for"):
        runtime.ask(picture(1), "x" * 200)
    assert runtime.ask([], "Is it?").text == "yes"


def test_instructions_are_prefilled_before_any_picture_arrives(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    conversation = runtime.conversation(system="Be brief. " * 20)
    flush(runtime)
    num_tokens = sum(call.num_tokens for call in engine.calls if call.stage == "prefill")
    assert num_tokens > 200
    assert conversation.ask("Is it?", picture(1)).reused["kv_tokens"] >= num_tokens - 1
