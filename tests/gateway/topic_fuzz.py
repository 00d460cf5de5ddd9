"""Anything at all on every topic that a gateway listens to, and what has to hold all the same.

`python -m tests.gateway.topic_fuzz [NUM_PAYLOADS [SEED]]` runs it against a gateway and a mosquitto of its own;
20,000 payloads unless told otherwise.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from benchmarks.process_memory import anonymous_kib, num_descriptors, num_threads
from tests.gateway.fuzz_payloads import GOOD_REPLIES, GROUP, MESSAGES, NEW_ID
from tests.gateway_process import GatewayProcess
from tests.known_pictures import known_question
from tests.mosquitto import Mosquitto, running_mosquitto
from tests.mqtt_documents import schema_faults, stream_schema_faults, topic_schema
from tests.mqtt_observer import TERMINAL, Heard, Observer, read_object, stream_faults, text_of

__all__ = ["PER_EXAMPLE", "TopicFuzz", "fuzz", "gateway_under_fuzz"]

PER_EXAMPLE = 10
"""Payloads between two questions whose answer is known."""

NUM_PAYLOADS = 20_000

MAX_GROWTH = 0.05
"""Of anonymous memory in the second half of many payloads. Fewer do not fill what has bounds: ids, claims, arenas."""

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

_MAX_REQUEST_BYTES = 131_072


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
            payload = payload.replace(NEW_ID.encode(), id.encode())
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

    def leaks(self, max_growth: float) -> list[str]:
        """Say what has grown in the second half of the rounds."""
        kept = self.readings[len(self.readings) // 2 :]
        window = max(1, len(kept) // 5)
        found = []
        for column, name in enumerate(("anonymous memory in KiB", "descriptors", "threads")):
            first = statistics.median(row[column] for row in kept[:window])
            last = statistics.median(row[column] for row in kept[-window:])
            if last > (first * (1 + max_growth) if column == 0 else first + 1):
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
        if levels[3] != "door" and not (levels[4:] == ["event"] and b'"type":"error"' in heard.payload):
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


def fuzz(run: TopicFuzz, num_payloads: int, seed: int, *, max_growth: float = MAX_GROWTH, shows: bool = False) -> None:
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
    leaks = run.leaks(max_growth)
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
