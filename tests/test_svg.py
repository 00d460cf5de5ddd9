"""Tests of drawings: widths of texts, and what XML allows."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFont

from edge_vl.svg import SvgDrawing, clean_text, fitted, text_width, wrapped


@pytest.mark.parametrize("sign", [chr(number) for number in range(32, 127)])
def test_no_sign_is_wider_than_estimated(sign: str) -> None:
    assert ImageFont.load_default(100).getlength(sign) <= text_width(sign, 100) + 1


@given(st.text(max_size=60), st.floats(0, 400), st.booleans())
def test_what_is_cut_to_a_width_fits_it(text: str, width: float, is_bold: bool) -> None:
    cut = fitted(text, width, 12, is_bold=is_bold)
    assert text_width(cut, 12, is_bold=is_bold) <= width
    assert cut == text or cut == "" or cut.endswith("…")


def test_as_much_is_kept_as_fits() -> None:
    assert fitted("short", 100, 12) == "short"
    cut = fitted("a long sentence about nothing", 100, 12)
    longer = cut.removesuffix("…") + "x…"
    assert text_width(cut, 12) <= 100 < text_width(longer + "x", 12)


def test_lines_break_between_words_and_the_last_one_is_cut() -> None:
    text = "one two three four five six seven eight nine ten"
    lines = wrapped(text, 120, 12, max_lines=2)
    assert len(lines) == 2
    assert text.startswith(lines[0] + " ")
    assert lines[1].endswith("…")
    assert all(text_width(line, 12) <= 120 for line in lines)
    assert wrapped("one two", 120, 12, max_lines=2) == ["one two"]
    assert wrapped("", 120, 12, max_lines=2) == []


@given(st.text())
def test_any_text_becomes_xml(text: str) -> None:
    drawing = SvgDrawing(100)
    drawing.text(0, 10, text)
    drawing.rectangle(0, 0, 1, 1, tip=text + "x")
    root = ElementTree.fromstring(drawing.finish(20, title=text, description=text))
    written = root.find("{http://www.w3.org/2000/svg}text")
    assert written is not None
    assert (written.text or "") == clean_text(text)


@pytest.mark.parametrize("sign", ["\x00", "\x1b", "\ud800", "\uffff", "\u202e", "\u2028", "\x85"])
def test_signs_that_break_a_picture_become_spaces(sign: str) -> None:
    assert clean_text(f"a{sign}b") == "a b"


def test_letters_of_any_script_stay() -> None:
    assert clean_text(" Tür \n 门 🚪 ") == "Tür 门 🚪"
