"""A gateway's camera as a device of Home Assistant. Pure."""

from __future__ import annotations

from edge_vl.gateway.camera_commands import MAX_EVERY_S, PRESS
from edge_vl.gateway.config import CameraConfig
from edge_vl.home_assistant.discovery import Component, Device, device_id, gateway_availability, gateway_id
from edge_vl.mqtt.topics import NodeTopics

__all__ = ["camera_device", "camera_id"]

MAX_STATE_CHARS = 255
"""Of any state of Home Assistant; a question may be longer."""


def camera_id(topics: NodeTopics, camera: str) -> str:
    """Return the id of a camera's device."""
    return device_id(topics.prefix, topics.node, "camera", camera)


def camera_device(topics: NodeTopics, camera: CameraConfig) -> Device:
    """Return a camera's device.

    What the camera sees is available while gateway and camera are online; what it is told to do and whether it is
    connected, while the gateway is.

    Args:
        topics: of the gateway.
        camera: its part of the gateway file.
    """
    state, last = topics.camera(camera.name, "state"), topics.camera(camera.name, "answer/last")
    gateway = gateway_availability(topics)
    of_gateway = {"availability": [dict(gateway)]}
    seen = {
        "topic": state,
        "value_template": "{{ 'online' if value_json.status == 'online' else 'offline' }}",
    }

    def setting(platform: str, name: str, command: str, icon: str) -> dict[str, object]:
        return {
            "platform": platform,
            "name": name,
            "command_topic": topics.camera(camera.name, f"{command}/set"),
            "state_topic": topics.camera(camera.name, f"{command}/state"),
            "icon": icon,
            **of_gateway,
        }

    def number(name: str, value: str, icon: str) -> Component:
        return {
            "platform": "sensor",
            "name": name,
            "state_topic": last,
            "value_template": f"{{{{ value_json.{value} }}}}",
            "unit_of_measurement": "ms",
            "device_class": "duration",
            "state_class": "measurement",
            "suggested_display_precision": 0,
            "entity_category": "diagnostic",
            "icon": icon,
        }

    components: dict[str, Component] = {
        "last_answer": {
            "platform": "sensor",
            "name": "Last answer",
            "state_topic": last,
            "value_template": "{{ value_json.state }}",
            "json_attributes_topic": last,
            "icon": "mdi:eye-outline",
        },
        "enabled": {
            **setting("switch", "Enabled", "enabled", "mdi:cctv"),
            "payload_on": "ON",
            "payload_off": "OFF",
        },
        "question": {
            **setting("text", "Question", "question", "mdi:comment-question-outline"),
            "min": 0,
            "max": MAX_STATE_CHARS,
            "value_template": f"{{{{ value[:{MAX_STATE_CHARS}] }}}}",
            "entity_category": "config",
        },
        "every_s": {
            **setting("number", "Seconds between answers", "every_s", "mdi:timer-refresh-outline"),
            "min": 0,
            "max": MAX_EVERY_S,
            "step": 0.1,
            "mode": "box",
            "unit_of_measurement": "s",
            "entity_category": "config",
        },
        "ask": {
            "platform": "button",
            "name": "Ask now",
            "command_topic": topics.camera(camera.name, "ask/set"),
            "payload_press": PRESS,
            "icon": "mdi:comment-eye-outline",
        },
        "connected": {
            "platform": "binary_sensor",
            "name": "Connection",
            "state_topic": state,
            "value_template": "{{ 'ON' if value_json.status == 'online' else 'OFF' }}",
            "json_attributes_topic": state,
            "device_class": "connectivity",
            "entity_category": "diagnostic",
            **of_gateway,
        },
        "first_token": number("First token", "first_token_ms", "mdi:timer-outline"),
        "frame_age": number("Frame age", "frame.age_ms", "mdi:image-clock-outline"),
    }
    for when in camera.when:
        components[f"when_{when.name}"] = {
            "platform": "binary_sensor",
            "name": when.name.replace("_", " ").replace("-", " ").strip().capitalize() or when.name,
            "state_topic": state,
            "value_template": f"{{{{ {{true: 'ON', false: 'OFF'}}.get(value_json.when['{when.name}'], 'None') }}}}",
            "icon": "mdi:help-circle-outline",
        }
    if camera.snapshot:
        components["snapshot"] = {
            "platform": "image",
            "name": "Snapshot",
            "image_topic": topics.camera(camera.name, "snapshot"),
            "content_type": "image/jpeg",
        }
    return Device(
        id=camera_id(topics, camera.name),
        name=f"{topics.node} {camera.name}",
        model="Camera with questions",
        availability=(gateway, seen),
        components=components,
        via=gateway_id(topics),
    )
