"""The gateway as a device of Home Assistant. Pure."""

from __future__ import annotations

from edge_vl.home_assistant.discovery import Component, Device, gateway_availability, gateway_id
from edge_vl.mqtt.topics import NodeTopics

__all__ = ["gateway_device"]

_MISSED_STATS = 3
"""Statistics that may be missing before their sensors say that nothing is known."""


def gateway_device(topics: NodeTopics, *, model: str, stats_every_s: float) -> Device:
    """Return the gateway's device.

    Args:
        topics: of the gateway.
        model: what it runs.
        stats_every_s: how often it publishes its statistics.
    """
    expire_s = int(_MISSED_STATS * stats_every_s) + 10

    def statistic(name: str, field: str, icon: str, precision: int, **more: str) -> Component:
        return {
            "platform": "sensor",
            "name": name,
            "state_topic": topics.stats,
            "value_template": f"{{{{ value_json.{field} }}}}",
            "state_class": "measurement",
            "entity_category": "diagnostic",
            "suggested_display_precision": precision,
            "expire_after": expire_s,
            "icon": icon,
            **more,
        }

    return Device(
        id=gateway_id(topics),
        name=f"edge_vl {topics.node}",
        model=model,
        availability=(gateway_availability(topics),),
        components={
            "status": {
                "platform": "sensor",
                "name": "Status",
                "state_topic": topics.status,
                "json_attributes_topic": topics.info,
                "availability": [],  # to say that the gateway is offline is what it is for
                "entity_category": "diagnostic",
                "icon": "mdi:lan-connect",
            },
            "first_token": statistic(
                "First token",
                "first_token_ms",
                "mdi:timer-outline",
                0,
                unit_of_measurement="ms",
                device_class="duration",
            ),
            "tokens_per_s": statistic(
                "Tokens per second", "tokens_per_s", "mdi:speedometer", 1, unit_of_measurement="tokens/s"
            ),
            "waiting": statistic("Requests waiting", "waiting", "mdi:tray-full", 0),
        },
    )
