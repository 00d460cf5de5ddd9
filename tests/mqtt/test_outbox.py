from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.mqtt.outbox import LARGE_BYTES, MAX_SENDS, Entry, Keep, Outbox
from edge_vl.mqtt.packet import MAX_CORRELATION_BYTES, Outbound, QoS
from edge_vl.mqtt.suspicion import BAN_S, SOON_S, SUSPECT_AFTER


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


def lose(box: Outbox[Slip], now_s: float = 1e9, *, is_by_broker: bool = True) -> list[Entry[Slip]]:
    """Lose the connection, by default long after everything was sent."""
    return box.connection_lost(now_s, is_by_broker=is_by_broker)


class HangingUp:
    """A broker that confirms in order, and hangs up on some messages without a word.

    Attributes:
        took: names of what it has taken.
        num_losses: times that it hung up.
    """

    def __init__(self, box: Outbox[Slip], is_bad: Callable[[Outbound], bool]) -> None:
        self.box = box
        self.is_bad = is_bad
        self.took: list[str] = []
        self.given_up: list[str] = []
        self.num_losses = 0
        self._number = 1000

    def live(self) -> bool:
        """Live through one connection; say whether it ended by hanging up. Confirmations before that are lost."""
        while True:
            sent = []
            while (item := self.box.take(20)) is not None:
                self._number += 1
                self.box.sent(item, self._number, 1.0)
                sent.append((self._number, item))
            if not sent:
                return False
            if any(self.is_bad(item.message) for _, item in sent):
                self.num_losses += 1
                self.given_up += names(self.box.connection_lost(1.1, is_by_broker=True))
                return True
            for number, item in sent:
                self.box.confirmed(number, 1.1)
                self.took.append(name_of(item))


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
    assert box.confirmed(7, 1.0) is first
    assert box.confirmed(7, 1.0) is None
    third = box.take(2)
    assert third is not None
    assert name_of(third) == "2"


def test_what_was_not_confirmed_is_sent_first_on_the_next_connection() -> None:
    box = filled(entry("a"), entry("b"), entry("c"))
    assert drain(box, 2) == ["a", "b"]
    assert lose(box) == []
    assert drain(box) == ["a", "b", "c"]


def test_of_the_newest_only_the_newest_of_its_topic_is_kept() -> None:
    box = filled(entry("1", "latest", topic="x"), entry("other", topic="y"))
    assert names(box.add(entry("2", "latest", topic="x"))) == ["1"]
    assert drain(box) == ["other", "2"]
    assert box.num_dropped == {}


def test_a_state_that_was_under_way_is_not_sent_again_when_there_is_a_newer_one() -> None:
    box = filled(entry("old", "latest"))
    drain(box)
    box.add(entry("new", "latest"))
    assert names(lose(box)) == ["old"]
    assert box.num_dropped == {}
    assert drain(box) == ["new"]


def test_two_states_of_one_topic_that_were_under_way_become_the_newer_one() -> None:
    box = filled(entry("old", "latest"))
    drain(box)
    box.add(entry("new", "latest"))
    drain(box)
    assert names(lose(box)) == ["old"]
    assert drain(box) == ["new"]


def test_what_is_for_one_connection_only_ends_with_it() -> None:
    box = filled(entry("sent", "drop"), entry("kept"), entry("waits", "drop"))
    assert drain(box, 2) == ["sent", "kept"]
    assert sorted(names(lose(box))) == ["sent", "waits"]
    assert drain(box) == ["kept"]


def test_what_goes_first_on_a_connection_replaces_older_states_that_wait() -> None:
    box = filled(entry("old", "latest", topic="x"), entry("text"))
    fresh = [entry("info", "latest", topic="i"), entry("new", "latest", topic="x")]
    assert names(box.add_first(fresh)) == ["old"]
    assert drain(box) == ["info", "new", "text"]


def test_deltas_make_room_oldest_first_and_terminal_messages_stay() -> None:
    size = entry("a").cost_bytes
    box = filled(entry("a"), entry("b", "delta"), entry("c", "delta"), max_bytes=3 * size)
    assert names(box.add(entry("d"))) == ["b"]
    assert names(box.add(entry("e", "delta"))) == ["c"]
    assert names(box.add(entry("f"))) == ["e"]
    assert names(box.add(entry("g"))) == ["a"]
    assert drain(box) == ["d", "f", "g"]
    assert box.num_dropped == {"delta": 3, "terminal": 1}


def test_a_delta_does_not_make_room_for_itself_at_the_cost_of_a_terminal_message() -> None:
    size = entry("a").cost_bytes
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
    assert lose(box) == []
    assert drain(box) == ["stays"]


