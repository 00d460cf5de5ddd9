"""Tests of reading yes/no answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.yes_or_no import yes_or_no


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "Yes.",
        "YES!",
        " Yes, there is a parcel. No dog, though.",
        "**Yes**",
        "_yes_",
        '"Yes"',
        "Answer: yes",
        "The answer is yes.",
        "Yes\nbecause it is red",
        "Yes - one person",
        "Well, yes.",
    ],
)
def test_yes_is_yes(text: str) -> None:
    assert yes_or_no(text) is True


@pytest.mark.parametrize("text", ["no", "No.", "No, nobody is there.", "- no", "The answer is: **No**", "No one."])
def test_no_is_no(text: str) -> None:
    assert yes_or_no(text) is False


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "maybe",
        "Not sure.",
        "Nothing is there.",
        "Yesterday",
        "none",
        "Yes and no.",
        "yes/no",
        "Yes or no",
        "No idea.",
        "No way to tell.",
        "There is no dog.",
        "I cannot say yes.",
        "nö",
    ],
)
def test_what_is_unclear_is_neither(text: str) -> None:
    assert yes_or_no(text) is None


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert yes_or_no(text) in (True, False, None)
    assert yes_or_no(f"yes. {text}") in (True, None)


def test_a_long_row_of_marks_is_read_at_once() -> None:
    assert yes_or_no("*" * 100_000 + "yes") is None
