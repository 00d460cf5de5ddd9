"""Anything at all on every topic that a gateway listens to, and what has to hold all the same.

`python -m tests.gateway.topic_fuzz [NUM_PAYLOADS [SEED]]` runs it against a gateway and a mosquitto of its own;
20,000 payloads unless told otherwise.
"""

from __future__ import annotations

import base64
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from benchmarks.process_memory import anonymous_kib, num_descriptors, num_threads
from tests.gateway_process import GatewayProcess
from tests.known_pictures import known_question
from tests.mosquitto import Mosquitto, running_mosquitto
from tests.mqtt_documents import schema_faults, stream_schema_faults, topic_schema
from tests.mqtt_observer import TERMINAL, Heard, Observer, read_object, stream_faults, text_of

__all__ = ["PER_EXAMPLE", "TopicFuzz", "fuzz", "gateway_under_fuzz"]

PER_EXAMPLE = 10
"""Payloads between two questions whose answer is known."""

NUM_PAYLOADS = 20_000

GROUP = "fuzzed"

MAX_GROWTH = 0.05
"""Of anonymous memory from the first fifth to the last, once it has warmed up."""

_CAMERAS = """
[[camera]]
name = "door"
source = "synthetic:160x120@5"
question = "What is at the top left?"
every_s = 1.0
max_tokens = 8

[limits]
max_images_bytes = 4_000_000
max_image_bytes = 1_000_000
max_conversations = 4
default_deadline_s = 20.0

[home_assistant]
enabled = true
"""

_PNG = known_question(3).png
_MAX_REQUEST_BYTES = 131_072


_NEW_ID = "id-of-the-fuzz"
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
_ids = st.one_of(st.just(_NEW_ID), st.just(_NEW_ID), st.just(_NEW_ID), st.sampled_from(["again", "twice"]), _odd)
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


