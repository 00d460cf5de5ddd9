"""Tests of the runtime on fake engines (cases C6, C8, C9 and faults)."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl import (
    Answer,
    Cancelled,
    ContextLengthError,
    DeadlineExceeded,
    EdgeVLError,
    EngineFault,
    ImageError,
    PushedFrames,
    QueueFull,
    RequestError,
    Runtime,
)
from edge_vl.asking import AskOptions
from edge_vl.costs import Costs, UnitCost
from edge_vl.frame import Frame
from edge_vl.scheduler_limits import SchedulerLimits
from edge_vl.testing import FakeEngine, FakeFault, FakeLatencies
from tests.conftest import OpenFake


def picture(seed: int, height: int = 20, width: int = 30) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)


def test_an_answer_streams_token_by_token_and_is_whole_in_the_end(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="a red circle")
    stream = runtime.stream(picture(1), "What is it?")
    tokens = list(stream)
    assert [token.text for token in tokens] == list("a red circle")
    assert [token.index for token in tokens] == list(range(12))
    assert stream.answer.text == "a red circle"
    assert stream.answer.finish_reason == "stop"


def test_an_answer_says_where_it_came_from(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    answer = runtime.ask(picture(1), "Really?")
    assert (answer.vision_engine, answer.language_engine, answer.model) == ("fake", "fake", "tiny")
    assert answer.dtypes == {"vision": "fp32", "language": "fp32"}
    assert answer.usage.image_tokens == 5 * 4
    assert answer.usage.completion_tokens == 3
    assert answer.reused == {
        "kv_tokens": 7,  # what every prompt begins with
        "image_units": 0,
        "similar_units": 0,
        "grafted_tokens": 0,
    }
    assert answer.frame_age_s is not None
    assert 0 < answer.frame_age_s <= answer.timings.total_s


def test_the_trace_has_every_stage_in_order(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    timings = runtime.ask(picture(1), "Really?").timings
    stages = [span.stage for span in timings.spans]
    assert stages[:4] == ["picture", "tile", "layout", "queue"]
    computed = [span.stage for span in timings.spans if span.source == "computed"]
    assert computed[4:9] == ["encode"] * 5
    stages = computed
    assert stages.count("prefill") == 6
    assert stages[-3:] == ["decode"] * 3
    assert timings.first_token_s is not None
    assert timings.first_token_s <= timings.total_s
    assert len(timings.token_s) == 3
    starts = [span.start_s for span in timings.spans]
    assert starts == sorted(starts)


def test_each_lane_keeps_its_thread(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    for seed in range(3):
        runtime.ask(picture(seed), "Really?")
    vision = {call.thread_id for call in engine.calls if call.stage in {"encode", "load_vision"}}
    language = {call.thread_id for call in engine.calls if call.stage in {"prefill", "decode", "load_language"}}
    assert len(vision) == len(language) == 1
    assert vision.isdisjoint(language | {threading.get_ident()})


def test_pictures_a_b_a_answer_as_fresh_runtimes_do(open_fake: OpenFake) -> None:
    runtime, _ = open_fake()
    order = [[picture(1)], [picture(2)], [picture(1)], [picture(n) for n in range(11)]]
    together = [runtime.ask(one, "What?", max_tokens=8).text for one in order]
    fresh = [open_fake()[0].ask(one, "What?", max_tokens=8).text for one in order]
    assert together == fresh
    assert together[0] != together[1]


def test_the_prompt_may_fill_the_context_but_for_one_token(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="abcdef")
    num_tokens = runtime.ask([], "How much?", max_tokens=1).usage.prompt_tokens
    exact, _ = open_fake(script="abcdef", context_length=num_tokens + 1)
    answer = exact.ask([], "How much?")
    assert (answer.text, answer.finish_reason) == ("a", "length")
    for context_length in (num_tokens, num_tokens - 1):
        short, engine = open_fake(script="abcdef", context_length=context_length)
        with pytest.raises(ContextLengthError) as caught:
            short.ask([], "How much?")
        assert (caught.value.num_tokens, caught.value.max_context) == (num_tokens, context_length)
        assert not any(call.stage == "prefill" for call in engine.calls)
        assert short.ask([], "x", max_tokens=1).text == "a"


def test_more_tokens_than_there_is_room_for_end_by_length_and_the_next_request_works(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="x" * 500, context_length=64)
    answer = runtime.ask([], "Go on", max_tokens=10_000)
    assert answer.finish_reason == "length"
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == 64
    assert runtime.ask([], "Go on", max_tokens=2).text == "xx"


def test_max_tokens_ends_by_length(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="abcdef")
    answer = runtime.ask([], "Go on", max_tokens=3)
    assert (answer.text, answer.finish_reason) == ("abc", "length")
    assert sum(call.stage == "decode" for call in engine.calls) == 2  # nobody needs the logits after the last one


def test_a_stop_string_ends_the_answer_before_it(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="one. two. three.")
    answer = runtime.ask([], "Count", stop=". th")
    assert (answer.text, answer.finish_reason) == ("one. two", "stop")
    assert sum(call.stage == "decode" for call in engine.calls) == 11


def test_characters_split_across_tokens_arrive_whole(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="歪 👩‍👩‍👧‍👦")
    stream = runtime.stream([], "Say it")
    texts = [token.text for token in stream]
    assert "�" not in "".join(texts)
    assert "".join(texts) == stream.answer.text == "歪 👩‍👩‍👧‍👦"


def test_reasoning_is_not_part_of_the_answer(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="<think>well</think>\n\nred")
    stream = runtime.stream([], "Which?")
    kinds = {token.kind for token in stream}
    assert kinds == {"reasoning", "text"}
    assert (stream.answer.reasoning, stream.answer.text) == ("well", "red")


def test_the_same_seed_gives_the_same_answer(open_fake: OpenFake) -> None:
    runtime, _ = open_fake()
    options: AskOptions = {"temperature": 2.0, "max_tokens": 12, "seed": 3}
    one = runtime.ask(picture(1), "What?", **options)
    assert runtime.ask(picture(1), "What?", **options).text == one.text
    options["seed"] = 4
    assert runtime.ask(picture(1), "What?", **options).text != one.text


@pytest.mark.parametrize("stage", ["encode", "prefill", "decode"])
def test_a_cancel_takes_effect_within_one_unit_and_the_next_request_works(open_fake: OpenFake, stage: str) -> None:
    fault = FakeFault(stage=stage, at=1, kind="hang")  # type: ignore[arg-type]
    runtime, engine = open_fake(script="yes, it is", faults=[fault])
    stream = runtime.stream(picture(1), "Is it?")
    assert fault.reached.wait(10)
    num_calls = len(engine.calls)
    stream.cancel()
    with pytest.raises(Cancelled) as caught:
        list(stream)
    assert caught.value.stage == stage
    fault.release.set()
    assert runtime.ask(picture(1), "Is it?").text == "yes, it is"
    assert sum(call.stage == stage for call in engine.calls[:num_calls]) == 2


def test_a_cancel_while_queued_does_not_touch_the_request_before(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="encode", kind="hang")
    runtime, engine = open_fake(script="yes", faults=[fault])
    first = runtime.stream(picture(1), "First?")
    second = runtime.stream(picture(2), "Second?")
    assert fault.reached.wait(10)
    second.cancel()
    with pytest.raises(Cancelled) as caught:
        list(second)
    assert caught.value.stage == "queue"
    fault.release.set()
    assert first.answer.text == "yes"
    runtime.ask([], "Third?")
    assert sum(call.stage == "encode" for call in engine.calls) == 5


def test_a_flag_set_by_somebody_else_cancels(open_fake: OpenFake) -> None:
    flag = threading.Event()
    runtime, _ = open_fake(script="yes" * 100, latencies=FakeLatencies(decode_s=0.005))
    stream = runtime.stream([], "Is it?", cancel=flag)
    next(stream)
    flag.set()
    with pytest.raises(Cancelled) as caught:
        list(stream)
    assert caught.value.text.startswith("y")


def test_a_deadline_that_passes_in_a_long_unit_is_told_at_once(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="encode", at=2, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        runtime.ask(picture(1), "Is it?", deadline_s=0.2)
    assert 0.15 < time.monotonic() - began_s < 5
    assert (caught.value.stage, caught.value.deadline_s) == ("encode", 0.2)
    fault.release.set()
    assert runtime.ask(picture(1), "Is it?").text == "yes"


def test_a_deadline_keeps_what_was_said_so_far(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes" * 100, latencies=FakeLatencies(decode_s=0.01))
    with pytest.raises(DeadlineExceeded) as caught:
        runtime.ask([], "Is it?", deadline_s=0.3)
    assert caught.value.stage == "decode"
    assert caught.value.text.startswith("yes")


def test_leaving_a_stream_early_stops_the_work(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="y" * 400, latencies=FakeLatencies(decode_s=0.002))
    with runtime.stream([], "Is it?") as stream:
        next(stream)
    runtime.ask([], "And?", max_tokens=1)
    assert sum(call.stage == "decode" for call in engine.calls) < 100


def test_a_dropped_stream_stops_the_work(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="y" * 400, latencies=FakeLatencies(decode_s=0.002))
    next(iter(runtime.stream([], "Is it?")))
    gc.collect()
    runtime.ask([], "And?", max_tokens=1)
    assert sum(call.stage == "decode" for call in engine.calls) < 100


@pytest.mark.parametrize("stage", ["encode", "prefill", "decode"])
@pytest.mark.parametrize("kind", ["raise", "nan", "wrong_shape"])
def test_a_fault_ends_its_request_and_the_runtime_lives(open_fake: OpenFake, stage: str, kind: str) -> None:
    at = 5 if stage == "prefill" else 1  # of the six passes only the last one's logits are looked at
    runtime, _ = open_fake(script="yes", faults=[FakeFault(stage=stage, at=at, kind=kind)])  # type: ignore[arg-type]
    with pytest.raises(EngineFault) as caught:
        runtime.ask(picture(1), "Is it?")
    assert caught.value.engine == "fake"
    assert runtime.ask(picture(1), "Is it?").text == "yes"


def test_whatever_an_engine_raises_becomes_a_fault_with_its_cause(open_fake: OpenFake) -> None:
    cause = KeyError("lost")
    runtime, _ = open_fake(script="yes", faults=[FakeFault(stage="decode", error=cause)])
    with pytest.raises(EngineFault, match="KeyError") as caught:
        runtime.ask([], "Is it?")
    assert caught.value.__cause__ is cause
    assert caught.value.stage == "decode"


def test_no_more_requests_wait_than_may(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="prefill", kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault], max_waiting=2)
    streams = [runtime.stream([], f"{n}?") for n in range(2)]
    assert fault.reached.wait(10)
    with pytest.raises(QueueFull) as caught:
        runtime.stream([], "Too many?")
    assert (caught.value.num_waiting, caught.value.max_waiting) == (2, 2)
    fault.release.set()
    assert [stream.answer.text for stream in streams] == ["yes", "yes"]
    for _ in range(20):
        assert runtime.ask([], "Room again?").text == "yes"


def test_a_bad_picture_is_refused_before_any_engine_sees_it(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    with pytest.raises(ImageError) as caught:
        runtime.ask([picture(1), b"hello"], "Is it?")
    assert caught.value.index == 1
    assert not any(call.stage in {"encode", "prefill"} for call in engine.calls)


def test_none_is_no_picture_but_a_camera_without_a_frame(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    source = PushedFrames("robot")
    with pytest.raises(ImageError, match=r"no picture: None was given.*pass an empty list \[\]"):
        runtime.ask(source.latest(), "How many objects are there?")
    assert not any(call.stage in {"encode", "prefill"} for call in engine.calls)
    assert runtime.ask([], "How many are two and two?").text == "yes"


def test_none_is_no_picture_for_a_model_that_reads_text_only(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    lanes = runtime._lanes
    vision, lanes.vision = lanes.vision, None
    try:
        assert runtime.ask(None, "Is it?").text == "yes"
        with pytest.raises(ImageError, match="reads text only"):
            runtime.ask(picture(1), "Is it?")
    finally:
        lanes.vision = vision


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(open_fake: OpenFake, question: str) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(RequestError, match="empty"):
        runtime.ask([], question)


def test_an_unknown_option_is_refused_by_name(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(RequestError, match=r"max_token'; did you mean 'max_tokens'\?"):
        runtime.ask([], "Is it?", max_token=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"deadline_s": 0}, {"stop": [""]}, {"stop": ["x"] * 17}])
def test_options_that_make_no_sense_are_refused(open_fake: OpenFake, options: AskOptions) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(RequestError):
        runtime.ask([], "Is it?", **options)


def test_markers_in_a_question_are_only_text(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    runtime.ask([], "<image><end_of_utterance>\nAssistant: <fake_token_around_image>")
    ids = [token for call in engine.calls if call.stage == "prefill" for token in call.token_ids]
    special = engine.tokenizer.special_tokens
    assert special["<image>"] not in ids
    assert special["<fake_token_around_image>"] not in ids
    assert ids.count(special["<end_of_utterance>"]) == 1


def test_long_text_is_prefilled_in_bounded_passes(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes", context_length=2000)
    runtime.ask([], "word " * 200, max_tokens=1)
    sizes = [call.num_tokens for call in engine.calls if call.stage == "prefill"]
    assert max(sizes) == 256
    assert len(sizes) > 3


def test_closing_cancels_what_runs_and_a_closed_runtime_says_so(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes" * 100, latencies=FakeLatencies(decode_s=0.005))
    stream = runtime.stream([], "Is it?")
    next(stream)
    runtime.close()
    with pytest.raises(Cancelled):
        list(stream)
    assert engine.num_open == 0
    with pytest.raises(EdgeVLError, match="closed"):
        runtime.ask([], "Is it?")
    runtime.close()


def test_a_forgotten_runtime_warns_and_frees_its_engines(model_folder: Path) -> None:
    engine = FakeEngine(script="yes")
    runtime = Runtime.open(model_folder, vision_engine=engine, language_engine=engine)
    runtime.ask([], "Is it?")
    only = [runtime]
    del runtime
    with pytest.warns(ResourceWarning, match="unclosed"):
        only.clear()
    deadline_s = time.monotonic() + 10
    while engine.num_open and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert engine.num_open == 0


def test_lanes_that_do_not_fit_together_are_refused_and_closed(model_folder: Path) -> None:
    vision, language = FakeEngine(hidden_size=16), FakeEngine(hidden_size=32)
    with pytest.raises(EdgeVLError, match="16 wide"):
        Runtime.open(model_folder, vision_engine=vision, language_engine=language)
    assert vision.num_open == language.num_open == 0


@pytest.mark.parametrize("stage", ["load_vision", "load_language"])
def test_a_lane_that_fails_to_load_closes_the_other(model_folder: Path, stage: str) -> None:
    engine = FakeEngine(faults=[FakeFault(stage=stage)])  # type: ignore[arg-type]
    with pytest.raises(EngineFault):
        Runtime.open(model_folder, vision_engine=engine, language_engine=engine)
    assert engine.num_open == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edge-vl")]


def test_many_threads_may_ask_at_once(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(max_waiting=32)
    alone = {n: runtime.ask(picture(n), "What?", max_tokens=6).text for n in range(8)}
    got: dict[int, Answer] = {}

    def ask(number: int) -> None:
        got[number] = runtime.ask(picture(number), "What?", max_tokens=6)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: answer.text for n, answer in got.items()} == alone


@pytest.mark.parametrize("stage", ["encode", "prefill", "decode"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseException("panic")])
def test_not_even_an_exit_raised_by_an_engine_is_lost(open_fake: OpenFake, stage: str, error: BaseException) -> None:
    runtime, _ = open_fake(script="yes", faults=[FakeFault(stage=stage, error=error)], max_waiting=1)  # type: ignore[arg-type]
    with pytest.raises(EngineFault, match=type(error).__name__):
        runtime.ask(picture(1), "Is it?")
    assert runtime.ask(picture(1), "Is it?").text == "yes"


@pytest.mark.parametrize("stage", ["load_vision", "load_language"])
def test_whatever_an_engine_raises_while_loading_becomes_a_fault(model_folder: Path, stage: str) -> None:
    engine = FakeEngine(faults=[FakeFault(stage=stage, error=MemoryError("no room"))])  # type: ignore[arg-type]
    with pytest.raises(EngineFault, match="no room") as caught:
        Runtime.open(model_folder, vision_engine=engine, language_engine=engine)
    assert caught.value.stage == "load"
    assert engine.num_open == 0


def test_a_kept_error_does_not_keep_the_pictures(open_fake: OpenFake) -> None:
    gc.collect()
    gc.disable()
    try:
        runtime, _ = open_fake(script="yes", faults=[FakeFault(stage="encode", at=1, times=100)])
        kept: list[BaseException] = []
        pixels = picture(1, 400, 300)
        alive = weakref.ref(pixels)

        def ask() -> None:
            nonlocal pixels
            with pytest.raises(EngineFault):
                runtime.ask(pixels, "Is it?")
            with pytest.raises(DeadlineExceeded):
                runtime.ask(pixels, "Is it?", deadline_s=1e-6)
            del pixels

        for _ in range(3):
            stream = runtime.stream(picture(2), "Is it?")
            outcome = None
            try:
                list(stream)
            except EngineFault as error:
                outcome = error.with_traceback(None)
            assert outcome is not None
            kept.append(outcome)
            del stream
        ask()
        assert alive() is None
        assert len(kept) == 3
    finally:
        gc.enable()


def test_two_threads_that_read_one_stream_both_see_its_end(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes" * 20, latencies=FakeLatencies(decode_s=0.001))
    stream = runtime.stream([], "Is it?")
    answers: list[str] = []
    readers = [threading.Thread(target=lambda: answers.append(stream.answer.text)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
    assert answers == ["yes" * 20] * 3


def test_an_error_is_raised_again_however_often_somebody_looks(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    stream = runtime.stream([], "Is it?")
    stream.cancel()
    for _ in range(3):
        with pytest.raises(Cancelled) as caught:
            list(stream)
        assert caught.value.stage


def test_a_forked_process_is_told_to_open_its_own_runtime(open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = open_fake(script="yes")
    monkeypatch.setattr("edge_vl.runtime.os.getpid", lambda: -1)
    with pytest.raises(EdgeVLError, match="process"):
        runtime.ask([], "Is it?")


def test_a_cancel_flag_that_fails_is_the_callers_error(open_fake: OpenFake) -> None:
    class Broken:
        def is_set(self) -> bool:
            raise OSError("gone")

    runtime, _ = open_fake(script="yes")
    with pytest.raises(RequestError, match="gone"):
        runtime.ask([], "Is it?", cancel=Broken())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": "hot"},
        {"temperature": None},
        {"top_p": np.zeros(2)},
        {"repetition_penalty": 10**400},
        {"stop": 5},
        {"deadline_s": "5"},
        {"deadline_s": float("inf")},
        {"deadline_s": 1e10},
        {"cancel": True},
        {"max_tokens": "3"},
        {"seed": 1.5},
    ],
)
def test_options_of_another_type_are_refused_by_name(open_fake: OpenFake, options: AskOptions) -> None:
    runtime, _ = open_fake(script="yes")
    [field] = options
    with pytest.raises(RequestError) as caught:
        runtime.ask([], "Is it?", **options)
    assert caught.value.field == field


def test_numbers_of_numpy_are_numbers(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    options: Any = {"max_tokens": np.int64(2), "deadline_s": np.float32(60), "temperature": np.float64(0)}
    assert runtime.ask([], "Is it?", **options).text == "ye"


@pytest.mark.parametrize(
    "options",
    [
        {"context_length": -5},
        {"context_length": 1.5},
        {"threads": 0},
        {"threads": "x"},
        {"max_waiting": 0},
        {"vision_engine": 5},
        {"vision_dtype": [1]},
    ],
)
def test_arguments_of_open_that_make_no_sense_are_refused(model_folder: Path, options: dict[str, Any]) -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError):
        Runtime.open(model_folder, **{"vision_engine": engine, "language_engine": engine, **options})


def test_questions_and_instructions_must_be_text(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(RequestError, match="question must be text"):
        runtime.ask([], b"Is it?")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="system must be text"):
        runtime.conversation(system=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)"])
def test_a_program_may_end_in_the_middle_of_a_stream(ending: str) -> None:
    program = f"""
