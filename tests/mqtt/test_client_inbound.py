"""Tests of whatever anybody may send to a client: nothing of it raises, grows without bound or touches others."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.errors import EdgeVLError
from edge_vl.mqtt import Client, Fleet, RemoteAnswer
from edge_vl.mqtt.exchange import Exchange
from edge_vl.mqtt.packet import Inbound

LEVELS = st.sampled_from(["n1", "n2", "r1", "robot", "x" * 65, "", "ä", "\x00", "+", "camera", "c"])
TOPICS = st.one_of(
    st.just("edge_vl/n1/response/robot/r1"),
    st.builds("edge_vl/{}/response/{}/{}".format, LEVELS, LEVELS, LEVELS),
    st.builds("edge_vl/{}/{}".format, LEVELS, st.sampled_from(["status", "info", "stats"])),
    st.builds("edge_vl/{}/camera/{}/{}".format, LEVELS, LEVELS, st.sampled_from(["state", "answer", "event", "x"])),
    st.text(max_size=30),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
VALID: dict[str, Any] = {
    "v": 1, "id": "r1", "t_ms": 1, "text": "two", "tokens": 1, "node": "n1", "boot_id": "b", "model": "m", "usage": {},
    "timings": {}, "degraded": [], "finish_reason": "stop", "reason": "cancelled", "frame": None, "status": "online",
    "error": {"type": "engine", "message": "m", "param": None}, "camera": "c", "at": "", "since": "", "group": "g",
}  # fmt: skip


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Draw a message of the contract of which some fields are missing, others or of another kind."""
    fields = dict(VALID, type=draw(st.sampled_from(["start", "delta", "end", "error", "aborted", "offline", "x"])))
    fields["seq"] = draw(st.one_of(st.none(), st.integers(-2, 6), st.integers(), st.text(max_size=2)))
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        fields[name] = draw(JSON)
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=1)):
        del fields[name]
    return json.dumps(fields).encode()


PAYLOADS = st.one_of(
    documents(),
    st.binary(max_size=40),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"", b"online", b"\xff\xfe", b"[" * 100_000, b'{"id":"r1"}', b"1" * 5000, b'{"a":1e999}']),
)
MESSAGES = st.builds(
    Inbound, topic=TOPICS, payload=PAYLOADS, received_s=st.just(1.0), is_retained=st.booleans(), qos=st.integers(0, 1)
)


def waiting() -> tuple[Client, Exchange, Exchange]:
    """Return a client that is asking two questions."""
    client = Client("127.0.0.1", node="n1", name="robot")
    asked, other = (Exchange(id, node="n1", timeout_s=60.0) for id in ("r1", "other"))
    client._exchanges |= {"r1": asked, "other": other}
    return client, asked, other


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=12))
def test_no_message_raises_or_touches_another_request(messages: list[Inbound]) -> None:
    client, asked, other = waiting()
    fleet = Fleet("127.0.0.1")
    for message in messages:
        client._hear(message)
        fleet._hear(message)
    assert not other.has_begun
    assert other.events.empty()
    events = [asked.events.get_nowait() for _ in range(asked.events.qsize())]
    texts = [event for event in events if isinstance(event, str)]
    outcomes = events[len(texts) :]
    assert "".join(texts) == asked.text
    assert len(outcomes) == int(asked.settled.is_set())
    for outcome in outcomes:
        assert isinstance(outcome, (RemoteAnswer, EdgeVLError))
        if isinstance(outcome, RemoteAnswer):
            assert outcome.is_consistent == (outcome.text == asked.text)
            json.dumps(outcome.to_dict())


def test_messages_without_end_fill_what_is_kept_to_its_bound_and_no_further() -> None:
    client, asked, _ = waiting()
    fleet = Fleet("127.0.0.1")
    rng = random.Random(0)
    noise = "y" * 100_000

    def send(what: str, fields: dict[str, Any]) -> None:
        message = Inbound(f"edge_vl/{what}", json.dumps(VALID | fields).encode(), received_s=1.0)
        client._hear(message)
        fleet._hear(message)

    sizes = []
    tracemalloc.start()
    try:
        for number in range(3000):
            stream = {"type": "delta", "seq": rng.randrange(2000), "text": noise[: rng.randrange(100_000)]}
            send("n1/response/robot/r1", stream)
            send("n1/response/robot/r1", {"type": "start", "seq": rng.randrange(2000), "model": noise})
            send(f"n{number}/info", {"boot_id": noise})
            send("n1/info", {"group": noise[: rng.randrange(70_000)]})
            send(f"n1/camera/c{number}/state", {"question": noise[: rng.randrange(70_000)]})
            if number % 1000 == 999:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] < 32 << 20
    assert sizes[-1] < sizes[0] + (4 << 20)
    assert not asked.settled.is_set()
    send("n1/response/robot/r1", {"type": "end", "seq": 9999, "text": asked.text + "the end"})
    assert asked.settled.is_set()
    assert asked.text.endswith("the end")
