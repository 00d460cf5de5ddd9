"""Tests of reading JSON that anybody may have sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.mqtt.json_reading import MAX_DEPTH, MAX_VALUES, PayloadError, read_object, top_level_texts

LARGE = 1 << 20

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('abc\\"{[é', max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.text('abcdé{}\\"', max_size=5), VALUES, max_size=5), st.booleans())
def test_what_the_standard_library_writes_is_read_as_it_was(content: dict[str, object], is_ascii: bool) -> None:
    payload = json.dumps(content, ensure_ascii=is_ascii).encode()
    assert read_object(payload, max_bytes=LARGE) == content


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"null", "is null"),
        (b"[]", "is an array"),
        (b'"str"', "is a text"),
        (b"true", "is true"),
        (b"1.5", "is 1.5"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "JPEG picture"),
        (b"\x89PNG\r\n\x1a\n", "PNG picture"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": Infinity}', "Infinity is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key c is there twice"),
        (b'{"a": "\\u0000"}', "a holds the character NUL"),
        (b'{"a": [1, {"b": "x\\ud800y"}]}', r"a\[1\].b holds half of a character"),
        (b'{"\\udfff": 1}', "holds half of a character"),
        (b'{"a": "line\nfeed"}', "not valid JSON"),
    ],
)
def test_what_is_no_sound_object_is_refused_in_words(payload: bytes, words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        read_object(payload, max_bytes=LARGE)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"a":['])
def test_nesting_is_bounded_before_it_is_followed(opening: bytes) -> None:
    with pytest.raises(PayloadError, match="nested deeper"):
        read_object(b'{"x":' + opening * 1000, max_bytes=LARGE)


def test_nesting_up_to_the_bound_is_read_and_brackets_in_texts_do_not_count() -> None:
    deepest = b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH
    assert read_object(deepest, max_bytes=LARGE)
    text = "[{" * 1000 + '\\"' + "[" * 1000
    assert read_object(json.dumps({"a": text}).encode(), max_bytes=LARGE) == {"a": text}


@pytest.mark.parametrize("values", [b"1," * MAX_VALUES + b"1", b"[]," * MAX_VALUES + b"[]", b"[]" * 60_000])
def test_more_values_than_make_sense_are_refused_before_objects_are_made_of_them(values: bytes) -> None:
    payload = b'{"id":"q","x":[' + values + b"]}"
    with pytest.raises(PayloadError, match=f"more than {MAX_VALUES} values"):
        read_object(payload, max_bytes=LARGE)
    assert top_level_texts(payload, KNOWN, max_bytes=LARGE)[0] == {"id": "q"}


def test_values_up_to_the_bound_are_read_and_commas_in_texts_do_not_count() -> None:
    content = {"x": [1] * (MAX_VALUES - 5), "text": "," * 20_000}
    assert read_object(json.dumps(content).encode(), max_bytes=LARGE) == content


def test_a_payload_of_five_megabytes_is_refused_by_its_size() -> None:
    payload = b'{"a":"' + b"x" * 5_000_000 + b'"}'
    with pytest.raises(PayloadError, match="5000008 bytes and may have 1000"):
        read_object(payload, max_bytes=1000)


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert read_object(b'{"a": "\\ud83d\\ude00"}', max_bytes=LARGE) == {"a": "😀"}


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text('{}[]",:\\u0d8ae1NI-. \n', max_size=60).map(str.encode))
def test_any_bytes_are_an_object_or_refused(payload: bytes) -> None:
    words = ""
    try:
        content = read_object(payload, max_bytes=1000)
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except PayloadError as error:
        words = str(error)
    assert words.isprintable()


KNOWN = {"id": 64, "client": 64}


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["id", "client", "x", "y{", 'z"']), VALUES, max_size=5),
    st.booleans(),
)
def test_texts_of_the_outermost_object_are_found_by_name(content: dict[str, object], is_ascii: bool) -> None:
    payload = json.dumps(content, ensure_ascii=is_ascii).encode()
    found, is_whole = top_level_texts(payload, KNOWN, max_bytes=LARGE)
    assert is_whole
    assert set(found) == KNOWN.keys() & content.keys()
    for name, text in found.items():
        expected = content[name]
        assert text == (expected if isinstance(expected, str) and "\ufffd" not in expected else None)


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b'{"id": "a", "x": NaN}', {"id": "a"}),
        (b'{"id": "a", "id": "b"}', {"id": None}),
        (b'{"id": "a", "x": [[[[', {"id": "a"}),
        (b'{"id": "a", "x": "never ends', {"id": "a"}),
        (b'{"id": 5, "client": "c"}', {"id": None, "client": "c"}),
        (b'{"id": {"id": "inner"}, "client": ["c"]}', {"id": None, "client": None}),
        (b'{"x": {"id": "inner"}}', {}),
        (b'{"x": "id", "y": "client"}', {}),
        (b'{"id": "' + b"a" * 65 + b'"}', {"id": None}),
        (b'{"id": "\\ud800"}', {"id": None}),
        (b'{"\\u0069d": "a"}', {"id": "a"}),
        (b'{"x": "\xff", "id": "a"}', {"id": "a"}),
        (b'[{"id": "a"}]', {}),
        (b"\xff\xd8\xff", {}),
    ],
)
def test_texts_are_found_in_broken_json_too(payload: bytes, found: dict[str, str | None]) -> None:
    assert top_level_texts(payload, KNOWN, max_bytes=LARGE)[0] == found


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text('{}[]",:\\id\n', max_size=60).map(str.encode))
def test_looking_for_texts_never_raises(payload: bytes) -> None:
    top_level_texts(payload, KNOWN, max_bytes=40)
