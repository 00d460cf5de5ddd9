"""What clients, cameras and people do to a gateway during a soak, and whether every request ends once and rightly."""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.known_pictures import KnownQuestion, known_question
from tests.mqtt_documents import schema_faults, stream_schema_faults, topic_schema
from tests.mqtt_observer import PROTOCOLS, TERMINAL, Heard, Observer, read_object, stream_faults, text_of

__all__ = ["Traffic"]

NUM_QUESTIONS = 50
"""Few enough that what a runtime keeps of them has its size after a warm-up."""

TURNS = 3
"""Of a conversation, before another one begins."""

PATIENCE_S = 60.0
"""A request without its terminal message after so long, on a working connection, has none."""

SETTLE_S = 3.0
"""How long an answer is listened to after its end, for what should not come any more."""

BAD = (
    b"", b"\xff\xd8\xff\xe0\x00\x10JFIF", b"\xff\xfe", b"null", b"[]", b'"text"', b'{"a": NaN}', b"[" * 1000,
    b'{"v":1,"id":"a","id":"b"}', b'{"v":1,"id":"x","question":"' + b"x" * 200_000 + b'"}', b"\x00" * 100,
)  # fmt: skip

WRONG: tuple[dict[str, Any], ...] = (
    {"question": ""},
    {"max_tokens": -1},
    {"unknown": 1},
    {"images": [{"camera": "nowhere"}]},
    {"images": [{"base64": "AAAA"}]},
    {"images": [{"file": "../secret"}]},
    {"reply_to": "edge_vl/gw/request"},
    {"deadline_ms": "soon"},
)

Expected = Literal["answer", "error", "anything"]


@dataclass
class Asked:
    """A request that was sent.

    Attributes:
        client: number of who sent it.
        topic: where to.
        request: what.
        expected: what should come of it.
        known: what is true, for an expected answer.
        since_s: when it was sent, last.
        ended_s: when its terminal message was seen; None: not yet.
        is_disturbed: whether a connection was lost meanwhile.
    """

    client: int
    topic: str
    request: Mapping[str, Any]
    expected: Expected
    known: KnownQuestion | None
    since_s: float
    ended_s: float | None = None
    is_disturbed: bool = False


