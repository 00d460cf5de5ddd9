"""Tests of putting a stream's messages together."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edge_vl.mqtt.messages import Aborted, Delta, End, Start, StreamMessage
from edge_vl.mqtt.stream_assembly import MAX_CHARACTERS, StreamAssembly

USAGE = {"prompt_tokens": 1, "image_tokens": 0, "completion_tokens": 3}


def start() -> Start:
    return Start(id="r", seq=0, t_ms=0, node="n", boot_id="b", model="m")


def delta(seq: int, text: str) -> Delta:
    return Delta(id="r", seq=seq, t_ms=seq, text=text)


def end(seq: int, text: str) -> End:
    return End(id="r", seq=seq, t_ms=9, text=text, finish_reason="stop", usage=USAGE, timings={})


def texts(messages: list[StreamMessage]) -> list[str]:
    assembly = StreamAssembly()
    return [text for message in messages if (text := assembly.take(message))]


def test_text_comes_as_it_is_sent() -> None:
    assert texts([start(), delta(1, "a"), delta(2, " b"), end(3, "a b")]) == ["a", " b"]


def test_a_message_that_comes_again_counts_once() -> None:
    assert texts([start(), delta(1, "a"), delta(1, "a"), start(), delta(2, "b"), end(3, "ab"), end(3, "ab")]) == [
        "a",
        "b",
    ]


def test_messages_out_of_order_wait_for_those_before_them() -> None:
    assert texts([delta(2, "b"), start(), delta(3, "c"), delta(1, "a"), end(4, "abc")]) == ["abc"]


def test_what_was_lost_is_given_with_the_end() -> None:
    assert texts([start(), delta(1, "a"), delta(3, "c"), end(4, "abc")]) == ["a", "bc"]
    assert texts([end(7, "all of it")]) == ["all of it"]


def test_nothing_counts_after_the_terminal_message() -> None:
    assert texts([start(), end(1, "done"), delta(2, "more"), end(3, "done more")]) == ["done"]


def test_another_worker_ends_a_stream_without_knowing_its_text() -> None:
    assembly = StreamAssembly()
    assert [assembly.take(message) for message in (start(), delta(1, "so far"))] == ["", "so far"]
    assert assembly.take(Aborted(id="r", seq=None, t_ms=0, reason="worker_lost")) == ""
    assert assembly.text == "so far"
    assert isinstance(assembly.terminal, Aborted)


@given(st.lists(st.text(max_size=4), max_size=12), st.data())
def test_the_joined_text_is_always_that_of_the_end(pieces: list[str], data: Any) -> None:
    whole = "".join(pieces)
    stream: list[StreamMessage] = [start(), *(delta(seq, piece) for seq, piece in enumerate(pieces, 1))]
    lossy = [message for message in stream if data.draw(st.booleans())]
    twice = data.draw(st.permutations(lossy + [message for message in lossy if data.draw(st.booleans())]))
    assembly = StreamAssembly()
    given_away = ""
    for message in twice:
        given_away += assembly.take(message)
        assert whole.startswith(given_away)
    given_away += assembly.take(end(len(stream), whole))
    assert given_away == whole == assembly.text


def test_text_that_waits_is_bounded_and_the_end_has_what_was_not_kept() -> None:
    assembly = StreamAssembly()
    assembly.take(start())
    pieces = [f"{seq:04}" + "x" * 200_000 for seq in range(1, 301)]
    for seq, piece in enumerate(pieces[1:], 2):
        assert assembly.take(delta(seq, piece)) == ""
    assert sum(len(held.text) for held in assembly._held.values() if isinstance(held, Delta)) <= MAX_CHARACTERS
    assert assembly.take(end(301, "".join(pieces))) == "".join(pieces)
    assert assembly.is_consistent


def test_a_stream_without_an_end_does_not_grow_for_ever() -> None:
    assembly = StreamAssembly()
    assembly.take(start())
    given_away = "".join(assembly.take(delta(seq, f"{seq:04}" + "x" * 200_000)) for seq in range(1, 301))
    assert MAX_CHARACTERS - 200_004 < len(given_away) <= MAX_CHARACTERS
    assert assembly.text == given_away


def test_an_end_that_contradicts_what_was_said_before_is_told() -> None:
    assembly = StreamAssembly()
    assert [assembly.take(message) for message in (start(), delta(1, "I am "), end(2, "else"))] == ["", "I am ", ""]
    assert not assembly.is_consistent
