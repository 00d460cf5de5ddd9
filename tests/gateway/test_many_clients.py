from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.gateway_process import GatewayProcess
from tests.known_pictures import known_question
from tests.mosquitto import Mosquitto
from tests.mqtt_documents import stream_schema_faults
from tests.mqtt_observer import PROTOCOLS, Observer, stream_faults, text_of

NUM_CLIENTS = 50
NUM_REQUESTS = 3


def test_fifty_clients_at_once_are_answered_rightly_and_in_order(tmp_path: Path, mosquitto: Mosquitto) -> None:
    faults: list[str] = []
    everybody = threading.Barrier(NUM_CLIENTS, timeout=60)
    limits = f"[limits]\nmax_waiting = {NUM_CLIENTS * NUM_REQUESTS}\n"
    with GatewayProcess(tmp_path / "gateway", mosquitto.port, tables=limits) as gateway:
        clients = [
            threading.Thread(target=ask_and_judge, args=(number, mosquitto.port, gateway.base, everybody, faults))
            for number in range(NUM_CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join(120)
        assert not any(client.is_alive() for client in clients)
    assert faults == [], gateway.said()


def ask_and_judge(number: int, port: int, base: str, everybody: threading.Barrier, faults: list[str]) -> None:
    name = f"client-{number}"
    protocol = PROTOCOLS[number % 2]
    own = f"edge_vl/replies/{name}"
    try:
        with Observer(port, [f"{base}/response/{name}/#", f"{own}/#"], protocol=protocol) as client:
            everybody.wait()
            wanted = {}
            for turn in range(NUM_REQUESTS):
                known = known_question(number * NUM_REQUESTS + turn)
                id = f"{name}-{turn}"
                request: dict[str, Any] = known.request(id, name)
                topic = f"{base}/response/{name}/{id}"
                if turn == 1:
                    client.publish(f"{base}/image/{name}/{id}", known.png)
                    request["images"] = [{"topic": f"{base}/image/{name}/{id}"}]
                elif turn == 2:
                    request["reply_to"] = topic = f"{own}/{id}"
                client.publish(f"{base}/request", request)
                wanted[id] = (topic, known.answer)
            for id in wanted:
                client.wait_terminal(id, 90)
            for id, (topic, answer) in wanted.items():
                messages = client.stream(id)
                faults += (f"{id}: {fault}" for fault in stream_faults(id, messages, check=stream_schema_faults))
                if {heard.topic for heard in messages} != {topic}:
                    faults.append(f"{id}: on {messages[0].topic} instead of {topic}")
                if text_of(messages) != answer:
                    faults.append(f"{id}: {text_of(messages)!r} instead of {answer!r}")
                if protocol == "5":
                    faults += (f"{id}: {fault}" for fault in mirrored_faults(id, messages))
    except Exception as error:  # told by the test's own thread
        faults.append(f"{name}: {type(error).__name__}: {error}")


def mirrored_faults(id: str, messages: list[Any]) -> list[str]:
    """Say which facts MQTT 5 should repeat in its properties and does not."""
    faults = []
    for heard in messages:
        if heard.content_type != "application/json":
            faults.append(f"content type {heard.content_type!r}")
        if heard.correlation != id.encode():
            faults.append(f"correlation data {heard.correlation!r}")
        if ("v", "1") not in heard.user_properties:
            faults.append(f"user properties {heard.user_properties!r}")
    return faults