@dataclass
class TopicFuzz:
    """Sends, and judges what comes back.

    Attributes:
        gateway: that is sent to.
        observer: hears everything but what it sends itself.
        readings: anonymous memory in KiB, descriptors and threads after each round.
    """

    gateway: GatewayProcess
    observer: Observer
    readings: list[tuple[int, int, int]] = field(default_factory=list)
    num_sent: int = 0
    num_owed: int = 0
    num_answered: int = 0

    def round(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Send messages, then ask something whose answer is known, and judge all that was heard.

        Raises:
            AssertionError: something was wrong; the message has what was sent.
        """
        sent: list[tuple[str, bytes]] = []
        owed: dict[str, tuple[str, bytes]] = {}
        for topic, payload in messages:
            self.num_sent += 1
            id = f"f{self.num_sent}"
            payload = payload.replace(_NEW_ID.encode(), id.encode())
            sent.append((topic, payload))
            if owes_reply(topic, payload, id):
                owed[id] = (topic, payload)
            self.observer.publish(topic, payload, timeout_s=None)
        try:
            self._judge(owed)
        except AssertionError as error:
            lines = "\n".join(f"  {topic}: {payload[:2000]!r}" for topic, payload in sent)
            raise AssertionError(f"{error}\nafter sending\n{lines}\nlog:\n{self.gateway.said()}") from None

    def _judge(self, owed: Mapping[str, tuple[str, bytes]]) -> None:
        probe = f"probe-{self.num_sent}"
        known = known_question(self.num_sent // PER_EXAMPLE % 50)
        self.observer.publish("edge_vl/gw/request", known.request(probe, "probe"))
        terminal = self.observer.wait_terminal(probe, 60)
        assert terminal["type"] == "end", terminal
        assert text_of(self.observer.stream(probe)) == known.answer
        for id in owed:
            self.observer.wait_terminal(id, 60)
        assert self.gateway.is_running, "the gateway has ended"
        self.num_owed += len(owed)
        for heard in self.observer.heard():
            faults = heard_faults(heard)
            assert not faults, f"{faults} in {heard.topic}: {heard.payload[:500]!r}"
        for id in self.observer.ids():
            stream = self.observer.stream(id)
            is_over = any(read_object(heard.payload)["type"] in TERMINAL for heard in stream)
            if id in owed or id.startswith(("probe", "f")):
                if not is_over:
                    continue
                faults = stream_faults(id, stream, check=stream_schema_faults)
                assert not faults, f"{id}: {faults}"
            if is_over:
                self.num_answered += 1
                self.observer.forget(id)
        self.observer.forget_all()
        process = self.gateway.process.pid
        self.readings.append((anonymous_kib(process), num_descriptors(process), num_threads(process)))

    def finish(self) -> None:
        """See that everything that was begun ends.

        Raises:
            AssertionError: something does not.
        """
        for id in self.observer.ids():
            self.observer.wait_terminal(id, 60)

    def leaks(self) -> list[str]:
        """Say what has grown in the second half of the rounds."""
        kept = self.readings[len(self.readings) // 2 :]
        window = max(1, len(kept) // 5)
        found = []
        for column, name in enumerate(("anonymous memory in KiB", "descriptors", "threads")):
            first = statistics.median(row[column] for row in kept[:window])
            last = statistics.median(row[column] for row in kept[-window:])
            if last > (first * (1 + MAX_GROWTH) if column == 0 else first + 1):
                found.append(f"{name}: from {first} to {last}")
        return found


def owes_reply(topic: str, payload: bytes, id: str) -> bool:
    """Whether something must come back: a request from which its id and where to answer can be read for sure."""
    if not topic.endswith("/request") or len(payload) > _MAX_REQUEST_BYTES:
        return False
    try:
        request = read_object(payload)
    except (ValueError, RecursionError):
        return False
    return request.get("id") == id and "reply_to" not in request and request.get("client", "fuzz") == "fuzz"


def heard_faults(heard: Heard) -> list[str]:
    """Say what is wrong with one message of the gateway, by its topic."""
    levels = heard.topic.split("/")
    if heard.topic == "edge_vl/gw/status":
        return [] if heard.payload == b"online" else ["another status than online"]
    if levels[0] == "homeassistant":
        return [] if not heard.payload or _is_object(heard.payload) else ["no JSON object"]
    if levels[:3] == ["edge_vl", "gw", "camera"]:
        if levels[3] != "door":
            return ["a camera that is not there"]
        if levels[-1] == "state" and len(levels) == 6:
            return [] if b"\x00" not in heard.payload else ["a NUL in a state"]
        if not _is_object(heard.payload):
            return ["no JSON object"]
        schema = topic_schema(heard.topic)
        return [] if schema is None else [*schema_faults(schema, read_object(heard.payload))]
    if not _is_object(heard.payload):
        return ["no JSON object"]
    schema = "stream" if heard.topic in GOOD_REPLIES else topic_schema(heard.topic)
    if schema is not None and (faults := [*schema_faults(schema, read_object(heard.payload))]):
        return faults
    if heard.topic in ("edge_vl/gw/info", "edge_vl/gw/stats", f"edge_vl/group/{GROUP}/claims"):
        return []
    is_reply = heard.topic in GOOD_REPLIES or (levels[:3] == ["edge_vl", "gw", "response"] and len(levels) == 5)
    return [] if is_reply else ["a topic that nothing may be sent to"]


def _is_object(payload: bytes) -> bool:
    try:
        read_object(payload)
    except ValueError:
        return False
    return True


def gateway_under_fuzz(folder: Path, broker: Mosquitto) -> GatewayProcess:
    """Return a gateway that listens to everything that one can listen to; not started."""
    # Little is kept, and conversations end soon, so that memory has its size after half of the way.
    return GatewayProcess(
        folder, broker.port, top=f'group = "{GROUP}"', tables=_CAMERAS, keep_mib=4, context_length=512
    )


def observer_of(broker: Mosquitto) -> Observer:
    """Return one who hears everything but what it sends itself."""
    return Observer(broker.port, ["#"], is_own_heard=False)


def fuzz(run: TopicFuzz, num_payloads: int, seed: int, *, shows: bool = False) -> None:
    """Send so many payloads.

    Raises:
        AssertionError: something was wrong.
    """
    began_s = time.monotonic()

    @seeded(seed)
    @settings(
        max_examples=max(1, num_payloads // PER_EXAMPLE),
        database=None,
        deadline=None,
        phases=[Phase.generate],  # what a gateway did before belongs to a failure: nothing can be left out again
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(MESSAGES, min_size=PER_EXAMPLE, max_size=PER_EXAMPLE))
    def rounds(messages: list[tuple[str, bytes]]) -> None:
        run.round(messages)
        if shows and len(run.readings) % 50 == 0:
            memory_kib, descriptors, threads = run.readings[-1]
            print(
                f"{run.num_sent} payloads, {run.num_owed} replies owed, {run.num_answered} streams ended, "
                f"{memory_kib} KiB, {descriptors} descriptors, {threads} threads, {time.monotonic() - began_s:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    rounds()
    run.finish()
    leaks = run.leaks()
    assert not leaks, leaks


def main() -> None:
    """Run it by hand."""
    num_payloads = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_PAYLOADS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with (
        tempfile.TemporaryDirectory() as folder,
        running_mosquitto(Path(folder)) as broker,
        gateway_under_fuzz(Path(folder) / "gateway", broker) as gateway,
        observer_of(broker) as observer,
    ):
        run = TopicFuzz(gateway, observer)
        fuzz(run, num_payloads, seed, shows=True)
        print(f"{run.num_sent} payloads, {run.num_owed} replies owed, nothing wrong; last readings {run.readings[-1]}")


if __name__ == "__main__":
    main()