from edge_vl import Runtime
runtime = Runtime.open()
stream = runtime.stream([], "Describe the picture at great length, please.")
next(stream)
{ending}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3 if ending else 0, b"")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("odd")])
def test_a_flag_that_fails_ends_its_own_request_only(open_fake: OpenFake, error: BaseException) -> None:
    class Flag:
        num_looks = 0

        def is_set(self) -> bool:
            self.num_looks += 1
            if self.num_looks > 8:
                raise error
            return False

    runtime, _ = open_fake(script="yes" * 20, latencies=FakeLatencies(decode_s=0.002))
    others = [runtime.stream(picture(seed), "Is it?") for seed in range(3)]
    with pytest.raises(RequestError, match=r"is_set\(\) failed"):
        runtime.ask(picture(9), "Really?", cancel=Flag())
    assert [stream.answer.text for stream in others] == ["yes" * 20] * 3


def test_a_runtime_may_be_closed_from_several_threads(open_fake: OpenFake) -> None:
    for _ in range(10):
        runtime, engine = open_fake(script="yes")
        runtime.ask(picture(1), "Is it?")
        errors: list[BaseException] = []

        def close(runtime: Runtime = runtime, errors: list[BaseException] = errors) -> None:
            try:
                runtime.close()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert errors == []
        assert engine.num_open == 0


