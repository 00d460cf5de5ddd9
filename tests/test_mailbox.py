"""Tests of the mailbox of depth one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.mailbox import Mailbox

WAIT_S = 20.0


def start(job: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    return thread


def test_the_newest_thing_is_taken_and_those_before_it_are_counted() -> None:
    box: Mailbox[str] = Mailbox()
    for item in "abc":
        box.put(item)
    assert box.has_newer
    assert box.take() == "c"
    assert box.num_dropped == 2
    assert not box.has_newer


@given(st.lists(st.sampled_from(["put", "take", "restore"]), max_size=60))
def test_every_thing_is_taken_once_or_dropped_or_waits_and_newer_ones_come_later(steps: list[str]) -> None:
    box: Mailbox[int] = Mailbox()
    taken: list[int] = []
    num_put = 0
    for step in steps:
        if step == "put":
            box.put(num_put)
            num_put += 1
        elif step == "restore":
            box.restore()
        elif box.has_newer:
            item = box.take()
            assert item is not None
            taken.append(item)
    box.close()
    assert len(taken) == len(set(taken))
    assert len(taken) + box.num_dropped == num_put


def test_what_the_one_taken_last_had_displaced_can_wait_again() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("good")
    box.put("bad")
    assert box.take() == "bad"
    box.restore()
    assert box.num_dropped == 0
    assert box.take() == "good"


def test_a_newer_thing_is_not_displaced_by_one_that_is_to_wait_again() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("good")
    box.put("bad")
    assert box.take() == "bad"
    box.put("new")
    box.restore()
    assert box.take() == "new"
    assert box.num_dropped == 1


def test_nothing_waits_again_twice() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("good")
    box.put("bad")
    box.take()
    box.restore()
    assert box.take() == "good"
    box.restore()
    assert not box.has_newer


def test_after_its_end_what_waits_is_taken_and_then_nothing() -> None:
    box: Mailbox[str] = Mailbox()
    trouble = OSError("unplugged")
    box.put("last")
    box.end(trouble)
    assert box.error is trouble
    assert box.take() == "last"
    assert box.take() is None
    assert box.num_dropped == 0


def test_the_end_is_told_at_once_even_before_the_next_thing_is_due() -> None:
    box: Mailbox[str] = Mailbox()
    box.end()
    assert box.take(math.inf) is None


def test_closing_drops_what_waits_and_what_comes_later() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("a")
    box.close()
    box.put("b")
    assert box.take() is None
    assert not box.has_newer
    assert box.num_dropped == 2
    assert box.is_closed


@pytest.mark.parametrize("not_before_s", [-math.inf, math.inf])
def test_closing_wakes_whoever_waits_for_a_thing(not_before_s: float) -> None:
    box: Mailbox[str] = Mailbox()
    found: list[str | None] = []
    reader = start(lambda: found.append(box.take(not_before_s)))
    box.close()
    reader.join(WAIT_S)
    assert found == [None]


def test_nothing_is_taken_before_it_is_due_and_then_the_newest() -> None:
    box: Mailbox[str] = Mailbox()
    box.put("early")
    due_s = time.monotonic() + 0.2
    found: list[tuple[str | None, float]] = []
    reader = start(lambda: found.append((box.take(due_s), time.monotonic())))
    box.put("newer")
    reader.join(WAIT_S)
    [(item, taken_s)] = found
    assert item == "newer"
    assert taken_s >= due_s


def test_a_producer_on_demand_waits_until_a_thing_is_wanted_each_time() -> None:
    box: Mailbox[int] = Mailbox()
    made: list[int] = []

    def produce() -> None:
        while box.wait_until_wanted():
            made.append(len(made))
            box.put(made[-1])

    producer = start(produce)
    assert made == []
    for number in range(5):
        assert box.take() == number
        assert made == list(range(number + 1))
    box.close()
    producer.join(WAIT_S)
    assert not producer.is_alive()
    assert box.num_dropped == 0


def test_waiting_for_the_close_gives_up_after_a_while_and_ends_with_it() -> None:
    box: Mailbox[int] = Mailbox()
    assert not box.wait_until_closed(0.01)
    found: list[bool] = []
    waiter = start(lambda: found.append(box.wait_until_closed(WAIT_S)))
    box.close()
    waiter.join(WAIT_S)
    assert found == [True]


def test_a_fast_producer_and_a_slow_consumer_lose_nothing_uncounted() -> None:
    box: Mailbox[int] = Mailbox()

    def produce() -> None:
        for number in range(2_000):
            box.put(number)
        box.end()

    producer = start(produce)
    taken: list[int] = []
    while (item := box.take()) is not None:
        taken.append(item)
    producer.join(WAIT_S)
    assert taken == sorted(set(taken))
    assert taken[-1] == 1_999
    assert len(taken) + box.num_dropped == 2_000
