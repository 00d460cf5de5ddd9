from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_vl.mqtt.outbox import LARGE_BYTES, MAX_SENDS, OVERHEAD_BYTES, Entry, Keep, Outbox
from edge_vl.mqtt.packet import Outbound, QoS


class Slip:
    """A receipt that can be taken back."""

    def __init__(self) -> None:
        self.is_taken_back = False

    def cancelled(self) -> bool:
        return self.is_taken_back


def entry(name: str, keep: Keep = "terminal", *, topic: str = "t", qos: QoS = 1, size: int = 0) -> Entry[Slip]:
    return Entry(Outbound(topic, name.encode() + bytes(size), qos), keep, Slip())


def name_of(item: Entry[Slip]) -> str:
    return item.message.payload.rstrip(b"\0").decode()


def names(items: list[Entry[Slip]]) -> list[str]:
    return [name_of(item) for item in items]


def drain(box: Outbox[Slip], max_in_flight: int = 100) -> list[str]:
    """Send everything that may be sent; numbers go on from those in flight."""
    sent = []
    while (item := box.take(max_in_flight)) is not None:
        sent.append(name_of(item))
        if item.message.qos:
            box.sent(item, drain.number, 1.0)  # type: ignore[attr-defined]
            drain.number += 1  # type: ignore[attr-defined]
    return sent


drain.number = 1  # type: ignore[attr-defined]


def filled(*entries: Entry[Slip], max_bytes: int = 10_000) -> Outbox[Slip]:
    box: Outbox[Slip] = Outbox(max_bytes)
    for item in entries:
        assert box.add(item) == []
    return box


def test_messages_leave_in_the_order_in_which_they_came() -> None:
    box = filled(entry("a"), entry("b", "delta"), entry("c", qos=0), entry("d", "latest"))
    assert drain(box) == ["a", "b", "c", "d"]
    assert box.num_in_flight == 3
    assert not box.is_empty


def test_no_more_than_allowed_are_under_way_and_each_confirmation_lets_one_more_go() -> None:
    box = filled(*[entry(str(number)) for number in range(5)])
    first = box.take(2)
    assert first is not None
    box.sent(first, 7, 1.0)
    second = box.take(2)
    assert second is not None
    box.sent(second, 8, 2.0)
    assert box.take(2) is None
    assert box.oldest_sent_s == 1.0
    assert box.confirmed(7) is first
    assert box.confirmed(7) is None
    third = box.take(2)
    assert third is not None
    assert name_of(third) == "2"


def test_what_was_not_confirmed_is_sent_first_on_the_next_connection() -> None:
    box = filled(entry("a"), entry("b"), entry("c"))
    assert drain(box, 2) == ["a", "b"]
    assert box.connection_lost() == []
    assert drain(box) == ["a", "b", "c"]


def test_of_the_newest_only_the_newest_of_its_topic_is_kept() -> None:
    box = filled(entry("1", "latest", topic="x"), entry("other", topic="y"))
    assert names(box.add(entry("2", "latest", topic="x"))) == ["1"]
    assert drain(box) == ["other", "2"]
    assert box.num_dropped["latest"] == 1


def test_a_state_that_was_under_way_is_not_sent_again_when_there_is_a_newer_one() -> None:
    box = filled(entry("old", "latest"))
    drain(box)
    box.add(entry("new", "latest"))
    assert names(box.connection_lost()) == ["old"]
    assert drain(box) == ["new"]


def test_two_states_of_one_topic_that_were_under_way_become_the_newer_one() -> None:
    box = filled(entry("old", "latest"))
    drain(box)
    box.add(entry("new", "latest"))
    drain(box)
    assert names(box.connection_lost()) == ["old"]
    assert drain(box) == ["new"]


def test_what_is_for_one_connection_only_ends_with_it() -> None:
    box = filled(entry("sent", "drop"), entry("kept"), entry("waits", "drop"))
    assert drain(box, 2) == ["sent", "kept"]
    assert sorted(names(box.connection_lost())) == ["sent", "waits"]
    assert drain(box) == ["kept"]


def test_what_goes_first_on_a_connection_replaces_older_states_that_wait() -> None:
    box = filled(entry("old", "latest", topic="x"), entry("text"))
    fresh = [entry("info", "latest", topic="i"), entry("new", "latest", topic="x")]
    assert names(box.add_first(fresh)) == ["old"]
    assert drain(box) == ["info", "new", "text"]