def test_a_large_message_that_ends_connection_after_connection_is_given_up_and_a_small_one_is_not() -> None:
    box = filled(entry("small"), entry("large", size=LARGE_BYTES + 1), max_bytes=10 * LARGE_BYTES)
    for _ in range(MAX_SENDS - 1):
        assert drain(box) == ["small", "large"]
        assert lose(box) == []
    drain(box)
    assert names(lose(box)) == ["large"]
    assert drain(box) == ["small"]


def is_on(topic: str) -> Callable[[Outbound], bool]:
    return lambda message: message.topic == topic


@pytest.mark.parametrize("place", [0, 7, 30, 59])
def test_a_message_on_which_the_broker_hangs_up_is_given_up_and_all_others_arrive_in_order(place: int) -> None:
    entries = [entry(str(number), topic="bad" if number == place else f"t{number % 3}") for number in range(60)]
    box = filled(*entries, max_bytes=10**6)
    broker = HangingUp(box, is_on("bad"))
    while broker.live():
        assert broker.num_losses < 10
    assert broker.num_losses == SUSPECT_AFTER + 1
    assert broker.given_up == [str(place)]
    assert entries[place].is_guilty
    assert broker.took == [str(number) for number in range(60) if number != place]
    assert box.is_empty
    assert box.num_bytes == 0


def test_one_that_is_taken_back_and_sent_again_stays_suspected() -> None:
    box = filled(entry("bad", topic="bad"))
    broker = HangingUp(box, is_on("bad"))
    for _ in range(SUSPECT_AFTER):
        assert broker.live()
        (waiting,) = box.clear()
        box.add(entry("bad", topic="bad"))
        assert not waiting.is_guilty
    box.add(entry("good"))
    assert broker.live()
    assert broker.given_up == ["bad"]
    assert not broker.live()
    assert broker.took == ["good"]


def test_a_topic_on_which_the_broker_hangs_up_costs_five_connections_and_is_then_left_alone_for_a_while() -> None:
    bad = [entry(f"bad {number}", topic="bad") for number in range(200)]
    good = [entry(f"good {number}") for number in range(200)]
    box = filled(*[item for pair in zip(bad, good, strict=True) for item in pair], max_bytes=10**6)
    broker = HangingUp(box, is_on("bad"))
    while broker.live():
        assert broker.num_losses < 10
    assert broker.num_losses == SUSPECT_AFTER + 2
    assert sorted(broker.given_up) == sorted(map(name_of, bad))
    assert all(item.is_guilty for item in bad)
    assert broker.took == [f"good {number}" for number in range(200)]
    assert box.is_banned("bad", 2.0)
    assert not box.is_banned("t", 2.0)
    assert not box.is_banned("bad", 2.0 + BAN_S)


def test_after_a_message_that_was_too_large_a_smaller_one_goes_through_and_no_other_such_is_tried() -> None:
    def is_large(message: Outbound) -> bool:
        return message.num_bytes > 1500

    box = filled(entry("end 1", topic="r/1", size=2000), entry("other"), max_bytes=10**6)
    broker = HangingUp(box, is_large)
    while broker.live():
        pass
    assert broker.given_up == ["end 1"]
    assert box.max_packet_bytes(2.0) is None
    box.add(entry("error 1", topic="r/1"))
    assert not broker.live()
    assert broker.took == ["other", "error 1"]
    limit = box.max_packet_bytes(2.0)
    assert limit == entry("end 1", topic="r/1", size=2000).message.num_bytes - 1
    assert box.max_packet_bytes(2.0 + BAN_S) is None


def test_a_message_smaller_than_others_that_were_taken_says_nothing_about_sizes() -> None:
    box = filled(entry("large", size=3000), max_bytes=10**6)
    broker = HangingUp(box, lambda message: message.payload == b"poison")
    broker.live()
    box.add(entry("poison", topic="r/1"))
    while broker.live():
        pass
    box.add(entry("less", topic="r/1"))
    assert not broker.live()
    assert broker.took == ["large", "less"]
    assert box.max_packet_bytes(2.0) is None


def test_a_suspect_is_sent_alone_and_only_on_a_connection_that_has_lived_for_a_moment() -> None:
    box = filled(entry("a"), entry("b"))
    for _ in range(SUSPECT_AFTER):
        drain(box)
        assert lose(box, 1.1) == []
    box.add(entry("c", qos=0))
    assert box.take(20, is_settled=False) is None
    assert drain(box) == ["a"]
    assert box.take(20) is None
    box.confirmed(drain.number - 1, 1.1)  # type: ignore[attr-defined]
    assert drain(box) == ["b"]
    box.confirmed(drain.number - 1, 1.1)  # type: ignore[attr-defined]
    assert drain(box) == ["c"]