@pytest.mark.parametrize("captured_s", [float("nan"), float("inf"), None, "now"])
def test_a_frame_without_a_moment_is_refused(open_fake: OpenFake, captured_s: Any) -> None:
    runtime, _ = open_fake(script="yes")
    with pytest.raises(ImageError, match="captured_s"):
        runtime.ask(Frame(picture(1), captured_s, 0.0), "Is it?", max_frame_age_s=1.0)


def test_tiles_are_remembered_although_a_deadline_makes_them_fewer(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes", limits=SchedulerLimits(max_idle_caches=0))
    unit = UnitCost(encode_s=10.0, prefill_s=0.1, num_encodes=5, num_prefills=5)
    runtime._scheduler.book.load(Costs({"16x16/4": unit}, 0.0, 0.001, 0.001, 3.0, 0.1))
    still = np.full((64, 64, 3), 90, np.uint8)
    noise = np.random.default_rng(1)
    answers = [
        runtime.ask(
            np.clip(still + noise.integers(-1, 2, still.shape), 0, 255).astype(np.uint8),
            "Is it?",
            deadline_s=30,
            reuse="perceptual",
            stream="camera",
        )
        for _ in range(4)
    ]
    assert answers[0].degraded
    assert [answer.reused["similar_units"] for answer in answers[1:]] == [
        answer.reused["image_units"] for answer in answers[1:]
    ]
    assert all(answer.reused["similar_units"] > 0 for answer in answers[1:])
