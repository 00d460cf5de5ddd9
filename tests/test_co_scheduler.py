"""Tests of the co-scheduler on fake engines: requests side by side, hung and dead lanes, and room."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl import Answer, Cancelled, DeadlineExceeded, EngineFault, Runtime
from edge_vl.answer_stream import AnswerStream
from edge_vl.co_scheduler import CoScheduler
from edge_vl.costs import Costs, UnitCost
from edge_vl.errors import CacheFull
from edge_vl.frame import Frame
from edge_vl.policy import State, Step, Wait
from edge_vl.scheduler_limits import SchedulerLimits
from edge_vl.testing import FakeEngine, FakeFault, FakeLatencies
from edge_vl.testing.fake_faults import Stage
from tests.conftest import OpenFake

NUM_UNITS = 5  # of a picture of 20 x 30 pixels: four tiles and the thumbnail, 4 tokens each
SHORT_HANGS = SchedulerLimits(first_hang_s=0.05, min_hang_s=0.05)
MODES = ["serial", "interleaved", "overlapped"]


def picture(seed: int, height: int = 20, width: int = 30) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)


def num_calls(engine: FakeEngine, stage: str) -> int:
    return sum(call.stage == stage for call in engine.calls)


def end(runtime: Runtime, engine: FakeEngine, *faults: FakeFault) -> None:
    """Let hanging calls go, close, and wait until threads that were abandoned have given everything back."""
    for fault in faults:
        fault.release.set()
    runtime.close()
    give_up_s = time.monotonic() + 20
    while engine.num_open and time.monotonic() < give_up_s:
        time.sleep(0.002)
    assert engine.num_open == 0


@pytest.fixture
def hang() -> Iterator[Any]:
    """Make faults that hang; whatever happens, they are released in the end."""
    made: list[FakeFault] = []

    def make(stage: Stage, at: int = 0, times: int = 1) -> FakeFault:
        made.append(FakeFault(stage=stage, at=at, times=times, kind="hang"))
        return made[-1]

    yield make
    for fault in made:
        fault.release.set()


def error_of(stream: AnswerStream) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        _ = stream.answer
    return caught.value


# Side by side


def test_two_questions_about_one_frame_encode_it_once_and_the_second_forks_the_cache(open_fake: OpenFake) -> None:
    questions = ["What is it?", "Where is it?"]
    alone = [open_fake()[0].ask(picture(1), question, max_tokens=6).text for question in questions]
    runtime, engine = open_fake(latencies=FakeLatencies(encode_s=0.01))
    streams = [runtime.stream(picture(1), question, max_tokens=6) for question in questions]
    answers = [stream.answer for stream in streams]
    assert [answer.text for answer in answers] == alone
    assert num_calls(engine, "encode") == NUM_UNITS
    assert [answer.reused["image_units"] for answer in answers] == [0, NUM_UNITS]
    prompt_tokens = answers[1].usage.prompt_tokens
    assert answers[1].reused["kv_tokens"] > prompt_tokens - len("Where is it?") - 20
    prefilled = sum(call.num_tokens for call in engine.calls if call.stage == "prefill")
    assert prefilled == sum(answer.usage.prompt_tokens - answer.reused["kv_tokens"] for answer in answers)


@pytest.mark.parametrize("mode", MODES)
def test_a_request_begins_to_answer_while_another_still_does(open_fake: OpenFake, mode: str) -> None:
    alone = [open_fake()[0].ask(picture(n), "What?", max_tokens=count).text for n, count in ((1, 200), (2, 5))]
    runtime, _ = open_fake(mode=mode, latencies=FakeLatencies(decode_s=0.002))
    first = runtime.stream(picture(1), "What?", max_tokens=200)
    next(first)
    second = runtime.stream(picture(2), "What?", max_tokens=5).answer
    assert not first._request.is_settled
    assert [first.answer.text, second.text] == alone


def test_while_an_answer_runs_others_are_prepared_in_small_units(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="y" * 400, latencies=FakeLatencies(encode_s=0.003, decode_s=0.001))
    first = runtime.stream([], "Go on", max_tokens=400)
    next(first)
    begun = len(engine.calls)
    second_stream = runtime.stream(picture(1), "What is it? " * 20, max_tokens=1)
    second = second_stream.answer
    during = engine.calls[begun:]
    assert not first._request.is_settled
    first.cancel()
    assert second.text == "y"
    prefills = [call.num_tokens for call in during if call.stage == "prefill"]
    assert max(prefills) <= 64
    assert sum(prefills) == second.usage.prompt_tokens - second.reused["kv_tokens"]
    assert sum(call.stage == "encode" for call in during) == NUM_UNITS
    # By the durations that were measured, the running answer had at least as much as the new request, but for a unit.
    prepared_s = [span.duration_s for span in second.timings.spans if span.stage in ("encode", "prefill")]
    begin_s = min(span.start_s for span in second.timings.spans if span.stage == "encode")
    began_later_s = second_stream._request.trace.started_s - first._request.trace.started_s
    decoded_s = [
        span.duration_s
        for span in first._request.trace.timings().spans
        if span.stage == "decode" and span.start_s >= begin_s + began_later_s
    ]
    assert sum(decoded_s) >= sum(prepared_s) - max(prepared_s) - 2 * max(decoded_s)


def test_caches_that_roll_back_block_by_block_give_the_same_answers(open_fake: OpenFake) -> None:
    plain, _ = open_fake()
    runtime, engine = open_fake(block_entries=16)
    shown = picture(1)
    for question in ["What?", "Why is it so, and since when?", "Where?"]:
        assert runtime.ask(shown, question).text == plain.ask(shown, question).text
    with runtime.conversation() as one, plain.conversation() as other:
        for question, new in [("What?", [shown]), ("And here?", [picture(2)]), ("Why?", [])]:
            assert one.ask(question, new).text == other.ask(question, new).text
    assert num_calls(engine, "encode") == 2 * NUM_UNITS  # what has to be prefilled again is never encoded again


def test_equal_units_of_two_requests_are_encoded_once(open_fake: OpenFake) -> None:
    gray = np.full((20, 30, 3), 90, np.uint8)
    white = gray.copy()
    white[:10, :15] = 255
    runtime, engine = open_fake(latencies=FakeLatencies(encode_s=0.005))
    streams = [runtime.stream(one, "What?", max_tokens=3) for one in (gray, white)]
    texts = [stream.answer.text for stream in streams]
    keys = [call.key for call in engine.calls if call.stage == "encode"]
    assert len(keys) == len(set(keys))
    assert texts == [open_fake()[0].ask(one, "What?", max_tokens=3).text for one in (gray, white)]


@pytest.fixture
def large_units(model_folder: Path) -> None:
    """Let units have 16 tokens: more than the first ones of each, which are never grafted."""
    for name, key, value in (("config", "scale_factor", 1), ("processor_config", "image_seq_len", 16)):
        file = model_folder / f"{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))


@pytest.mark.usefixtures("large_units")
def test_what_was_grafted_is_not_reused_by_who_wants_exact_answers(open_fake: OpenFake) -> None:
    before = picture(1)
    after = before.copy()
    after[:6, :10] = 255 - after[:6, :10]  # the first tile and the thumbnail
    runtime, _ = open_fake()
    runtime.ask(before, "What?", max_tokens=3)
    grafted = runtime.ask(after, "What?", max_tokens=3, reuse="approximate")
    assert grafted.reused["grafted_tokens"] == 3 * 8
    again = runtime.ask(after, "What?", max_tokens=3, reuse="approximate")
    assert again.reused["kv_tokens"] == again.usage.prompt_tokens - 1
    exact = runtime.ask(after, "What?", max_tokens=3)
    assert exact.reused["kv_tokens"] < exact.usage.prompt_tokens - 4 * 16
    assert exact.text == open_fake()[0].ask(after, "What?", max_tokens=3).text
    once_more = runtime.ask(after, "What?", max_tokens=3)
    assert once_more.reused["kv_tokens"] == once_more.usage.prompt_tokens - 1  # that one was computed


# What a policy must not do


def test_a_policy_that_always_waits_is_overruled_and_that_is_counted(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = open_fake()[0].ask(picture(1), "What?", max_tokens=2).text

    def wait(state: State) -> Step:
        return Wait()

    monkeypatch.setattr("edge_vl.runtime.CoScheduler", partial(CoScheduler, policy=wait))
    runtime, engine = open_fake(limits=SchedulerLimits(idle_s=0.01))
    answer = runtime.ask(picture(1), "What?", max_tokens=2)
    assert answer.text == alone
    steps = NUM_UNITS + num_calls(engine, "prefill") + num_calls(engine, "decode")
    assert answer.timings.schedule["num_forced"] == steps
    assert answer.timings.total_s >= 0.01 * steps
    encoded = [span.detail for span in answer.timings.spans if span.stage == "encode"]
    assert encoded == [f"picture 1 {unit}" for unit in ("tile 1,1", "tile 1,2", "tile 2,1", "tile 2,2", "thumbnail")]


def test_a_policy_that_fails_ends_requests_with_what_went_wrong(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(state: State) -> Step:
        raise LookupError("no idea")

    monkeypatch.setattr("edge_vl.runtime.CoScheduler", partial(CoScheduler, policy=fail))
    runtime, _ = open_fake()
    with pytest.raises(EngineFault, match="no idea"):
        runtime.ask([], "What?")


# Early tokens


@pytest.mark.parametrize("mode", ["interleaved", "overlapped"])
@pytest.mark.parametrize("early_tokens", [1, 2, 64])
def test_early_tokens_are_labelled_bounded_and_no_part_of_the_answer(
    open_fake: OpenFake, mode: str, early_tokens: int
) -> None:
    alone = open_fake()[0].ask(picture(1), "What?", max_tokens=6)
    runtime, _ = open_fake(mode=mode, latencies=FakeLatencies(encode_s=0.005))
    scripted, _ = open_fake(mode=mode, script="yes", latencies=FakeLatencies(encode_s=0.005))
    stream = runtime.stream(picture(1), "What?", max_tokens=6, early_tokens=early_tokens)
    tokens = list(stream)
    assert stream.answer.text == alone.text == "".join(token.text for token in tokens if token.kind == "text")
    assert stream.answer.usage == alone.usage
    assert sum(token.kind == "early" for token in tokens) <= min(early_tokens, NUM_UNITS - 1)
    tokens = list(scripted.stream(picture(1), "What?", early_tokens=early_tokens))
    kinds = [token.kind for token in tokens]
    num_early = kinds.count("early")
    assert 1 <= num_early <= min(early_tokens, NUM_UNITS - 1)
    if mode == "interleaved":
        assert num_early == min(early_tokens, NUM_UNITS - 1)
    assert kinds == ["early"] * num_early + ["text"] * 3
    assert {token.text for token in tokens[:num_early]} == {"y"}


def test_nobody_gets_early_tokens_who_did_not_ask(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(mode="interleaved", script="yes")
    stream = runtime.stream(picture(1), "What?")
    assert [token.kind for token in stream] == ["text"] * 3
    assert not any(span.stage == "early" for span in stream.answer.timings.spans)
    assert sum(call.want_logits for call in engine.calls if call.stage == "prefill") == 1


# Deadlines


def test_a_frame_that_grows_too_old_is_not_answered(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="y" * 200, latencies=FakeLatencies(decode_s=0.01))
    old = Frame(picture(1), time.monotonic() - 0.5, time.time() - 0.5)
    with pytest.raises(DeadlineExceeded, match="age of its frame") as caught:
        runtime.ask(old, "What?", max_frame_age_s=0.8, max_tokens=200)
    assert caught.value.deadline_s == 0.8
    with pytest.raises(DeadlineExceeded, match="age of its frame"):
        runtime.ask(old, "What?", max_frame_age_s=0.1)
    fresh = Frame(picture(1), time.monotonic(), time.time())
    assert runtime.ask(fresh, "What?", max_frame_age_s=600, max_tokens=2).text == "yy"


def test_a_deadline_that_would_not_hold_gives_fewer_tiles_and_the_answer_says_so(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    runtime._scheduler.book.load(
        Costs(
            units={"16x16/4": UnitCost(encode_s=10.0, prefill_s=0.1, num_encodes=5, num_prefills=5)},
            prefill_base_s=0.0,
            prefill_token_s=0.001,
            decode_s=0.001,
            answer_tokens=3.0,
            max_relative_error=0.1,
        )
    )
    answer = runtime.ask(picture(1), "What?", deadline_s=30)
    assert answer.usage.image_tokens == 4
    assert num_calls(engine, "encode") == 1
    [note] = answer.degraded
    assert note.startswith("picture 1: 1 unit with 4 image tokens in ")
    assert "instead of 5 units" in note
    assert answer.to_dict()["degraded"] == [note]


@pytest.mark.parametrize("options", [{"deadline_s": 30, "degrade": False}, {"deadline_s": 300}, {}])
def test_nothing_is_degraded_where_it_need_or_may_not_be(open_fake: OpenFake, options: dict[str, Any]) -> None:
    runtime, _ = open_fake(script="yes")
    unit = UnitCost(encode_s=10.0, prefill_s=0.1, num_encodes=5, num_prefills=5)
    runtime._scheduler.book.load(Costs({"16x16/4": unit}, 0.0, 0.001, 0.001, 3.0, 0.1))
    answer = runtime.ask(picture(1), "What?", **options)
    assert answer.usage.image_tokens == 4 * NUM_UNITS
    assert answer.degraded == ()


# Cancelling


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", ["encode", "prefill", "decode"])
def test_a_cancel_takes_effect_at_the_next_unit_and_leaves_the_other_request_alone(
    open_fake: OpenFake, hang: Any, mode: str, stage: Stage
) -> None:
    alone = open_fake()[0].ask(picture(2), "Other?", max_tokens=8).text
    fault = hang(stage, at=2)
    runtime, engine = open_fake(mode=mode, faults=[fault])
    victim = runtime.stream(picture(1), "Victim?", max_tokens=50)
    assert fault.reached.wait(20)
    other = runtime.stream(picture(2), "Other?", max_tokens=8)
    victim.cancel()
    assert isinstance(error_of(victim), Cancelled)
    before = num_calls(engine, "encode"), num_calls(engine, "prefill"), num_calls(engine, "decode")
    fault.release.set()
    answer = other.answer
    assert answer.text == alone
    after = num_calls(engine, "encode"), num_calls(engine, "prefill"), num_calls(engine, "decode")
    more = [now - then for now, then in zip(after, before, strict=True)]
    num_prefills = sum(span.stage == "prefill" and span.source == "computed" for span in answer.timings.spans)
    assert more[0] <= NUM_UNITS + (mode == "overlapped" and stage != "encode")
    assert more[1] == num_prefills
    assert more[2] == 7


@pytest.mark.parametrize("moment", range(40))
def test_a_cancel_at_any_moment_is_no_fault_of_a_lane(open_fake: OpenFake, moment: int) -> None:
    class Flag:
        """Set from the moment when somebody looks for the n-th time."""

        num_looks = 0

        def is_set(self) -> bool:
            self.num_looks += 1
            return self.num_looks > moment

    runtime, engine = open_fake(mode=MODES[moment % 3], script="yes", limits=SchedulerLimits(max_faults_in_row=1))
    try:
        assert runtime.ask(picture(1), "What?", cancel=Flag()).text == "yes"
        assert moment > 20  # the last ones come too late
    except Cancelled:
        pass
    assert runtime.ask(picture(1), "What?").text == "yes"
    assert num_calls(engine, "load_vision") == num_calls(engine, "load_language") == 0


# Room


def test_requests_that_do_not_fit_together_make_room_for_each_other(open_fake: OpenFake) -> None:
    alone = [open_fake()[0].ask(picture(n), "What?", max_tokens=10) for n in range(4)]
    num_tokens = alone[0].usage.prompt_tokens
    runtime, engine = open_fake(
        max_cache_tokens=10 + 2 * num_tokens, latencies=FakeLatencies(encode_s=0.002, prefill_s=0.001, decode_s=0.001)
    )
    streams = [runtime.stream(picture(n), "What?", max_tokens=10) for n in range(4)]
    assert [stream.answer.text for stream in streams] == [answer.text for answer in alone]
    assert num_calls(engine, "encode") == 4 * NUM_UNITS  # image embeds are kept though caches are not


def test_the_youngest_makes_room_in_the_middle_of_its_answer_and_says_the_same(open_fake: OpenFake) -> None:
    questions = ["Tell me about the sea", "What is on the table"]
    alone = [open_fake()[0].ask([], question, max_tokens=40) for question in questions]
    assert all(answer.usage.completion_tokens == 40 for answer in alone)
    num_tokens = alone[0].usage.prompt_tokens
    runtime, engine = open_fake(max_cache_tokens=2 * num_tokens + 50, latencies=FakeLatencies(decode_s=0.001))
    streams = [runtime.stream([], question, max_tokens=40) for question in questions]
    tokens = [list(stream) for stream in streams]
    assert [stream.answer.text for stream in streams] == [answer.text for answer in alone]
    for said, answer in zip(tokens, alone, strict=True):
        assert "".join(token.text for token in said) == answer.text
    prefilled = [call.num_tokens for call in engine.calls if call.stage == "prefill"]
    assert max(prefilled[2:]) > num_tokens - 7  # one of them began anew, with what it had said behind the prompt


def test_one_request_that_fits_nowhere_says_so_and_the_next_one_runs(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes", max_cache_tokens=60, limits=SchedulerLimits(max_faults_in_row=1))
    for _ in range(2):
        with pytest.raises(CacheFull):
            runtime.ask([], "word " * 20)
    assert runtime.ask([], "Hi").text == "yes"
    assert num_calls(engine, "load_language") == 0  # that was no fault of the lane


# How it is scheduled


def test_auto_says_what_it_chose_and_from_which_numbers(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes", mode="auto", latencies=FakeLatencies(encode_s=0.01, prefill_s=0.01))
    schedules = [runtime.ask(picture(n), "What?").timings.schedule for n in range(4)]
    first, later = schedules[0], schedules[1:]
    assert first["mode"] == "serial"
    assert "being learned" in first["reason"]
    assert first["numbers"]["num_units"] == NUM_UNITS
    assert later[0]["mode"] == "overlapped"
    assert later[0]["numbers"]["encode_s"] >= 0.01
    assert later[0]["numbers"]["prefill_s"] >= 0.01
    assert all(schedule["numbers"]["ideal_gain"] > 0.03 for schedule in later)
    assert runtime.ask(picture(0), "What?").timings.schedule["reason"] == "nothing is to be encoded"


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_that_was_asked_for_is_taken(open_fake: OpenFake, mode: str) -> None:
    runtime, _ = open_fake(script="yes", mode=mode)
    schedule = runtime.ask(picture(1), "What?").timings.schedule
    assert (schedule["mode"], schedule["reason"]) == (mode, "asked for")


# Lanes that hang


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", ["encode", "prefill", "decode"])
def test_a_lane_that_hangs_is_loaded_once_more_and_the_second_time_it_is_lost(
    open_fake: OpenFake, hang: Any, mode: str, stage: Stage
) -> None:
    first, second = hang(stage, at=1), hang(stage)
    lane = "vision" if stage == "encode" else "language"
    runtime, engine = open_fake(mode=mode, script="yes", faults=[first], limits=SHORT_HANGS)
    with pytest.raises(EngineFault, match="did not come back") as caught:
        runtime.ask(picture(1), "What?")
    assert caught.value.stage == stage
    assert runtime.ask(picture(2), "What?").text == "yes"
    assert num_calls(engine, f"load_{lane}") == 1
    assert runtime._scheduler.num_abandoned == 1
    engine.begin_anew([second])
    with pytest.raises(EngineFault, match=r"did not come back .* open a new runtime"):
        runtime.ask(picture(3), "What?")
    num_before = len(engine.calls)
    for _ in range(3):
        with pytest.raises(EngineFault, match="lost, open a new runtime"):
            runtime.ask(picture(3), "What?")
    assert len(engine.calls) == num_before
    if lane == "vision":
        assert runtime.ask([], "What?").text == "yes"  # it still speaks
    assert runtime._scheduler.num_abandoned == 2
    end(runtime, engine, first, second)


@pytest.mark.parametrize("stage", ["encode", "prefill", "decode"])
def test_requests_that_wait_behind_a_hung_one_are_answered(open_fake: OpenFake, hang: Any, stage: Stage) -> None:
    alone = [open_fake()[0].ask(picture(n), "What?", max_tokens=4).text for n in (2, 3)]
    fault = hang(stage, at=1)
    limits = SchedulerLimits(first_hang_s=0.05, min_hang_s=0.05, max_active=1)
    runtime, engine = open_fake(faults=[fault], limits=limits)
    streams = [runtime.stream(picture(n), "What?", max_tokens=4) for n in (1, 2, 3)]
    assert isinstance(error_of(streams[0]), EngineFault)
    assert [stream.answer.text for stream in streams[1:]] == alone
    end(runtime, engine, fault)


@pytest.mark.parametrize("stage", ["encode", "prefill"])
def test_a_lane_that_takes_long_to_load_is_not_taken_for_one_that_hangs_again(
    open_fake: OpenFake, hang: Any, stage: Stage
) -> None:
    fault = hang(stage, at=1)
    runtime, engine = open_fake(script="yes", faults=[fault], limits=SHORT_HANGS)
    engine.latencies = FakeLatencies(load_s=0.8)
    with pytest.raises(EngineFault):
        runtime.ask(picture(1), "What?")
    assert runtime.ask(picture(1), "What?").text == "yes"
    end(runtime, engine, fault)


def test_a_vision_lane_that_hangs_while_the_other_is_busy_for_long_is_replaced_once(
    open_fake: OpenFake, hang: Any
) -> None:
    sees, speaks = hang("encode", at=1), hang("prefill")
    limits = SchedulerLimits(first_hang_s=60, min_hang_s=60)
    runtime, engine = open_fake(mode="overlapped", script="yes", faults=[sees, speaks], limits=limits)
    stream = runtime.stream(picture(1), "What?")
    assert sees.reached.wait(20)
    assert speaks.reached.wait(20)
    encoding = runtime._scheduler._loop._encoding
    assert encoding is not None
    encoding.limit_s = 0.01
    give_up_s = time.monotonic() + 20
    while not num_calls(engine, "load_vision") and time.monotonic() < give_up_s:
        time.sleep(0.005)
    time.sleep(0.6)  # the watch has looked twice since
    assert runtime._scheduler.num_abandoned == 1
    speaks.release.set()
    assert isinstance(error_of(stream), EngineFault)
    assert runtime.ask(picture(2), "What?").text == "yes"
    end(runtime, engine, sees)


@pytest.mark.parametrize("hangs_first", ["vision", "language"])
def test_both_lanes_may_hang_at_the_same_time(open_fake: OpenFake, hang: Any, hangs_first: str) -> None:
    sees, speaks = hang("encode", at=1), hang("prefill")
    runtime, engine = open_fake(mode="overlapped", faults=[sees, speaks], limits=SHORT_HANGS)
    alone = open_fake()[0].ask(picture(2), "What?", max_tokens=4).text
    first = runtime.stream(picture(1), "What?", max_tokens=4)
    assert sees.reached.wait(20)
    second = runtime.stream(picture(2), "What?", max_tokens=4)
    assert isinstance(error_of(first), EngineFault)
    try:
        assert second.answer.text == alone
    except EngineFault:  # where it had begun already
        assert runtime.ask(picture(2), "What?", max_tokens=4).text == alone
    end(runtime, engine, sees, speaks)


def test_what_hangs_while_an_early_token_is_made_is_noticed(open_fake: OpenFake, hang: Any) -> None:
    fault = hang("prefill", at=1)  # after the first tile's pass
    runtime, engine = open_fake(mode="interleaved", script="yes", faults=[fault], limits=SHORT_HANGS)
    with pytest.raises(EngineFault, match="did not come back"):
        runtime.ask(picture(1), "What?", early_tokens=1)
    assert runtime.ask(picture(1), "What?").text == "yes"
    end(runtime, engine, fault)


def test_what_hangs_while_the_beginning_of_every_prompt_is_prefilled_is_noticed(open_fake: OpenFake, hang: Any) -> None:
    first = hang("decode", at=1)
    again = hang("prefill", at=6)  # after the six passes of the first question: the beginning, on the new lane
    runtime, engine = open_fake(script="yes", faults=[first, again], limits=SHORT_HANGS)
    with pytest.raises(EngineFault):
        runtime.ask(picture(1), "What?")
    with pytest.raises(EngineFault, match="lost"):
        runtime.ask(picture(2), "What?")
    end(runtime, engine, first, again)


def test_a_lane_that_cannot_be_loaded_once_more_is_lost(open_fake: OpenFake, hang: Any) -> None:
    for stage, text_runs in (("encode", True), ("decode", False)):
        fault = hang(stage)
        load = FakeFault(stage="load_vision" if stage == "encode" else "load_language", times=99)
        runtime, engine = open_fake(script="yes", limits=SHORT_HANGS)
        engine.begin_anew([fault, load])
        with pytest.raises(EngineFault):
            runtime.ask(picture(1), "What?")
        for _ in range(2):
            with pytest.raises(EngineFault):
                runtime.ask(picture(2), "What?")
        if text_runs:
            assert runtime.ask([], "What?").text == "yes"
        assert num_calls(engine, "encode") == (1 if stage == "encode" else NUM_UNITS)
        end(runtime, engine, fault)


def test_a_call_that_comes_back_late_changes_nothing(open_fake: OpenFake, hang: Any) -> None:
    alone = open_fake()[0].ask(picture(2), "What?", max_tokens=6).text
    for stage in ("encode", "prefill", "decode"):
        fault = hang(stage, at=1)
        before = set(threading.enumerate())
        runtime, engine = open_fake(faults=[fault], limits=SHORT_HANGS)
        late = runtime.stream(picture(1), "What?", max_tokens=6)
        assert isinstance(error_of(late), EngineFault)
        threads = set(threading.enumerate()) - before
        assert len(threads) == 4  # both lanes, the one that hangs, and the watch
        next_one = runtime.stream(picture(2), "What?", max_tokens=6)
        fault.release.set()
        assert next_one.answer.text == alone
        assert isinstance(error_of(late), EngineFault)
        end(runtime, engine)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.parametrize("stage", ["encode", "prefill", "decode"])
def test_closing_waits_for_a_hung_call_no_longer_than_it_may(open_fake: OpenFake, hang: Any, stage: Stage) -> None:
    fault = hang(stage, at=1)
    runtime, engine = open_fake(script="yes", faults=[fault])
    stream = runtime.stream(picture(1), "What?")
    assert fault.reached.wait(20)
    runtime.close(timeout_s=0.05)
    assert isinstance(error_of(stream), Cancelled)
    assert engine.num_open > 0  # what is in use is not taken away
    end(runtime, engine, fault)


@pytest.mark.parametrize("stage", ["encode", "prefill"])
def test_closing_while_a_lane_is_loaded_once_more_gives_everything_back(
    open_fake: OpenFake, hang: Any, stage: Stage
) -> None:
    fault = hang(stage, at=1)
    runtime, engine = open_fake(script="yes", faults=[fault], limits=SHORT_HANGS)
    engine.latencies = FakeLatencies(load_s=0.3)
    with runtime.conversation() as conversation:
        conversation.ask("Hello?")
        with pytest.raises(EngineFault):
            conversation.ask("What?", picture(1))
        waiting = runtime.stream(picture(2), "What?")
        runtime.close()
        assert isinstance(error_of(waiting), Cancelled | EngineFault)
    end(runtime, engine, fault)


# Lanes that are dead


@pytest.mark.parametrize("stage", ["encode", "prefill", "decode"])
def test_a_lane_that_fails_again_and_again_is_loaded_once_more_and_then_lost(open_fake: OpenFake, stage: Stage) -> None:
    lane = "vision" if stage == "encode" else "language"
    runtime, engine = open_fake(
        script="yes", faults=[FakeFault(stage=stage, times=3)], limits=SchedulerLimits(max_faults_in_row=3)
    )
    for count in (0, 0, 0):
        assert num_calls(engine, f"load_{lane}") == count
        with pytest.raises(EngineFault):
            runtime.ask(picture(1), "What?")
    assert runtime.ask(picture(1), "What?").text == "yes"
    assert num_calls(engine, f"load_{lane}") == 1
    engine.begin_anew([FakeFault(stage=stage, times=3)])
    for seed in range(3):
        with pytest.raises(EngineFault, match="planned"):
            runtime.ask(picture(10 + seed), "What?")
    num_before = len(engine.calls)
    with pytest.raises(EngineFault, match="lost, open a new runtime"):
        runtime.ask(picture(20), "What?")
    assert len(engine.calls) == num_before
    assert runtime._scheduler.num_abandoned == 0


def test_a_lane_that_works_now_and_then_is_not_dead(open_fake: OpenFake) -> None:
    faults = [FakeFault(stage="decode", at=at) for at in range(0, 40, 4)]
    runtime, engine = open_fake(script="yes", faults=faults, limits=SchedulerLimits(max_faults_in_row=2))
    outcomes = []
    for _ in range(10):
        try:
            outcomes.append(runtime.ask([], "What?").text)
        except EngineFault:
            outcomes.append("fault")
    assert outcomes == ["fault", "yes"] * 5
    assert num_calls(engine, "load_language") == 0


@pytest.mark.parametrize("mode", MODES)
def test_what_a_lane_raises_is_told_of_that_lane(open_fake: OpenFake, mode: str) -> None:
    """While both work, the stage that the request has reached says nothing about which of them failed."""
    for at in range(1, NUM_UNITS):
        faults = [FakeFault(stage="encode", at=at, error=KeyError("lost"))]
        latencies = FakeLatencies(encode_s=0.003, prefill_s=0.003)
        runtime, engine = open_fake(
            mode=mode, script="yes", faults=faults, latencies=latencies, limits=SchedulerLimits(max_faults_in_row=1)
        )
        with pytest.raises(EngineFault, match="KeyError") as caught:
            runtime.ask(picture(1), "What?")
        assert caught.value.stage == "encode"
        assert runtime.ask(picture(1), "What?").text == "yes"
        assert (num_calls(engine, "load_vision"), num_calls(engine, "load_language")) == (1, 0)


def test_many_threads_that_ask_while_lanes_are_lost_are_all_told(open_fake: OpenFake, hang: Any) -> None:
    faults = [hang("decode", at=4, times=1), hang("decode", at=9, times=1)]
    runtime, engine = open_fake(script="yes", faults=faults, limits=SHORT_HANGS, max_waiting=64)
    outcomes: list[Answer | Exception] = []

    def ask(seed: int) -> None:
        for question in ("What?", "Where?", "Who?"):
            try:
                outcomes.append(runtime.ask(picture(seed), question))
            except EngineFault as error:
                outcomes.append(error)

    threads = [threading.Thread(target=ask, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(outcomes) == 18
    with pytest.raises(EngineFault, match="lost"):
        runtime.ask([], "What?")
    end(runtime, engine, *faults)
