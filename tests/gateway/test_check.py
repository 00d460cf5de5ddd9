"""Tests of checking a gateway before it runs."""

from __future__ import annotations

import dataclasses
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_vl.backoff import Backoff
from edge_vl.errors import BrokerError, MemoryBudgetError, ModelError, RequestError, SourceError
from edge_vl.gateway.broker_check import check_broker
from edge_vl.gateway.check import check_gateway
from edge_vl.gateway.config import CameraConfig, GatewayConfig, Limits, ModelConfig
from edge_vl.gateway.demo_broker import DemoBroker
from edge_vl.gateway.finding import Finding
from edge_vl.mqtt.broker_settings import BrokerSettings, Protocol
from edge_vl.mqtt.packet import QoS
from edge_vl.mqtt.transport import Connection
from edge_vl.sources.camera_settings import CameraSettings
from tests.mosquitto import Mosquitto, free_port, has_mosquitto, running_mosquitto

QUICK = CameraSettings(open_timeout_s=0.5, read_timeout_s=0.5, backoff=Backoff(5.0, 5.0))


def config(port: int, **changes: object) -> GatewayConfig:
    broker = BrokerSettings(port=port, connect_timeout_s=2.0)
    return dataclasses.replace(GatewayConfig(broker=broker, node="pi"), **changes)  # type: ignore[arg-type]


def by_level(found: Iterator[Finding], level: str) -> list[str]:
    return [f"{one.subject}: {one.text}" for one in found if one.level == level]


def problems(config: GatewayConfig) -> list[Finding]:
    return [one for one in check_gateway(config) if one.level == "problem"]


@pytest.mark.parametrize("protocol", ["auto", "5", "3.1.1"])
def test_a_gateway_that_can_run_has_no_problem(mosquitto: Mosquitto, tmp_path: Path, protocol: Protocol) -> None:
    good = config(
        mosquitto.port,
        broker=BrokerSettings(port=mosquitto.port, protocol=protocol),
        group="doors",
        folders=(tmp_path,),
        state_dir=tmp_path / "state",
        cameras=(CameraConfig("door", "synthetic:320x240@30", "What is it?", settings=QUICK),),
    )
    found = list(check_gateway(good))
    assert {one.level for one in found} == {"ok"}
    texts = by_level(iter(found), "ok")
    version = "3.1.1" if protocol == "3.1.1" else "5"
    assert any(f"speaks MQTT {version}, no TLS" in text for text in texts)
    assert any(text.startswith("camera door: 320x240, first frame after ") for text in texts)
    assert any(text.startswith("model: bundled, profile ") for text in texts)
    assert any(text.startswith("memory: needs about ") for text in texts)
    assert "broker: it keeps retained messages" in texts
    assert "broker: shared subscriptions work" in texts
    assert not (tmp_path / "state").exists()


def test_nothing_is_left_at_the_broker(mosquitto: Mosquitto) -> None:
    list(check_gateway(config(mosquitto.port)))
    command = ["mosquitto_sub", "-p", str(mosquitto.port), "-t", "#", "-v", "-W", "1"]
    assert subprocess.run(command, capture_output=True, check=False).stdout == b""


def test_what_was_noticed_while_reading_is_told_once(mosquitto: Mosquitto) -> None:
    notes = by_level(check_gateway(config(mosquitto.port), ["look out", "look out"]), "note")
    assert notes.count("file: look out") == 1
    assert any(note.startswith("state: no node.state_dir") for note in notes)


def test_a_gateway_of_the_same_name_that_runs_is_told(mosquitto: Mosquitto) -> None:
    publish = ["mosquitto_pub", "-p", str(mosquitto.port), "-r", "-t", "edge_vl/pi/status", "-m", "online"]
    subprocess.run(publish, check=True)
    (problem,) = problems(config(mosquitto.port))
    assert "a gateway named pi is online there" in problem.text
    assert isinstance(problem.error, BrokerError)
    assert problem.error.reason == "taken_over"


def test_a_broker_that_is_not_there_is_a_problem() -> None:
    (problem,) = problems(config(free_port()))
    assert problem.subject == "broker"
    assert isinstance(problem.error, BrokerError)
    assert problem.error.reason == "unreachable"


def test_a_broker_that_never_answers_is_a_problem_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = BrokerSettings(port=silent.getsockname()[1], connect_timeout_s=0.3)
        (problem,) = problems(config(0, broker=broker))
    assert "did not answer within 0.3 s" in problem.text