class Traffic:
    """Several clients of one gateway, direct and over its group.

    Attributes:
        counts: what was done, and how it ended.
        faults: what was wrong, in words.
    """

    def __init__(self, port: int, base: str, group: str, seed: int, *, num_clients: int = 4) -> None:
        """Connect them.

        Args:
            port: of the broker.
            base: what the gateway's topics begin with.
            group: what the group's topics begin with.
            seed: of everything that they do.
            num_clients: how many.
        """
        self._base = base
        self._group = group
        self._random = random.Random(seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self._asked: dict[str, Asked] = {}
        self._num_asked = 0
        self._clients = [
            Observer(port, [f"{base}/response/client-{number}/#"], protocol=PROTOCOLS[number % 2])
            for number in range(num_clients)
        ]
        self._watcher = Observer(port, [f"{base}/status", f"{base}/camera/#", f"{base}/info", f"{base}/stats"])
        self.status = b""

    @property
    def num_open(self) -> int:
        """Requests without their terminal message so far."""
        return sum(asked.ended_s is None for asked in self._asked.values())

    def close(self) -> None:
        """Disconnect them."""
        for client in (*self._clients, self._watcher):
            client.close()

    def act(self) -> None:
        """Do one thing, drawn at random."""
        kinds = ("ask", "group", "picture", "twice", "cancel", "bad", "wrong", "camera", "set")
        kind = self._random.choices(kinds, weights=(6, 5, 3, 2, 3, 3, 3, 2, 2))[0]
        client = self._random.randrange(len(self._clients))
        known = known_question(self._random.randrange(NUM_QUESTIONS))
        self.counts[kind] += 1
        if kind == "ask":
            self._ask(client, known, stream=self._random.random() < 0.8)
        elif kind == "group":
            self._ask(client, known, is_group=True)
        elif kind == "picture":
            id = self._new_id()
            topic = f"{self._base}/image/client-{client}/{id}"
            self._clients[client].publish(topic, known.png)
            conversation = f"talk-{self.counts['picture'] // TURNS}"
            self._ask(client, known, id=id, images=[{"topic": topic}], conversation=conversation)
        elif kind == "twice":
            self._send_again(self._ask(client, known, is_group=self._random.random() < 0.5))
        elif kind == "cancel":
            id = self._ask(client, known, expected="anything")
            time.sleep(self._random.choice((0.0, 0.005, 0.02)))
            self._clients[client].publish(f"{self._base}/cancel", {"v": 1, "id": id})
        elif kind == "bad":
            topic = self._random.choice((f"{self._base}/request", f"{self._base}/cancel", f"{self._group}/request"))
            self._clients[client].publish(topic, self._random.choice(BAD))
        elif kind == "wrong":
            self._ask(client, known, expected="error", **self._random.choice(WRONG))
        elif kind == "camera":
            camera = self._random.choice(("steady", "flapping"))
            self._ask(client, known, expected="anything", images=[{"camera": camera}], max_frame_age_ms=5000)
        else:
            topic, payload = self._random.choice(
                (
                    ("steady/enabled/set", "OFF"),
                    ("steady/enabled/set", "ON"),
                    ("steady/enabled/set", "ON"),
                    ("flapping/ask/set", "PRESS"),
                    ("flapping/question/set", "How many objects are there?"),
                    ("flapping/every_s/set", "nonsense"),
                )
            )
            self._clients[client].publish(f"{self._base}/camera/{topic}", payload)

    def look(self) -> None:
        """See what has come, and judge what has ended a while ago."""
        now_s = time.monotonic()
        for id, asked in [*self._asked.items()]:
            stream = self._clients[asked.client].stream(id)
            if asked.ended_s is None:
                if any(_type(heard) in TERMINAL for heard in stream):
                    asked.ended_s = now_s
                elif now_s - asked.since_s > PATIENCE_S:
                    self.faults.append(f"{id} ({asked.expected}) has no terminal message after {PATIENCE_S:g} s")
                    del self._asked[id]
            elif now_s - asked.ended_s > SETTLE_S:
                self._judge(id, asked, stream)
                self._clients[asked.client].forget(id)
                del self._asked[id]
        for heard in self._watcher.heard():
            if heard.topic == f"{self._base}/status":
                self.status = heard.payload
            elif (schema := topic_schema(heard.topic)) is not None:
                self.counts[f"heard {schema}"] += 1
                found = [*schema_faults(schema, read_object(heard.payload))]
                self.faults += (f"{heard.topic}: {fault}" for fault in found[: 3 * (len(self.faults) < 100)])
        self._watcher.forget_all()

    def disturbed(self) -> None:
        """Note that the gateway's connection was lost: messages may come again."""
        self.status = b""
        for asked in self._asked.values():
            asked.is_disturbed = True

    def reconnected(self, num_connections: int) -> None:
        """Wait until all are connected for the so-manieth time."""
        for client in (*self._clients, self._watcher):
            client.wait_connected(num_connections, 30)

    def send_again(self) -> None:
        """Send what has no answer yet again, as a client does whose message may have been lost."""
        for id, asked in self._asked.items():
            asked.is_disturbed = True
            if asked.ended_s is None:
                self._send_again(id)

    def _ask(
        self,
        client: int,
        known: KnownQuestion,
        *,
        id: str | None = None,
        expected: Expected = "answer",
        is_group: bool = False,
        **fields: Any,
    ) -> str:
        id = id or self._new_id()
        if is_group:
            topic, fields["reply_to"] = f"{self._group}/request", f"{self._base}/response/client-{client}/{id}"
        else:
            topic = f"{self._base}/request"
        request = known.request(id, f"client-{client}", **fields)
        self._asked[id] = Asked(client, topic, request, expected, known, time.monotonic())
        self._clients[client].publish(topic, request)
        return id

    def _send_again(self, id: str) -> None:
        asked = self._asked[id]
        for image in asked.request["images"]:
            if isinstance(image.get("topic"), str) and asked.known is not None:
                self._clients[asked.client].publish(image["topic"], asked.known.png)
        asked.since_s = time.monotonic()
        self._clients[asked.client].publish(asked.topic, asked.request)
        self.counts["sent again"] += 1

    def _new_id(self) -> str:
        self._num_asked += 1
        return f"s{self._num_asked}"

    def _judge(self, id: str, asked: Asked, stream: list[Heard]) -> None:
        found = stream_faults(id, stream, may_repeat=asked.is_disturbed, check=stream_schema_faults)
        ends = [heard for heard in stream if _type(heard) in TERMINAL]
        kind = _type(ends[0])
        self.counts[f"ended: {kind}"] += 1
        if asked.expected != "anything" and kind != {"answer": "end", "error": "error"}[asked.expected]:
            found.append(f"{asked.expected} was expected, not {ends[0].payload[:300]!r}")
        elif asked.expected == "answer" and asked.known is not None and text_of(stream) != asked.known.answer:
            found.append(f"the answer is {text_of(stream)!r} instead of {asked.known.answer!r}")
        if len({heard.payload for heard in ends}) > 1:
            self.counts["ended twice"] += 1
        self.faults += (f"{id}: {fault}" for fault in found)


def _type(heard: Heard) -> str:
    try:
        return str(read_object(heard.payload).get("type"))
    except ValueError:
        return ""