def test_a_connection_that_ends_by_itself_costs_no_message() -> None:
    """Not soon, or not by the broker, or before the suspect was sent on it."""
    box = filled(*[entry(str(number)) for number in range(5)])
    for _ in range(50):
        drain(box)
        assert lose(box, 1.0 + SOON_S) == []
    for _ in range(SUSPECT_AFTER):
        drain(box)
        assert lose(box, 1.1) == []
    for _ in range(50):
        assert box.take(20, is_settled=False) is None
        assert lose(box, 1.1) == []
    for _ in range(50):
        item = box.take(20)
        assert item is not None
        box.sent(item, 1, 1.0)
        assert lose(box, 1.1, is_by_broker=False) == []
    assert drain(box, 1) == ["0"]


def test_what_only_mqtt_5_carries_counts_as_well() -> None:
    plain = Entry(Outbound("t", b"x"), "terminal", Slip())
    full = Entry(
        Outbound(
            "t", b"x", content_type="application/json", correlation=bytes(MAX_CORRELATION_BYTES), response_topic="r" * 9
        ),
        "terminal",
        Slip(),
    )
    assert full.cost_bytes - plain.cost_bytes > MAX_CORRELATION_BYTES + 9 + len("application/json")


def test_refusals_have_an_eighth_of_the_room_and_neighbours_of_one_topic_half_of_that() -> None:
    size = entry("00", "refusal", topic="r/z/00").cost_bytes
    box = filled(entry("honest", "refusal", topic="r/a/00"), max_bytes=80 * size)
    for number in range(1000):
        box.add(entry(f"{number % 100:02}", "refusal", topic=f"r/z/{number % 100:02}"))
    assert drain(box) == ["honest", *[f"{number:02}" for number in range(95, 100)]]
    assert box.num_dropped == {"refusal": 995}
    for number in range(1000):
        box.add(entry(f"{number % 100:02}", "refusal", topic=f"r{number:03}/0"))
    assert box.num_waiting == 10


def test_no_refusal_costs_an_answer_anything_and_all_of_them_go_before_a_delta_does() -> None:
    size = entry("a", topic="r/a/0").cost_bytes
    box = filled(entry("a", "delta", topic="r/a/0"), max_bytes=16 * size)
    assert box.add(entry("x", "refusal", topic="r/z/0")) == []
    for number in range(14):
        assert box.add(entry(str(number % 10), topic="r/b/0")) == []
    assert names(box.add(entry("y", "refusal", topic="r/z/0"))) == ["x"]
    assert names(box.add(entry("b", "delta", topic="r/a/0"))) == ["y"]
    assert names(box.add(entry("z", "refusal", topic="r/z/0"))) == ["z"]
    assert drain(box)[0] == "a"


def test_refusals_are_sent_when_nothing_else_waits_and_leave_half_of_the_places_to_what_comes() -> None:
    box = filled(*[entry(f"no {number}", "refusal", topic="r/z/0") for number in range(9)], max_bytes=10**6)
    box.add(entry("first"))
    assert drain(box, 4) == ["first", "no 0"]
    box.add(entry("second"))
    box.add(entry("third"))
    box.add(entry("fourth"))
    assert drain(box, 4) == ["second", "third"]
    assert lose(box) == []
    assert drain(box) == ["first", "second", "third", "fourth", *[f"no {number}" for number in range(9)]]


def test_bytes_are_counted_until_they_are_confirmed_and_all_are_given_back() -> None:
    box = filled(entry("a", size=100), entry("b", "delta", size=50), entry("c", qos=0))
    total = box.num_bytes
    sizes = [entry("a", size=100).cost_bytes, entry("b", size=50).cost_bytes, entry("c", qos=0).cost_bytes]
    assert total == sum(sizes)
    assert sizes[0] - sizes[1] == 50
    drain.number = 1  # type: ignore[attr-defined]
    drain(box)
    assert box.num_bytes == total - entry("c", qos=0).cost_bytes
    box.confirmed(1, 1.0)
    box.confirmed(2, 1.0)
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
            box.confirmed(under_way.pop(0), 1.0)
        elif step == "lost":
            lose(box)
            under_way.clear()
    while send() or under_way:
        if under_way:
            box.confirmed(under_way.pop(0), 1.0)
    assert box.is_empty
    assert box.num_bytes == 0
    for topic, expected in posted.items():
        firsts = list(dict.fromkeys(arrived.get(topic, [])))
        assert firsts == expected