def test_a_broker_that_wants_a_password_is_a_problem(tmp_path: Path) -> None:
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    with running_mosquitto(tmp_path, options=["allow_anonymous false"]) as broker:
        (problem,) = problems(config(broker.port))
    assert isinstance(problem.error, BrokerError)
    assert problem.error.reason == "refused"


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_topics_that_nothing_may_be_sent_to_are_a_problem(
    tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl.gateway.broker_check._WAIT_S", 0.5)  # what does not come in this time never comes
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    rules = tmp_path / "acl"
    rules.write_text("topic read edge_vl/pi/#\n\npattern readwrite edge_vl/%u/#\n")
    rules.chmod(0o600)
    with running_mosquitto(tmp_path, options=[f"acl_file {rules}"]) as broker:
        asked = BrokerSettings(port=broker.port, protocol=protocol, username="kitchen", password="x")
        (problem,) = problems(config(0, broker=asked))
    words = "the access rules do not let user kitchen write to edge_vl/pi/...; with a rule like edge_vl/%u/# the user "
    assert words + "must be named as the node" in problem.text


def test_a_user_without_a_password_is_told_that_none_was_given(tmp_path: Path) -> None:
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    with running_mosquitto(tmp_path, options=["allow_anonymous false"]) as broker:
        (problem,) = problems(config(0, broker=BrokerSettings(port=broker.port, username="pi")))
    assert "none was given" in problem.text


def test_a_camera_that_cannot_be_opened_is_not_waited_for() -> None:
    slow = CameraSettings(open_timeout_s=60.0, read_timeout_s=60.0)
    source = f"rtsp://127.0.0.1:{free_port()}/door"
    cameras = (CameraConfig("door", source, settings=slow),)
    started_s = time.monotonic()
    problem = next(one for one in problems(config(free_port(), cameras=cameras)) if one.subject == "camera door")
    assert time.monotonic() - started_s < 30
    assert problem.text.count(source) == 1, problem.text


def test_topics_that_may_not_be_heard_are_problems(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe = Connection.subscribe

    async def choosy(connection: Connection, filters: Mapping[str, QoS]) -> list[str]:
        """Refuse requests, as brokers do whose rules know subscriptions; mosquitto's file of rules does not."""
        return [*await subscribe(connection, filters), *(one for one in filters if one.endswith("/request"))]

    monkeypatch.setattr(Connection, "subscribe", choosy)
    (problem,) = problems(config(mosquitto.port))
    assert problem.text == "it does not let this user subscribe to edge_vl/pi/request"


def test_a_broker_without_mqtt_5_and_without_shared_subscriptions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_vl.gateway.broker_check._WAIT_S", 0.5)  # what does not come in this time never comes
    with DemoBroker(free_port()) as broker:
        alone = {re.split("; | [0-9.]+ ms", one.text)[0]: one.level for one in check_broker(config(broker.port))}
        (problem,) = (one for one in check_broker(config(broker.port, group="doors")) if one.level == "problem")
    assert alone == {
        "it does not speak MQTT 5": "note",
        f"127.0.0.1:{broker.port} speaks MQTT 3.1.1, no TLS": "ok",
        "a message is confirmed after": "ok",
        "it keeps retained messages": "ok",
        "shared subscriptions do not work there": "note",
    }
    assert problem.text == "shared subscriptions do not work there, and node.group needs them"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/nowhere/clip.mp4", "there is no file"),
        ("rtsp://user:hunter2@127.0.0.1:1/x", "127.0.0.1:1"),
        ("synthetic:1x", "synthetic"),
    ],
)
def test_a_camera_that_gives_nothing_is_a_problem_without_its_password(
    mosquitto: Mosquitto, source: str, words: str
) -> None:
    camera = CameraConfig("door", source, "What is it?", settings=QUICK)
    (problem,) = problems(config(mosquitto.port, cameras=(camera,)))
    assert problem.subject == "camera door"
    assert words in problem.text
    assert "hunter2" not in problem.text
    assert "\n" not in problem.text


def test_pictures_are_no_camera_of_a_gateway(mosquitto: Mosquitto, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    (problem,) = problems(config(mosquitto.port, cameras=(CameraConfig("door", str(tmp_path / "a.png")),)))
    assert isinstance(problem.error, SourceError)
    assert "not pictures" in problem.text


def test_one_bad_camera_does_not_hide_the_others(mosquitto: Mosquitto) -> None:
    cameras = (
        CameraConfig("a", "/nowhere", settings=QUICK),
        CameraConfig("b", "synthetic", "What is it?", settings=QUICK),
    )
    found = list(check_gateway(config(mosquitto.port, cameras=cameras)))
    assert [one.level for one in found if one.subject == "camera a"] == ["problem"]
    assert [one.level for one in found if one.subject == "camera b"] == ["ok"]


def test_a_camera_without_a_question_is_noted(mosquitto: Mosquitto) -> None:
    camera = CameraConfig("door", "synthetic", settings=QUICK)
    notes = by_level(check_gateway(config(mosquitto.port, cameras=(camera,))), "note")
    assert "camera door: no question: it answers only when somebody asks" in notes


def test_a_model_that_is_not_there_is_a_problem(mosquitto: Mosquitto) -> None:
    (problem,) = problems(config(mosquitto.port, model=ModelConfig(name="bundeld")))
    assert isinstance(problem.error, ModelError)
    assert "did you mean 'bundled'" in problem.text


def test_a_model_that_does_not_fit_is_a_problem(mosquitto: Mosquitto) -> None:
    (problem,) = problems(config(mosquitto.port, model=ModelConfig(memory_budget_mib=1)))
    assert isinstance(problem.error, MemoryBudgetError)


def test_folders_that_cannot_be_used_are_problems(mosquitto: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    found = problems(config(mosquitto.port, folders=(tmp_path / "none", file), state_dir=file / "state"))
    assert [one.subject for one in found] == ["folder", "folder", "state"]
    assert isinstance(found[2].error, RequestError)


def test_packets_smaller_than_requests_are_noted(tmp_path: Path) -> None:
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    with running_mosquitto(tmp_path, options=["max_packet_size 20000"]) as broker:
        found = list(check_gateway(config(broker.port, limits=Limits())))
    assert any("packets up to 20000 bytes" in text for text in by_level(iter(found), "ok"))
    assert any("smaller than limits.max_request_bytes" in text for text in by_level(iter(found), "note"))
