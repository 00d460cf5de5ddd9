"""Topics that a gateway listens to, and anything at all for each: right, nearly right, and garbage."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from tests.known_pictures import known_question

__all__ = ["EVIL_REPLIES", "GOOD_REPLIES", "GROUP", "MESSAGES", "NEW_ID"]

GROUP = "fuzzed"

_PNG = known_question(3).png

NEW_ID = "id-of-the-fuzz"
"""Stands for an id that no other payload has, until it is sent."""

_RAW = (
    b"",
    b"\xff\xd8\xff\xe0\x00\x10JFIF",
    b"\xff\xfe",
    b"null",
    b"[]",
    b'"text"',
    b"0",
    b"true",
    b'{"a": NaN}',
    b'{"v": 1, "id": "x", "id": "y", "question": "?"}',
    b"[" * 1000 + b"]" * 1000,
    b'{"a":' * 1000 + b"1" + b"}" * 1000,
    b'{"v":1,"id":"' + b"x" * 200_000 + b'"}',
    b'{"v": 1, "id": "cut"',
    b"\x00" * 64,
    '{"v": 1, "id": "ä"}'.encode("utf-16"),
    b'{"v": 1e400, "id": "x"}',
    b'{"v": ' + b"9" * 5000 + b"}",
    b'{"v": 1, "id": "\\ud800"}',
    _PNG,
)

EVIL_REPLIES = (
    "edge_vl/gw/request",
    "edge_vl/gw/cancel",
    "edge_vl/gw/status",
    "edge_vl/gw/action/unlock",
    "edge_vl/gw/camera/door/enabled/set",
    "edge_vl/gw/camera/door/state",
    f"edge_vl/group/{GROUP}/request",
    f"edge_vl/group/{GROUP}/claims",
    "edge_vl/+/response/a/b",
    "edge_vl/#",
    "edge_vl",
    "$SYS/broker",
    "$share/g/edge_vl/x",
    "homeassistant/switch/x/config",
    "zigbee2mqtt/lamp/set",
    "edge_vl//x",
    "edge_vl/a\u0000b",
    "",
)
"""Where no answer may go."""

GOOD_REPLIES = ("edge_vl/replies/a", "edge_vl/../x", "edge_vl/gw/response/other/one")
"""Where answers may go; to a broker, two dots are a name like any other."""

_words = st.one_of(
    st.sampled_from(["ON", "OFF", "on", "true", "0", "1", "-1", "5", "0.25", "1e9", "nan", "inf", "PRESS", " ", "?"]),
    st.text(max_size=300),
)
_odd: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=40), st.just([]), st.just({})
)
_json: st.SearchStrategy[Any] = st.recursive(
    _odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_ids = st.one_of(st.just(NEW_ID), st.just(NEW_ID), st.just(NEW_ID), st.sampled_from(["again", "twice"]), _odd)
_clients = st.one_of(st.just("fuzz"), st.just("fuzz"), st.sampled_from(["a/b", "+", "#", "", "x" * 65, "gw\n"]), _odd)
_images = st.lists(
    st.one_of(
        st.just({"base64": base64.b64encode(_PNG).decode()}),
        st.just({"base64": base64.b64encode(_PNG[:200]).decode()}),
        st.builds(lambda data: {"base64": base64.b64encode(data).decode()}, st.binary(max_size=64)),
        st.sampled_from(
            [
                {"camera": "door"},
                {"camera": "none"},
                {"camera": "../door"},
                {"file": "/etc/passwd"},
                {"file": "../../etc/passwd"},
                {"topic": "edge_vl/gw/image/fuzz/shelf"},
                {"topic": "edge_vl/gw/image/#"},
                {"topic": "x"},
                {"base64": "!"},
                {"camera": "door", "file": "x"},
                {},
            ]
        ),
        _odd,
    ),
    max_size=3,
)


def _maybe_odd(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, usual, usual, usual, _odd)


_requests: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "id": _ids,
        "question": _maybe_odd(st.sampled_from(["What is at the top left?", "Describe the picture.", "?" * 16_384])),
    },
    optional={
        "v": _maybe_odd(st.just(1)),
        "client": _clients,
        "images": _maybe_odd(_images),
        "conversation": _maybe_odd(st.sampled_from(["one", "two", "three", "four", "five", "six"])),
        "stream": _maybe_odd(st.booleans()),
        "max_tokens": _maybe_odd(st.integers(1, 16)),
        "temperature": _maybe_odd(st.sampled_from([0, 0.5, 100])),
        "seed": _maybe_odd(st.integers(0, 2**63 - 1)),
        "schema": _maybe_odd(st.just({"type": "object"})),
        "deadline_ms": _maybe_odd(st.sampled_from([1, 50, 8000, 86_400_000])),
        "max_frame_age_ms": _maybe_odd(st.sampled_from([1, 1000])),
        "reply_to": st.one_of(st.sampled_from(EVIL_REPLIES), st.sampled_from(GOOD_REPLIES), _odd),
        "unknown": _odd,
    },
)
_cancels = st.fixed_dictionaries({"id": _ids}, optional={"v": _maybe_odd(st.just(1)), "more": _odd})
_claims = st.fixed_dictionaries(
    {
        "id": _ids,
        "node": _maybe_odd(st.sampled_from(["gw", "other", "third"])),
        "boot_id": _maybe_odd(st.sampled_from(["a", "b"])),
        "reply_to": st.one_of(st.sampled_from(EVIL_REPLIES), st.sampled_from(GOOD_REPLIES), _odd),
    },
    optional={
        "v": _maybe_odd(st.just(1)),
        "deadline_ms": _maybe_odd(st.sampled_from([1, 1000])),
        "released": _maybe_odd(st.booleans()),
        "more": _odd,
    },
)
_infos = st.fixed_dictionaries(
    {"boot_id": _maybe_odd(st.sampled_from(["a", "b", "c"]))}, optional={"v": _maybe_odd(st.just(1)), "node": _odd}
)


def _encoded(content: Any) -> bytes:
    return json.dumps(content).encode()  # NaN and lone surrogates are among it, as Python writes them


@st.composite
def _damaged(draw: st.DrawFn, payloads: st.SearchStrategy[bytes]) -> bytes:
    """Cut, double or change a part of a payload."""
    data = draw(payloads)
    if not data:
        return data
    place = draw(st.integers(0, len(data) - 1))
    kind = draw(st.sampled_from(["cut", "change", "insert", "double"]))
    if kind == "cut":
        return data[:place]
    if kind == "double":
        return data + data[place:]
    new = draw(st.binary(min_size=1, max_size=3))
    return data[:place] + new + data[place + (kind == "change") :]


def _payloads(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    encoded = usual.map(_encoded)
    garbage = st.one_of(st.sampled_from(_RAW), st.binary(max_size=300), _json.map(_encoded))
    return st.one_of(encoded, encoded, encoded, _damaged(encoded), garbage)


def _plain() -> st.SearchStrategy[bytes]:
    return st.one_of(
        _words.map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=300), st.sampled_from(_RAW)
    )


def _on(topics: Iterable[str], payloads: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[str, bytes]]:
    return st.tuples(st.sampled_from(list(topics)), payloads)


MESSAGES: st.SearchStrategy[tuple[str, bytes]] = st.one_of(
    _on(["edge_vl/gw/request", "edge_vl/gw/request", f"edge_vl/group/{GROUP}/request"], _payloads(_requests)),
    _on(["edge_vl/gw/request", f"edge_vl/group/{GROUP}/request"], _payloads(_requests)),
    _on(["edge_vl/gw/cancel", f"edge_vl/group/{GROUP}/cancel"], _payloads(_cancels)),
    _on([f"edge_vl/group/{GROUP}/claims"], _payloads(_claims)),
    _on(
        ["edge_vl/gw/image/fuzz/shelf", "edge_vl/gw/image/a/b", "edge_vl/gw/image/a b/c", "edge_vl/gw/image//"],
        st.one_of(st.just(_PNG), st.binary(max_size=2000), st.sampled_from(_RAW)),
    ),
    _on(
        [f"edge_vl/gw/camera/{camera}/{what}/set"
         for camera in ("door", "none") for what in ("enabled", "question", "every_s", "ask", "unheard")],
        _plain(),
    ),
    _on(["homeassistant/status"], st.one_of(st.sampled_from([b"online", b"offline"]), _plain())),
    _on(
        ["edge_vl/other/status", "edge_vl/third/status", "edge_vl/other/info"],
        st.one_of(st.sampled_from([b"online", b"offline", b"stopped"]), _payloads(_infos)),
    ),
)  # fmt: skip
"""A topic and a payload for it."""
