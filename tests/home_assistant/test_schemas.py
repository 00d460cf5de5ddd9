"""Tests of discovery payloads and of what entities make of our messages, by Home Assistant's own code."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from edge_vl.gateway.config import CameraConfig, WhenConfig
from edge_vl.home_assistant.camera_device import camera_device
from edge_vl.home_assistant.gateway_device import gateway_device
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.messages import AnswerFrame
from edge_vl.mqtt.node_messages import CameraAnswer, CameraStateMessage, Stats
from edge_vl.mqtt.topics import NodeTopics
from tests.home_assistant.judging import NEEDS_HOME_ASSISTANT, judged

TOPICS = NodeTopics("edge_vl", "pi-5")
CAMERA = CameraConfig(
    "front-door",
    "synthetic",
    question="What is there?",
    when=(WhenConfig("person", "Is there a person?"), WhenConfig("it-s_dark", "Is it dark?")),
    snapshot=True,
)

pytestmark = NEEDS_HOME_ASSISTANT


def devices() -> list[dict[str, Any]]:
    made = gateway_device(TOPICS, model="bundled", stats_every_s=30.0), camera_device(TOPICS, CAMERA)
    return [json.loads(device.message("homeassistant").payload) for device in made]


def samples(status: str = "online", camera_status: str = "online") -> dict[str, str]:
    """Return messages as the gateway and its camera's desk encode them."""
    state = CameraStateMessage(
        camera=CAMERA.name,
        status=camera_status,  # type: ignore[arg-type]
        since="2026-01-01T00:00:00+00:00",
        at="2026-01-01T00:00:00+00:00",
        t_ms=1,
        when={"person": True, "it-s_dark": None},
    )
    answer = CameraAnswer(
        camera=CAMERA.name,
        question="What is there?",
        trigger="interval",
        text="A dog.\nIt sleeps.",
        state="A dog.",
        at="2026-01-01T00:00:00+00:00",
        t_ms=1,
        finish_reason="stop",
        model="bundled",
        frame=AnswerFrame(source=CAMERA.name, index=7, captured_at="2026-01-01T00:00:00+00:00", age_ms=321),
        first_token_ms=12.5,
        total_ms=300.0,
    )
    stats = Stats(node="pi-5", boot_id="x", uptime_ms=5, waiting=2, first_token_ms=44.0)
    return {
        TOPICS.status: status,
        TOPICS.stats: encode(stats).decode(),
        TOPICS.camera(CAMERA.name, "state"): encode(state).decode(),
        TOPICS.camera(CAMERA.name, "answer/last"): encode(answer).decode(),
        TOPICS.camera(CAMERA.name, "enabled/state"): "ON",
        TOPICS.camera(CAMERA.name, "question/state"): "x" * 500,
        TOPICS.camera(CAMERA.name, "every_s/state"): "2.5",
    }


def test_home_assistant_takes_every_component_and_knows_every_key() -> None:
    payloads = devices()
    platforms = {component["platform"] for payload in payloads for component in payload["components"].values()}
    assert platforms == {"sensor", "binary_sensor", "switch", "text", "number", "button", "image"}
    verdict = judged(payloads)
    assert verdict["faults"] == []
    assert len(verdict["shown"]) == sum(len(payload["components"]) for payload in payloads)


def test_the_judge_finds_what_is_wrong() -> None:
    gateway, camera = devices()
    broken = copy.deepcopy(camera)
    del broken["origin"]
    broken["availabilty"] = []
    gateway["components"]["first_token"]["unit_of_measurement"] = "tokens"
    gateway["components"]["waiting"]["sate_class"] = "measurement"
    del gateway["components"]["status"]["unique_id"]
    camera["components"]["question"]["max"] = 500
    camera["components"]["snapshot"]["image_encoding"] = "raw"
    camera["components"]["enabled"]["command_topic"] = "with/+/wildcard"
    camera["components"]["last_answer"]["value_template"] = "{{ value_json.state"
    faults = "\n".join(judged([gateway, camera])["faults"])
    for what in (
        "unit 'tokens'",
        "sate_class is not known",
        "no unique_id",
        "question: max text length",
        "snapshot: ",
        "enabled: ",
        "last_answer: invalid template",
    ):
        assert what in faults, faults
    broken["components"], broken["device"]["identifiers"], broken["availability_mode"] = {}, [], "some"
    faults = judged([broken])["faults"]
    assert faults[:2] == ["origin is missing", "availabilty is not known"]
    assert [fault.partition(":")[0] for fault in faults[2:]] == ["device", "origin", "availability"]


def test_entities_show_what_our_messages_say() -> None:
    seen = judged(devices(), samples())["shown"]
    camera, gateway = "edge_vl-pi--5-camera-front--door-", "edge_vl-pi--5-"
    assert {name.removeprefix(camera): one.get("state") for name, one in seen.items() if name.startswith(camera)} == {
        "last_answer": "A dog.",
        "enabled": "ON",
        "question": "x" * 255,
        "every_s": "2.5",
        "ask": None,
        "connected": "ON",
        "first_token": "12.5",
        "frame_age": "321",
        "when_person": "ON",
        "when_it-s_dark": "None",
        "snapshot": None,
    }
    assert {name: seen[gateway + name]["state"] for name in ("status", "first_token", "tokens_per_s", "waiting")} == {
        "status": "online",
        "first_token": "44.0",
        "tokens_per_s": "None",
        "waiting": "2",
    }
    assert all(one["available"] is True for one in seen.values())


@pytest.mark.parametrize("status", ["stopped", "offline"])
def test_without_its_gateway_nothing_is_available_but_its_status(status: str) -> None:
    seen = judged(devices(), samples(status))["shown"]
    available = {name for name, one in seen.items() if one["available"]}
    assert available == {"edge_vl-pi--5-status"}
    assert seen["edge_vl-pi--5-status"]["state"] == status


@pytest.mark.parametrize("status", ["offline", "disabled", "connecting"])
def test_without_its_camera_what_it_sees_is_not_available_and_its_settings_are(status: str) -> None:
    seen = judged(devices(), samples(camera_status=status))["shown"]
    camera = "edge_vl-pi--5-camera-front--door-"
    unavailable = {name.removeprefix(camera) for name, one in seen.items() if one["available"] is False}
    assert unavailable == {
        "last_answer",
        "ask",
        "first_token",
        "frame_age",
        "when_person",
        "when_it-s_dark",
        "snapshot",
    }
    assert seen[camera + "connected"]["state"] == "OFF"
