"""Tests of text on its way to a terminal."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from edge_vl.cli.terminal_text import terminal_json, terminal_line, terminal_text

STEERING = st.sampled_from("\x1b\x07\r\x08\x7f\x9b\x9d\x00\u202e\u2066\u2028\u2029")
FOREIGN = st.lists(st.one_of(st.text(max_size=5), STEERING, st.sampled_from("\n\t"))).map("".join)


def steers(character: str) -> bool:
    overrides = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    is_control = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    return is_control or unicodedata.bidirectional(character) in overrides


def test_what_steers_a_terminal_is_shown_as_a_mark() -> None:
    assert terminal_text("\x1b]0;title\x07\x1b[2Jred\x9b31m\r\u202etxt.exe") == "�]0;title��[2Jred�31m��txt.exe"


def test_other_text_stays_as_it_is() -> None:
    text = "Ein Äpfel-\tbaum,\n猫, שלום, \N{FAMILY}\N{ZERO WIDTH JOINER}\N{GIRL} e\N{COMBINING ACUTE ACCENT}"
    assert terminal_text(text) == text


@given(FOREIGN)
def test_no_character_that_steers_gets_through_and_no_other_is_changed(text: str) -> None:
    safe = terminal_text(text)
    assert len(safe) == len(text)
    for before, after in zip(text, safe, strict=True):
        assert after == (before if before in "\n\t" or not steers(before) else "�")
    assert not any(steers(character) for character in terminal_line(text))


@given(FOREIGN, FOREIGN)
def test_a_text_in_pieces_is_the_same_as_at_once(first: str, second: str) -> None:
    assert terminal_text(first) + terminal_text(second) == terminal_text(first + second)


@given(st.dictionaries(FOREIGN, FOREIGN))
def test_json_says_the_same_and_does_not_steer(value: dict[str, str]) -> None:
    line = terminal_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(line) == value
    assert not any(steers(character) for character in line)
