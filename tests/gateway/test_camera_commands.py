"""Tests of what may be told to a camera."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl import RequestError
from edge_vl.gateway.camera_commands import read_enabled, read_every_s, read_question, shown_every_s


def test_on_and_off_are_read_and_nothing_else() -> None:
    assert read_enabled(b"ON") is True
    assert read_enabled(b"OFF") is False
    for payload in (b"", b"on", b"1", b"true", b"ON\n", b"\xff\xfe"):
        with pytest.raises(RequestError, match="ON or OFF"):
            read_enabled(payload)


def test_a_question_is_one_line_of_1_to_500_characters() -> None:
    assert read_question(" Wer ist an der Tür? ".encode()) == "Wer ist an der Tür?"
    assert read_question(b"x" * 500) == "x" * 500
    assert len(read_question("🦉".encode() * 499)) == 499
    assert read_question("Is the 👨\u200d👩\u200d👧 there?".encode()) == "Is the 👨\u200d👩\u200d👧 there?"
    for payload in (
        b"",
        b"  ",
        b"x" * 501,
        b"x" * 10_000_000,
        b"a\nb",
        b"a\x00b",
        b"\xff\xd8\xff",
        "a\u2028b".encode(),
        "\u200b".encode(),
        "\u200d\u200c".encode(),
        "\ufeffWho?".encode(),
        "Who is \u202eereht\u202c?".encode(),
        "Who\u2066?".encode(),
        "\U000e0041Who?".encode(),
    ):
        with pytest.raises(RequestError) as caught:
            read_question(payload)
        assert caught.value.field == "question"


def test_the_pause_is_a_number_of_seconds_and_0_is_none() -> None:
    assert read_every_s(b"2.5") == 2.5
    assert read_every_s(b"86400") == 86_400
    assert read_every_s(b"0") is read_every_s(b"0.0") is None
    for payload in (b"", b"-1", b"nan", b"inf", b"1e3", b"1_0", b"0x10", b"86400.1", b"9" * 5000, b"\xff"):
        with pytest.raises(RequestError, match="seconds"):
            read_every_s(payload)


@given(st.binary(max_size=80))
def test_any_payload_is_read_or_refused(payload: bytes) -> None:
    for read in (read_enabled, read_question, read_every_s):
        with contextlib.suppress(RequestError):
            read(payload)


@given(st.integers(1, 864_000))
def test_a_pause_that_is_shown_is_read_back(tenths: int) -> None:
    assert read_every_s(shown_every_s(tenths / 10).encode()) == tenths / 10
    assert shown_every_s(None) == "0"
