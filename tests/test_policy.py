"""Tests of the policy: a pure function, tried on random states and in a simulator with a clock of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.mode_choice import Mode
from edge_vl.policy import (
    Decode,
    Encode,
    Prefill,
    RunView,
    State,
    Step,
    Wait,
    dispatchable,
    next_step,
    order_of,
    smallest_step,
)
from edge_vl.scheduler_limits import SchedulerLimits
from tests.schedule_simulator import ANSWER_SHARE, SimRun, Simulator, names

MODES: st.SearchStrategy[Mode] = st.sampled_from(["serial", "interleaved", "overlapped"])
# One lane at a time works, so device time is what passes.
BATON_MODES: st.SearchStrategy[Mode] = st.sampled_from(["serial", "interleaved"])
COSTS = st.floats(0.005, 1.0)


@st.composite
def states(draw: st.DrawFn) -> State:
    """Draw a state that can be: units that nobody encodes can be encoded, and the vision lane works for one at most."""
    count = draw(st.integers(0, 5))
    numbers = draw(st.permutations(range(1, count + 1)))
    encoding = draw(st.sampled_from([None, *numbers, 99]))  # 99: one that has ended meanwhile
    runs = []
    for number in numbers:
        is_answering = draw(st.booleans())
        num_missing = 0 if is_answering else draw(st.integers(int(number == encoding), 4))
        num_encoding = draw(st.integers(1, num_missing)) if number == encoding and num_missing else 0
        runs.append(
            RunView(
                number=number,
                mode=draw(MODES),
                is_answering=is_answering,
                can_encode=num_missing > num_encoding,
                can_prefill=not is_answering and (not num_missing or draw(st.booleans())),
                num_missing=num_missing,
                account_s=draw(st.sampled_from([0.0, 1.0, 2.5])),
                due_s=draw(st.sampled_from([None, -1.0, 0.5, 3.0])),
            )
        )
    return State(tuple(runs), encoding, draw(st.sampled_from([-0.1, 0.0, 0.3])))


def is_allowed(step: Step, state: State) -> bool:
    """Say whether both lanes and the request are ready for a step."""
    if isinstance(step, Wait):
        return True
    views = {run.number: run for run in state.runs}
    run = views[step.run]
    encoding = None if state.encoding is None else views.get(state.encoding)
    if isinstance(step, Encode):
        return state.encoding is None and run.can_encode and step.num_units in (None, 1)
    language_is_free = state.encoding is None or (encoding is not None and encoding.mode == "overlapped")
    if isinstance(step, Prefill):
        return language_is_free and run.can_prefill and not run.is_answering
    return language_is_free and run.is_answering


@given(states())
def test_no_step_is_taken_that_the_state_does_not_allow(state: State) -> None:
    assert is_allowed(next_step(state), state)
    assert is_allowed(smallest_step(state), state)


@given(states())
def test_the_policy_waits_only_for_the_vision_lane_or_for_requests(state: State) -> None:
    if state.encoding is None:
        assert isinstance(next_step(state), Wait) == (not state.runs)
        assert dispatchable(state) == bool(state.runs)


@given(states())
def test_nobody_answers_before_every_unit_of_the_plan_is_in(state: State) -> None:
    step = next_step(state)
    if isinstance(step, Decode):
        assert next(run for run in state.runs if run.number == step.run).is_answering
    if isinstance(step, Prefill):
        run = next(run for run in state.runs if run.number == step.run)
        assert run.mode != "serial" or not run.num_missing


@given(states())
def test_several_units_are_taken_at_once_only_while_nobody_else_is_there(state: State) -> None:
    step = next_step(state)
    if isinstance(step, Encode) and step.num_units is None:
        assert len(state.runs) == 1
        assert state.runs[0].mode != "interleaved"


@given(states())
def test_what_a_policy_is_overruled_with_is_one_unit_of_the_earliest_request(state: State) -> None:
    step = smallest_step(state)
    if isinstance(step, Wait):
        assert not dispatchable(state)
        return
    assert dispatchable(state)
    if isinstance(step, Encode):
        assert step.num_units == 1
    for other in state.runs:
        if other.number < step.run:
            steps = (Encode(other.number), Prefill(other.number), Decode(other.number))
            assert not any(is_allowed(one, state) for one in steps)


@given(states())
def test_answers_that_are_owed_time_come_before_new_requests(state: State) -> None:
    state = replace(state, owed_s=0.3, encoding=None, runs=(*state.runs, RunView(50, is_answering=True)))
    step = next_step(state)
    if isinstance(step, Encode):  # the vision lane may work beside them
        assert next(run for run in state.runs if run.number == step.run).mode == "overlapped"
    else:
        assert isinstance(step, Decode)


def test_least_time_goes_first_then_the_nearest_deadline_then_arrival() -> None:
    runs = [
        RunView(1, account_s=2.0),
        RunView(2, account_s=1.0),
        RunView(3, account_s=1.0, due_s=9.0),
        RunView(4, account_s=1.0, due_s=2.0),
        RunView(5, account_s=3.0),
        RunView(6, account_s=2.0),
    ]
    assert order_of(runs) == [4, 3, 2, 1, 6, 5]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("serial", "E1* P1 P1 P1 P1 D1 D1"),
        ("interleaved", "E1 P1 E1 P1 E1 P1 P1 D1 D1"),
        ("overlapped", "E1* P1 P1 P1 P1 D1 D1"),
    ],
)
def test_each_mode_has_its_order(mode: Mode, expected: str) -> None:
    assert names(Simulator([SimRun(1, mode=mode, num_tokens=3)]).run()) == expected


@pytest.mark.parametrize(
    ("mode", "first_token_s"),
    [
        ("serial", 3 * 0.2 + 3 * 0.1 + 0.1),
        ("interleaved", 3 * 0.2 + 3 * 0.1 + 0.1),
        ("overlapped", 3 * 0.2 + 0.1 + 0.1),
    ],
)
def test_only_overlapped_lanes_work_at_the_same_time(mode: Mode, first_token_s: float) -> None:
    [run] = Simulator([SimRun(1, mode=mode)]).run().runs
    assert run.first_token_s == pytest.approx(first_token_s)


def test_a_second_request_makes_the_first_one_encode_unit_by_unit() -> None:
    simulator = Simulator([SimRun(1), SimRun(2, arrives_s=0.25)]).run()
    assert names(simulator) == "E1* E1 P1 P1 P1 P1 E2* P2 P2 P2 P2"


def test_overlapped_requests_keep_the_vision_lane_busy_while_answers_run() -> None:
    answer = SimRun(1, num_units=0, num_tokens=200)
    frame = SimRun(2, arrives_s=0.5, mode="overlapped")
    simulator = Simulator([answer, frame]).run()
    at_s = [at_s for at_s, step in simulator.steps if step == Encode(2)]
    assert len(at_s) == 3
    assert simulator.decoded_s(1, at_s[0], at_s[0] + 0.2) > 0.15


@st.composite
def crowds(draw: st.DrawFn) -> list[SimRun]:
    return [
        SimRun(
            number,
            arrives_s=draw(st.floats(0, 3)),
            mode=draw(MODES),
            num_units=draw(st.integers(0, 4)),
            encode_s=draw(COSTS),
            prefill_s=draw(COSTS),
            text_s=draw(COSTS),
            num_tokens=draw(st.integers(1, 12)),
            decode_s=draw(COSTS),
            stream=draw(st.sampled_from(["", "door", "yard"])),
            share=draw(st.sampled_from([0.5, 1.0, 4.0])),
        )
        for number in range(1, draw(st.integers(1, 5)) + 1)
    ]


@given(crowds())
@settings(deadline=None)
def test_every_request_comes_to_its_end_and_each_step_is_allowed(crowd: list[SimRun]) -> None:
    simulator = Simulator(crowd).run(until_s=1000)
    for run in crowd:
        assert run.ended_s is not None
        assert (run.num_encoded, run.num_prefilled, run.num_said) == (run.num_units, run.num_units + 1, run.num_tokens)
    assert all(is_allowed(step, state) for state, (_, step) in zip(simulator.states, simulator.steps, strict=True))


@given(crowds())
@settings(deadline=None)
def test_the_smallest_steps_alone_bring_every_request_to_its_end(crowd: list[SimRun]) -> None:
    Simulator(crowd, policy=smallest_step).run(until_s=1000)
    assert all(run.ended_s is not None for run in crowd)


@st.composite
def new_requests(draw: st.DrawFn) -> SimRun:
    return SimRun(
        2,
        arrives_s=draw(st.floats(0.5, 1.5)),
        mode=draw(BATON_MODES),
        num_units=draw(st.integers(0, 6)),
        encode_s=draw(COSTS),
        prefill_s=draw(COSTS),
        text_s=draw(COSTS),
    )


@given(new_requests(), st.floats(0.004, 0.1), st.integers(1, 3))
@settings(deadline=None, max_examples=50)
def test_a_new_request_waits_for_running_answers_no_longer_than_for_itself(
    new: SimRun, decode_s: float, num_answers: int
) -> None:
    """Its first token comes within 2.2 times its undisturbed time, but for the token that is decoded as it comes."""
    alone = replace(new)
    Simulator([alone]).run()
    assert alone.first_token_s is not None
    undisturbed_s = alone.first_token_s - alone.arrives_s
    answers = [
        SimRun(10 + n, num_units=0, text_s=0.01, decode_s=decode_s, num_tokens=100_000) for n in range(num_answers)
    ]
    simulator = Simulator([*answers, new]).run(until_s=new.arrives_s + 3 * undisturbed_s + 1)
    assert new.first_token_s is not None
    assert new.first_token_s - new.arrives_s <= 2.2 * undisturbed_s + 2 * decode_s
    # And at any moment the answers had at least half of the time, but for the unit that runs.
    longest_s = max(new.encode_s, new.prefill_s, new.text_s)
    decoded_s = 0.0
    for at_s, step in simulator.steps:
        if new.arrives_s <= at_s <= new.first_token_s:
            assert decoded_s >= 0.5 * (at_s - new.arrives_s) - longest_s - 2 * decode_s
            decoded_s += decode_s if isinstance(step, Decode) else 0.0


@given(new_requests(), st.floats(0.001, 0.1), st.integers(20, 200))
@settings(deadline=None, max_examples=30)
def test_a_running_answer_keeps_half_its_speed_while_new_frames_come_one_after_the_other(
    new: SimRun, decode_s: float, num_tokens: int
) -> None:
    answer = SimRun(1, num_units=0, text_s=0.01, decode_s=decode_s, num_tokens=num_tokens)
    frames = [replace(new, number=2 + n, arrives_s=0.02 * n, stream="camera") for n in range(40)]
    simulator = Simulator([answer, *frames])
    while answer.ended_s is None:
        # Only one frame at a time is there, as with a mailbox: the others are passed over.
        waiting = [frame for frame in frames if frame.ended_s is None]
        for later in waiting[1:]:
            later.arrives_s = float("inf")
        if waiting and waiting[0].arrives_s == float("inf"):
            waiting[0].arrives_s = simulator.now_s
        simulator.turn()
    longest_s = max(new.encode_s, new.prefill_s, new.text_s)
    assert answer.first_token_s is not None
    alone_s = (num_tokens - 1) * decode_s
    assert answer.ended_s - answer.first_token_s <= 2 * alone_s + longest_s + 2 * decode_s


@given(st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.sampled_from([0.5, 1.0, 3.0]), COSTS, COSTS, BATON_MODES)
@settings(deadline=None, max_examples=25)
def test_streams_get_device_time_by_their_weight(
    one_share: float, other_share: float, one_s: float, other_s: float, mode: Mode
) -> None:
    door = [SimRun(n, stream="door", share=one_share, encode_s=one_s, mode=mode) for n in range(0, 60, 2)]
    yard = [SimRun(n, stream="yard", share=other_share, encode_s=other_s, mode=mode) for n in range(1, 61, 2)]
    for run in (*door, *yard):
        run.arrives_s = float("inf")
    simulator = Simulator([*door, *yard])
    while True:
        queues = [[run for run in runs if run.ended_s is None] for runs in (door, yard)]
        if not all(queues):
            break
        for queue in queues:
            queue[0].arrives_s = min(queue[0].arrives_s, simulator.now_s)
        simulator.turn()
    used_s = [sum(run.device_s for run in runs) for runs in (door, yard)]
    largest_s = max(run.device_s / run.share for run in (*door, *yard))
    assert abs(used_s[0] / one_share - used_s[1] / other_share) <= 3 * largest_s


def test_a_stream_that_comes_late_does_not_get_what_it_did_not_use() -> None:
    early = [SimRun(n, stream="early", arrives_s=0.0) for n in range(1, 21)]
    late = [SimRun(n, stream="late", arrives_s=5.0) for n in range(21, 41)]
    Simulator([*early, *late]).run(until_s=12)
    had_s = sum(run.device_s for run in early if run.ended_s is None or run.ended_s > 5.0)
    assert had_s > 2.0  # of the seven seconds since; were time kept, it would have none


def test_the_simulator_owes_what_the_loop_owes() -> None:
    assert SchedulerLimits().answer_share == ANSWER_SHARE