def test_deltas_make_room_oldest_first_and_terminal_messages_stay() -> None:
    size = OVERHEAD_BYTES + len("t") + len("a")
    box = filled(entry("a"), entry("b", "delta"), entry("c", "delta"), max_bytes=3 * size)
    assert names(box.add(entry("d"))) == ["b"]
    assert names(box.add(entry("e", "delta"))) == ["c"]
    assert names(box.add(entry("f"))) == ["e"]
    assert names(box.add(entry("g"))) == ["a"]
    assert drain(box) == ["d", "f", "g"]
    assert box.num_dropped == {"delta": 3, "terminal": 1}


def test_a_delta_does_not_make_room_for_itself_at_the_cost_of_a_terminal_message() -> None:
    size = OVERHEAD_BYTES + len("t") + len("a")
    box = filled(entry("a"), entry("b"), max_bytes=2 * size)
    assert names(box.add(entry("c", "delta"))) == ["c"]
    assert drain(box) == ["a", "b"]


def test_what_can_never_fit_is_refused_and_nothing_is_given_up_for_it() -> None:
    box = filled(entry("a", "delta"), max_bytes=1000)
    assert names(box.add(entry("huge", size=2000))) == ["huge"]
    assert drain(box) == ["a"]


def test_what_is_taken_back_is_never_sent_and_never_sent_again() -> None:
    waiting, under_way = entry("waiting"), entry("under way")
    box = filled(under_way)
    drain(box)
    box.add(waiting)
    box.add(entry("stays"))
    waiting.receipt.is_taken_back = under_way.receipt.is_taken_back = True
    assert box.connection_lost() == []
    assert drain(box) == ["stays"]


def test_a_large_message_that_ends_connection_after_connection_is_given_up_and_a_small_one_is_not() -> None:
    box = filled(entry("small"), entry("large", size=LARGE_BYTES + 1), max_bytes=10 * LARGE_BYTES)
    for _ in range(MAX_SENDS - 1):
        assert drain(box) == ["small", "large"]
        assert box.connection_lost() == []
    drain(box)
    assert names(box.connection_lost()) == ["large"]
    assert drain(box) == ["small"]


def test_bytes_are_counted_until_they_are_confirmed_and_all_are_given_back() -> None:
    box = filled(entry("a", size=100), entry("b", "delta", size=50), entry("c", qos=0))
    total = box.num_bytes
    assert total == 150 + 3 * (OVERHEAD_BYTES + 2)
    drain.number = 1  # type: ignore[attr-defined]
    drain(box)
    assert box.num_bytes == total - OVERHEAD_BYTES - 2
    box.confirmed(1)
    box.confirmed(2)
    assert box.num_bytes == 0
    assert box.is_empty


KEEPS: st.SearchStrategy[Keep] = st.sampled_from(["terminal", "delta", "latest", "drop"])
STEPS = st.lists(
    st.one_of(st.tuples(KEEPS, st.integers(0, 2)), st.sampled_from(["take", "confirm", "lost"])), max_size=80
)


@given(STEPS)
def test_whatever_happens_terminal_messages_arrive_in_the_order_of_their_topic_and_bytes_add_up(
    steps: list[object],
) -> None:
    box: Outbox[Slip] = Outbox(10**6)
    posted: dict[str, list[str]] = {}
    arrived: dict[str, list[str]] = {}
    under_way: list[int] = []
    number = 0

    def send() -> bool:
        nonlocal number
        item = box.take(3)
        if item is None:
            return False
        number += 1
        box.sent(item, number, float(number))
        under_way.append(number)
        if item.keep == "terminal":
            arrived.setdefault(item.message.topic, []).append(name_of(item))
        return True

    for count, step in enumerate(steps):
        if isinstance(step, tuple):
            keep, topic = step
            if keep == "terminal":
                posted.setdefault(f"t{topic}", []).append(str(count))
            box.add(entry(str(count), keep, topic=f"t{topic}"))
        elif step == "take":
            send()
        elif step == "confirm" and under_way:
            box.confirmed(under_way.pop(0))
        elif step == "lost":
            box.connection_lost()
            under_way.clear()
    while send() or under_way:
        if under_way:
            box.confirmed(under_way.pop(0))
    assert box.is_empty
    assert box.num_bytes == 0
    for topic, expected in posted.items():
        firsts = list(dict.fromkeys(arrived.get(topic, [])))
        assert firsts == expected
