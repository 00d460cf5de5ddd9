"""Tests of text out of token bytes (case C7)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.text_stream import TextPiece, TextStream


def run(stream: TextStream, *pieces: bytes) -> list[TextPiece]:
    out = [piece for data in pieces for piece in stream.push(data)]
    return out + stream.finish()


def text_of(pieces: list[TextPiece], kind: str = "text") -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((b"\xe6\xad", b"\xaa"), "歪"),
        (tuple(bytes((byte,)) for byte in "🙂".encode()), "🙂"),
        (tuple(bytes((byte,)) for byte in "👩‍👩‍👧‍👦 ok".encode()), "👩‍👩‍👧‍👦 ok"),
    ],
)
def test_a_split_character_is_never_shown_broken(pieces: tuple[bytes, ...], text: str) -> None:
    out = run(TextStream(), *pieces)
    assert "�" not in text_of(out)
    assert text_of(out) == text


@given(st.text(), st.lists(st.integers(0, 50), max_size=20))
def test_the_pieces_joined_are_the_whole_text_however_it_was_cut(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "ignore")
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [data[begin:end] for begin, end in itertools.pairwise(borders)]
    whole = data.decode()
    if "<think>" not in whole:
        assert text_of(run(TextStream(), *parts)) == whole.lstrip()


def test_a_character_cut_off_by_the_end_is_flushed_as_a_replacement() -> None:
    out = run(TextStream(), b"a", b"\xe6\xad")
    assert text_of(out) == "a�"


def test_a_stop_string_across_tokens_ends_the_text_before_it() -> None:
    stream = TextStream(["STOP"])
    out = run(stream, b"one ST", b"ill two S", b"TO", b"P three")
    assert text_of(out) == "one STill two "
    assert stream.is_stopped


def test_text_that_only_looks_like_a_stop_string_is_given_out_at_the_end() -> None:
    assert text_of(run(TextStream(["STOP"]), b"a STO")) == "a STO"


def test_text_is_held_back_no_longer_than_needed() -> None:
    stream = TextStream(["STOP"])
    assert [piece.text for piece in stream.push(b"one ST")] == ["one "]
    assert [piece.text for piece in stream.push(b"art")] == ["STart"]


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.integers(1, 5),
)
def test_stopping_does_not_depend_on_how_the_text_was_cut(text: str, stop: list[str], size: int) -> None:
    whole, cut = TextStream(stop), TextStream(stop)
    parts = [text[begin : begin + size].encode() for begin in range(0, len(text), size)]
    assert text_of(run(whole, text.encode())) == text_of(run(cut, *parts))
    assert whole.is_stopped == cut.is_stopped == any(needle in text for needle in stop)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_stop_string_that_is_complete_first_counts(text: str, stop: list[str]) -> None:
    ends = [text.find(needle) + len(needle) for needle in stop if needle in text]
    out = text_of(run(TextStream(stop), text.encode()))
    if ends:
        first = min(ends)
        longest = max(len(needle) for needle in stop if text[:first].endswith(needle))
        assert out == text[: first - longest]
    else:
        assert out == text


def test_reasoning_comes_apart_from_the_answer() -> None:
    out = run(TextStream(["."]), b"<thi", b"nk>\nIt is. Red", b"</th", b"ink>\n\n", b"Red. More")
    assert text_of(out, "reasoning") == "It is. Red"
    assert text_of(out) == "Red"


def test_reasoning_that_the_prompt_opened_is_reasoning_from_the_first_byte() -> None:
    out = run(TextStream(opens_reasoning=True), b"hm", b"</think>yes")
    assert (text_of(out, "reasoning"), text_of(out)) == ("hm", "yes")


def test_reasoning_that_never_ends_is_flushed_as_reasoning() -> None:
    assert run(TextStream(), b"<think>on and on</thi")[-1].kind == "reasoning"


def test_leading_white_space_is_left_out() -> None:
    assert text_of(run(TextStream(), b" ", b"\n a", b" b ")) == "a b "


def test_nothing_comes_after_a_stop() -> None:
    stream = TextStream(["x"])
    assert text_of(stream.push(b"ax")) == "a"
    assert stream.push(b"more") == []
    assert stream.finish() == []
