from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from edge_vl.gateway.admission import Admission


@dataclass(eq=False)
class One:
    client: str
    turn_of: Hashable | None = None


def admission(active: int = 2, waiting: int = 3, per_client: int = 10) -> Admission[One]:
    return Admission(max_active=active, max_waiting=waiting, max_per_client=per_client)


def test_clients_take_turns() -> None:
    line = admission(active=1, waiting=10)
    asked = [One("a"), One("a"), One("a"), One("b"), One("c"), One("b")]
    for asker in asked:
        assert line.refusal(asker.client) == ""
        line.enter(asker)
    order = []
    while (one := line.next()) is not None:
        order.append(one.client)
        line.leave(one)
    assert order == ["a", "b", "c", "a", "b", "a"]


def test_a_turn_waits_for_the_turn_before_it_and_holds_up_nothing_else() -> None:
    line = admission(active=3, waiting=10)
    first, second, other = One("a", "talk"), One("a", "talk"), One("a")
    for one in (first, second, other):
        line.enter(one)
    assert line.next() is first
    assert line.next() is other
    assert line.next() is None
    line.leave(first)
    assert line.next() is second


def test_who_is_refused_is_told_to_ask_again_with_another_id() -> None:
    line = admission(active=1, waiting=1, per_client=1)
    line.enter(One("a"))
    assert line.refusal("a").endswith("1 requests of this client wait or run already; ask again later, with another id")
    line.enter(One("b"))
    assert line.refusal("c") == "2 requests wait already and at most 1 may; ask again later, with another id"


def test_what_left_while_it_waited_never_runs() -> None:
    line = admission(active=1)
    running, gone = One("a"), One("a")
    line.enter(running)
    assert line.next() is running
    line.enter(gone)
    line.leave(gone)
    line.leave(gone)
    line.leave(running)
    assert line.next() is None
    assert (line.num_active, line.num_waiting) == (0, 0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.sampled_from("abc"), st.sampled_from([None, "t", "u"])),
            st.tuples(st.just("leave"), st.integers(0, 20), st.none()),
        ),
        max_size=60,
    ),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(1, 4),
)
def test_limits_hold_turns_are_in_order_and_nobody_is_forgotten(
    steps: list[tuple[str, str | int, str | None]], active: int, waiting: int, per_client: int
) -> None:
    line = admission(active, waiting, per_client)
    inside: list[One] = []
    running: list[One] = []
    turns: dict[tuple[str, Hashable], deque[One]] = {}
    for what, which, talk in steps:
        if what == "ask":
            one = One(str(which), None if talk is None else (which, talk))
            if line.refusal(one.client):
                same = sum(other.client == one.client for other in inside)
                assert same >= per_client or len(inside) >= active + waiting or len(running) < active
                continue
            line.enter(one)
            inside.append(one)
            if one.turn_of is not None:
                turns.setdefault((one.client, one.turn_of), deque()).append(one)
        elif inside:
            one = inside.pop(int(which) % len(inside))
            line.leave(one)
            if one in running:
                running.remove(one)
            if one.turn_of is not None:
                turns[one.client, one.turn_of].remove(one)
        while (begun := line.next()) is not None:
            running.append(begun)
            if begun.turn_of is not None:
                assert turns[begun.client, begun.turn_of][0] is begun
        assert line.num_active == len(running) <= active
        assert line.num_waiting == len(inside) - len(running)
        assert all(number <= per_client for number in Counter(one.client for one in inside).values())
        assert sorted(map(id, line.all())) == sorted(map(id, inside))
        waits = [one for one in inside if one not in running]
        busy = {one.turn_of for one in running if one.turn_of is not None}
        assert len(running) == active or all(one.turn_of in busy for one in waits)
    for one in list(inside):
        line.leave(one)
    assert (line.num_active, line.num_waiting, line.all()) == (0, 0, [])
