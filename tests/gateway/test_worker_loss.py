from __future__ import annotations

import collections
import random
import time
from pathlib import Path

import pytest

from tests.gateway_process import GatewayProcess
from tests.mosquitto import Mosquitto
from tests.mqtt_documents import stream_schema_faults
from tests.mqtt_observer import Observer, read_object, stream_faults
from tests.paced_engine import PacedEngine

NUM_REQUESTS = 100
NUM_KILLS = 4
MOST_OPEN = 6

ENGINE = PacedEngine("slow", token_s=0.008, is_endless=True)
GROUP = "edge_vl/group/pool"


@pytest.mark.timeout(300)
def test_every_request_to_a_group_ends_once_though_workers_are_killed(tmp_path: Path, mosquitto: Mosquitto) -> None:
    rng = random.Random(0)
    workers = [
        GatewayProcess(tmp_path / node, mosquitto.port, node=node, top='group = "pool"', engine=ENGINE)
        for node in ("one", "two")
    ]
    with Observer(mosquitto.port, ["edge_vl/#"]) as observer, workers[0], workers[1]:
        kill_at = {(turn + 1) * NUM_REQUESTS // (NUM_KILLS + 1): workers[turn % 2] for turn in range(NUM_KILLS)}
        asked: dict[str, float] = {}
        for number in range(NUM_REQUESTS):
            id = f"r{number}"
            observer.publish(
                f"{GROUP}/request",
                {"v": 1, "id": id, "client": "judge", "question": "Describe it.", "max_tokens": rng.randint(4, 30)},
            )
            asked[id] = time.monotonic()
            if number in kill_at:
                worker = kill_at[number]
                wait_at_work(observer, worker.base, asked[id])
                worker.kill()
                observer.wait_payload(f"{worker.base}/status", b"offline")
                worker.start()
            wait_for_room(observer, asked)
        claimed = claimed_ids(observer)
        unclaimed = [id for id in asked if id not in claimed and not observer.stream(id)]
        for id in asked:
            if id not in unclaimed:
                observer.wait_terminal(id, 30)
        time.sleep(0.5)  # for a second terminal message, if there is one
        faults = [
            f"{id}: {fault}"
            for id in asked
            if id not in unclaimed
            for fault in stream_faults(id, observer.stream(id), check=stream_schema_faults)
        ]
        assert faults == [], "".join(worker.said() for worker in workers)
        assert len(unclaimed) <= NUM_KILLS, "killed before they could say what they had taken"
        ends = collections.Counter(
            (message["type"], message.get("reason"))
            for id in asked
            if id not in unclaimed
            for message in [observer.wait_terminal(id, 1)]
        )
        assert set(ends) == {("end", None), ("aborted", "worker_lost")}
        by_node = collections.Counter(
            read_object(observer.stream(id)[0].payload).get("node") for id in asked if observer.stream(id)
        )
        assert min(by_node["one"], by_node["two"]) > NUM_REQUESTS // 5, by_node


def wait_at_work(observer: Observer, base: str, since_s: float) -> None:
    """Wait until a worker has sent something of an answer."""
    observer.wait_for(
        lambda heard: heard.topic.startswith(f"{base}/response/") and heard.received_s > since_s, f"answer of {base}"
    )


def claimed_ids(observer: Observer) -> set[str]:
    return {str(read_object(heard.payload)["id"]) for heard in observer.heard(f"{GROUP}/claims")}


def wait_for_room(observer: Observer, asked: dict[str, float]) -> None:
    """Wait until few requests are open; one of which nothing is heard for long counts as lost."""
    until_s = time.monotonic() + 60
    while True:
        open_now = [
            id
            for id, asked_s in asked.items()
            if not any(b'"end"' in heard.payload or b'"aborted"' in heard.payload for heard in observer.stream(id))
            and (observer.stream(id) or time.monotonic() - asked_s < 2)
        ]
        if len(open_now) < MOST_OPEN:
            return
        assert time.monotonic() < until_s, f"never ended: {open_now}"
        time.sleep(0.02)
