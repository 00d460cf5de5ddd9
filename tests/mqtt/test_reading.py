"""Tests of reading the messages of the contract."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.messages import Cancel, Claim, Delta, ErrorFacts, ErrorMessage, ImageRef, Request
from edge_vl.mqtt.node_messages import LinkStats
from edge_vl.mqtt.reading import (
    BadPayload,
    decode_base64,
    read_cancel,
    read_claim,
    read_message,
    read_request,
    read_stream,
)

GOOD: dict[str, Any] = {"id": "q1", "client": "robot", "question": "What is it?", "reply_to": "edge_vl/robot/answers"}


def refused(change: dict[str, Any], **limits: int) -> BadPayload:
    with pytest.raises(BadPayload) as caught:
        read_request(json.dumps({**GOOD, **change}).encode(), **limits)
    return caught.value


NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=40)
IMAGES = st.one_of(
    st.builds(ImageRef, camera=NAMES),
    st.builds(ImageRef, file=TEXTS),
    st.builds(ImageRef, base64=st.binary(min_size=1, max_size=40).map(lambda raw: base64.b64encode(raw).decode())),
    st.builds(ImageRef, topic=TEXTS),
)
REQUESTS = st.builds(
    Request,
    id=NAMES,
    question=TEXTS.filter(str.strip),
    client=NAMES,
    images=st.lists(IMAGES, max_size=3),
    conversation=st.none() | NAMES,
    stream=st.booleans(),
    max_tokens=st.integers(1, 1024),
    temperature=st.floats(0, 100),
    seed=st.integers(0, 2**63 - 1),
    deadline_ms=st.none() | st.integers(1, 86_400_000),
    max_frame_age_ms=st.none() | st.integers(1, 86_400_000),
    reply_to=st.none() | TEXTS,
)


@settings(deadline=None)
@given(REQUESTS)
def test_a_request_that_was_written_is_read_as_it_was(request: Request) -> None:
    assert read_request(encode(request)) == request


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"id": "a b"}, "id", "id should be 1 to 64 letters, digits, _ or -, not a text of 3 characters"),
        ({"id": "a\n"}, "id", "id should be 1 to 64 letters"),
        ({"client": "x/y"}, "client", "client should be"),
        ({"conversation": "c\n"}, "conversation", "conversation should be"),
        ({"v": 2}, "v", "version of the contract"),
        ({"question": ""}, "question", "not an empty text"),
        ({"question": " \n"}, "question", "holds no word"),
        ({"question": "x" * 16_385}, "question", "not a text of 16385 characters"),
        ({"question": "a\x00b"}, "question", "question holds the character NUL"),
        ({"question": "\ud800"}, "question", "half of a character"),
        ({"imagez": []}, "imagez", "unknown field imagez; did you mean images?"),
        ({"images": {}}, "images", "images should be an array of at most 16 objects, not an object"),
        ({"images": [{"camera": "a"}] * 17}, "images", "not an array"),
        ({"images": ["door"]}, "images[0]", "an object with one of camera, file, base64 and topic"),
        ({"images": [{"camera": "a"}, {"camera": "b c"}]}, "images[1].camera", "images[1].camera should be"),
        ({"images": [{"camera": "a\n"}]}, "images[0].camera", "the name of a camera"),
        ({"images": [{"kamera": "a"}]}, "images[0].kamera", "did you mean camera?"),
        ({"images": [{"camera": "a", "file": "b"}]}, "images[0]", "not 2 of them"),
        ({"images": [{}]}, "images[0]", "not 0 of them"),
        ({"images": [{"base64": "abc"}]}, "images[0].base64", "not valid base64"),
        ({"images": [{"base64": "_-bc"}]}, "images[0].base64", "alphabet for URLs"),
        ({"images": [{"base64": "AA AA"}]}, "images[0].base64", "white space"),
        ({"images": [{"base64": "data:image/png;base64,AAAA"}]}, "images[0].base64", "behind the comma"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to 32768, not 0"),
        ({"max_tokens": 1025}, "max_tokens", "at most 1024 on this gateway"),
        ({"max_tokens": True}, "max_tokens", "not true"),
        ({"temperature": "0"}, "temperature", "a number from 0 to 100, not a text of 1 characters"),
        ({"temperature": -1}, "temperature", "not -1"),
        ({"seed": 2**63}, "seed", "not a huge number"),
        ({"deadline_ms": 0.5}, "deadline_ms", "a whole number of milliseconds from 1 to 86400000, not 0.5"),
        ({"deadline_ms": -1}, "deadline_ms", "not -1"),
        ({"max_frame_age_ms": 86_400_001}, "max_frame_age_ms", "not 86400001"),
        ({"stream": 1}, "stream", "true or false, not 1"),
        ({"schema": {"type": "object"}}, "schema", "structured answers are not there yet"),
        ({"reply_to": ""}, "reply_to", "a topic of 1 to 1024 characters"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(change: dict[str, Any], param: str, words: str) -> None:
    error = refused(change)
    assert words in error.message
    assert error.param == param
    assert error.id == (None if "id" in change else "q1")
    assert error.client == (None if "client" in change else "robot")
    assert error.reply_to == (None if "reply_to" in change else GOOD["reply_to"])


@pytest.mark.parametrize("name", ["id", "question"])
def test_what_is_missing_is_named(name: str) -> None:
    content = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(BadPayload, match=f"{name} is missing; it should be") as caught:
        read_request(json.dumps(content).encode())
    assert caught.value.param == name


def test_who_left_the_client_out_is_anonymous_and_who_wrote_nonsense_is_nobody() -> None:
    def client(payload: bytes) -> str | None:
        with pytest.raises(BadPayload) as caught:
            read_request(payload)
        return caught.value.client

    assert client(b'{"id": "a"}') == "anonymous"
    assert client(b'{"id": "a", "client": "x y"}') is None
    assert client(b'{"id": "a", "client": 5}') is None
    assert client(b'{"id": "a", "client": "b", "client": "c"}') is None
    assert client(b'{"id": "a", "question": "cut o') is None
    assert client(b"null") is None


def test_the_sender_of_a_payload_far_too_large_is_still_known() -> None:
    payload = b'{"id":"big","client":"c","images":[{"base64":"' + b"A" * 5_000_000 + b'"}]}'
    with pytest.raises(BadPayload, match="bytes and may have 131072") as caught:
        read_request(payload)
    assert (caught.value.id, caught.value.client) == ("big", "c")


def test_words_hold_nothing_that_was_sent_but_plain_keys() -> None:
    secret = "hunter2"
    for change in (
        {"id": secret + " "},
        {"client": [secret]},
        {"question": [secret]},
        {"images": [{"base64": secret}]},
    ):
        assert secret not in str(refused(change))
    error = refused({"bad\nkey": 1})
    assert "'bad\\nkey'" in error.message
    assert error.param is None


def test_limits_of_the_gateway_are_obeyed() -> None:
    picture = base64.b64encode(bytes(100)).decode()
    assert "at most 64 on this gateway" in refused({"max_tokens": 65}, max_tokens=64).message
    assert read_request(json.dumps(GOOD).encode(), max_tokens=64).max_tokens == 64
    assert "larger than 90 bytes" in refused({"images": [{"base64": picture}]}, max_image_bytes=90).message
    assert "larger than 99 bytes" in refused({"images": [{"base64": picture}]}, max_image_bytes=99).message
    larger = base64.b64encode(bytes(101)).decode()
    assert "has 101 bytes" in refused({"images": [{"base64": larger}]}, max_image_bytes=100).message
    request = read_request(json.dumps({**GOOD, "images": [{"base64": picture}]}).encode(), max_image_bytes=100)
    assert request.images == [ImageRef(base64=picture)]


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_base64_is_decoded_to_what_it_was(picture: bytes) -> None:
    assert decode_base64(base64.b64encode(picture).decode(), max_bytes=200, param="x") == picture


@pytest.mark.parametrize("text", ["", "=", "A", "AAAA=", "AA==AA==", "ÄAAA", "AAAA\n"])
def test_base64_that_is_not_strict_is_refused(text: str) -> None:
    with pytest.raises(BadPayload):
        decode_base64(text, max_bytes=100, param="x")


PIECES = st.sampled_from(
    [
        *('{"id":"a",', '"client":"c"', '"question":"q"', ",", "}", "{", "[", "]", '"images":', '[{"camera":"x"}]'),
        *(
            "NaN",
            "1e999",
            '"\\ud800"',
            '"reply_to":"t"',
            ":",
            '"v":1',
            "null",
            '"schema":{}',
            "\\",
            '"',
            "` - at `$.id`",
        ),
    ]
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join).map(str.encode) | st.binary(max_size=40))
def test_any_payload_is_read_or_refused_with_a_reply_that_can_be_written(payload: bytes) -> None:
    refusals: list[BadPayload] = []
    for read in (read_request, read_cancel, read_claim, read_stream):
        try:
            read(payload)
        except BadPayload as error:
            refusals.append(error)
    for refusal in refusals:
        assert refusal.message.isprintable()
        facts = ErrorFacts(type="invalid_request", message=refusal.message, param=refusal.param)
        reply = ErrorMessage(id=refusal.id or "unknown", seq=0, t_ms=0, error=facts)
        assert read_stream(encode(reply)) == reply


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3))
def test_keys_that_look_like_the_words_of_the_library_are_only_unknown(more: dict[str, str]) -> None:
    odd = {"x` - at `$.question": 1, "`": 2, "$.id": 3, **more}
    with pytest.raises(BadPayload):
        read_request(json.dumps({**GOOD, **odd}).encode())


def test_a_cancel_is_read_and_unknown_fields_of_it_are_errors() -> None:
    assert read_cancel(b'{"v":1,"id":"q1"}') == Cancel(id="q1")
    assert read_cancel(b'{"id":"q1","client":"robot"}') == Cancel(id="q1", client="robot")
    with pytest.raises(BadPayload, match="client should be"):
        read_cancel(b'{"id":"q1","client":"a/b"}')
    with pytest.raises(BadPayload, match="unknown field idd; did you mean id"):
        read_cancel(b'{"idd":"q1"}')
    with pytest.raises(BadPayload, match="bytes and may have"):
        read_cancel(b'{"id":"q1"}' + b" " * 10_000)


def test_a_claim_of_a_later_version_is_read_without_what_is_new() -> None:
    claim = Claim(id="q1", node="n", boot_id="b", reply_to="t", deadline_ms=5)
    content = {**msgspec.to_builtins(claim), "priority": 7}
    assert read_claim(json.dumps(content).encode()) == claim
    with pytest.raises(BadPayload, match="node should be"):
        read_claim(json.dumps({**content, "node": "a/b"}).encode())
    with pytest.raises(BadPayload, match="boot_id should be a text of 1 to 64 characters"):
        read_claim(json.dumps({**content, "boot_id": "b" * 65}).encode())


def test_a_clients_reading_of_a_stream_ignores_what_is_new() -> None:
    payload = b'{"v":1,"id":"a","seq":3,"t_ms":9,"type":"delta","text":"x","tokens":1,"more":[1]}'
    assert read_stream(payload) == Delta(id="a", seq=3, t_ms=9, text="x")
    with pytest.raises(BadPayload, match="type"):
        read_stream(b'{"v":1,"id":"a","seq":3,"t_ms":9,"type":"later"}')


def test_what_json_cannot_hold_is_written_all_the_same() -> None:
    facts = ErrorFacts(type="image", message="no file 'caf\udce9.jpg'")
    written = encode(ErrorMessage(id="a", seq=0, t_ms=0, error=facts))
    assert json.loads(written)["error"]["message"] == "no file 'caf?.jpg'"
    assert json.loads(encode(LinkStats(connections=1, rtt_ms=float("nan"))))["rtt_ms"] is None
    assert read_message(encode(LinkStats(connections=1, rtt_ms=float("inf"))), LinkStats).rtt_ms is None
