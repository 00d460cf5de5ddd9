"""Tests of the discovery messages, apart from what Home Assistant's own code judges."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edge_vl import RequestError, __version__
from edge_vl.gateway.config import CameraConfig, WhenConfig
from edge_vl.gateway.gateway_file import read_gateway_file
from edge_vl.home_assistant.camera_device import camera_device, camera_id
from edge_vl.home_assistant.discovery import MAX_PAYLOAD_BYTES, device_id, gateway_id, removal
from edge_vl.home_assistant.gateway_device import gateway_device
from edge_vl.mqtt.topics import NodeTopics

TOPICS = NodeTopics("edge_vl", "pi5")


def announced(camera: CameraConfig, topics: NodeTopics = TOPICS) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(camera_device(topics, camera).message("homeassistant").payload)
    return payload


def test_a_device_is_announced_under_its_own_id_and_not_retained() -> None:
    message = gateway_device(TOPICS, model="bundled", stats_every_s=30.0).message("ha")
    payload = json.loads(message.payload)
    assert message.topic == "ha/device/edge_vl-pi5/config"
    assert (message.qos, message.is_retained) == (1, False)
    assert payload["device"] == {
        "identifiers": ["edge_vl-pi5"],
        "name": "edge_vl pi5",
        "manufacturer": "edge_vl",
        "model": "bundled",
        "sw_version": __version__,
    }
    assert payload["origin"] == {"name": "edge_vl", "sw_version": __version__}
    assert payload["components"]["waiting"]["unique_id"] == "edge_vl-pi5-waiting"
    assert payload["components"]["waiting"]["expire_after"] == 100


def test_a_camera_hangs_behind_its_gateway_and_needs_both() -> None:
    payload = announced(CameraConfig("door", "0"))
    assert payload["device"]["via_device"] == gateway_id(TOPICS)
    assert [source["topic"] for source in payload["availability"]] == [
        "edge_vl/pi5/status",
        "edge_vl/pi5/camera/door/state",
    ]
    assert payload["availability_mode"] == "all"
    assert set(payload["components"]) == {
        "last_answer",
        "enabled",
        "question",
        "every_s",
        "ask",
        "connected",
        "first_token",
        "frame_age",
    }


def test_yes_no_questions_and_snapshots_are_announced_where_there_are_some() -> None:
    camera = CameraConfig("door", "0", when=(WhenConfig("a-b_c", "Is it?"),), snapshot=True)
    components = announced(camera)["components"]
    assert components["when_a-b_c"]["name"] == "A b c"
    assert "value_json.when['a-b_c']" in components["when_a-b_c"]["value_template"]
    snapshot = components["snapshot"]
    assert snapshot["image_topic"] == "edge_vl/pi5/camera/door/snapshot"
    assert snapshot["content_type"] == "image/jpeg"
    assert "image_encoding" not in snapshot  # the bytes come as they are


def test_commands_go_where_the_desk_listens_and_none_is_retained() -> None:
    for name, component in announced(CameraConfig("door", "0"))["components"].items():
        if "command_topic" in component:
            assert component["command_topic"] == f"edge_vl/pi5/camera/door/{name}/set"
            assert "retain" not in component


def test_ids_are_as_home_assistant_wants_them_and_differ_where_names_do() -> None:
    ids = [
        gateway_id(TOPICS),
        gateway_id(NodeTopics("edge_vl", "pi5-camera-door")),
        gateway_id(NodeTopics("edge_vl/site", "pi5")),
        gateway_id(NodeTopics("edge_vl", "site-pi5")),
        camera_id(TOPICS, "door"),
        camera_id(TOPICS, "front-door"),
        camera_id(TOPICS, "front_door"),
        camera_id(NodeTopics("edge_vl", "pi5-camera-front"), "door"),
        device_id("edge_vl", "pi5", "camera", "front", "door"),
    ]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", id) for id in ids)


def test_hundreds_of_questions_fit_and_too_many_are_refused_before_they_are_sent() -> None:
    def camera(num_questions: int) -> CameraConfig:
        when = tuple(WhenConfig(f"question_{number:04}", "Is it so?") for number in range(num_questions))
        return CameraConfig("door", "0", when=when)

    device = camera_device(TOPICS, camera(300))
    assert len(device.message("homeassistant").payload) < MAX_PAYLOAD_BYTES
    with pytest.raises(RequestError, match="too many"):
        camera_device(TOPICS, camera(3000)).message("homeassistant")


def test_a_device_is_removed_by_an_empty_retained_message() -> None:
    message = removal("homeassistant", gateway_id(TOPICS))
    assert (message.topic, message.payload, message.is_retained) == (
        "homeassistant/device/edge_vl-pi5/config",
        b"",
        True,
    )


def test_the_guide_names_every_entity_and_its_gateway_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "home_assistant.md").read_text()
    file = tmp_path / "gateway.toml"
    file.write_text(guide.partition("```toml\n")[2].partition("```")[0])
    monkeypatch.setenv("MQTT_PASSWORD", "secret")
    config = read_gateway_file(file)
    assert config.home_assistant.is_enabled
    devices = [
        gateway_device(TOPICS, model="bundled", stats_every_s=30.0),
        camera_device(TOPICS, config.cameras[0]),
    ]
    for device in devices:
        assert f"| `{device.name}` |" in guide
        for name, component in device.components.items():
            kind = component["platform"].replace("_", " ")
            assert f"| {component['name']} | {kind} |" in guide, name
