"""Discovery messages of Home Assistant for whole devices. Pure.

Source:
    home-assistant.io, integrations/mqtt: device discovery payload (core 2024.12 and newer), availability, birth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_vl import __version__
from edge_vl.errors import RequestError
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.topics import NodeTopics

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "Component",
    "Device",
    "device_id",
    "gateway_availability",
    "gateway_id",
    "removal",
    "topic_of",
]

MAX_PAYLOAD_BYTES = 128_000
"""Brokers of clouds take messages of 128 KB."""

Component = Mapping[str, Any]
"""One entity: its `platform`, and what the documentation of that platform says."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device and its entities.

    Attributes:
        id: names it in topics and ids; letters, digits, _ and -. The same after every restart.
        name: for people; the entities' names follow it.
        model: what it is.
        components: by their own short names.
        availability: topics that say whether its entities are available, unless an entity has its own; all must agree.
        via: id of the device that it is reached through; None: none.
    """

    id: str
    name: str
    model: str
    components: Mapping[str, Component]
    availability: tuple[Mapping[str, str], ...]
    via: str | None = None

    def payload(self) -> dict[str, Any]:
        """Return the discovery message, JSON-ready."""
        device: dict[str, Any] = {
            "identifiers": [self.id],
            "name": self.name,
            "manufacturer": "edge_vl",
            "model": self.model,
            "sw_version": __version__,
        }
        if self.via is not None:
            device["via_device"] = self.via
        return {
            "device": device,
            "origin": {"name": "edge_vl", "sw_version": __version__},
            "availability": [dict(topic) for topic in self.availability],
            "availability_mode": "all",
            "qos": 1,
            "components": {
                name: {**component, "unique_id": f"{self.id}-{name}"} for name, component in self.components.items()
            },
        }

    def message(self, discovery_prefix: str) -> Outbound:
        """Return the message that makes it appear.

        It is not retained: Home Assistant asks for it by its birth message. A retained one would bring devices back
        that are gone, long after their gateway was switched off for good.

        Raises:
            RequestError: it has so many entities that no broker may take it.
        """
        payload = json.dumps(self.payload(), ensure_ascii=False, separators=(",", ":")).encode()
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise RequestError(
                f"{self.name} has too many yes/no questions to be announced to Home Assistant: {len(payload)} bytes "
                f"where {MAX_PAYLOAD_BYTES} may be sent",
                field="when",
            )
        return Outbound(topic_of(discovery_prefix, self.id), payload, content_type="application/json")


def topic_of(discovery_prefix: str, device_id: str) -> str:
    """Return where the discovery message of a device goes."""
    return f"{discovery_prefix}/device/{device_id}/config"


def removal(discovery_prefix: str, device_id: str) -> Outbound:
    """Return the message that makes a device and all its entities disappear."""
    return Outbound(topic_of(discovery_prefix, device_id), b"", is_retained=True)


def device_id(*names: str) -> str:
    """Return an id made from names; different names give different ids unless one begins or ends with `-`."""
    return "-".join(name.replace("-", "--").replace("/", "-") for name in names)


def gateway_id(topics: NodeTopics) -> str:
    """Return the id of a gateway's device."""
    return device_id(topics.prefix, topics.node)


def gateway_availability(topics: NodeTopics) -> Mapping[str, str]:
    """Say that entities are available while the gateway is online: not `stopped`, not `offline`."""
    return {"topic": topics.status, "value_template": "{{ 'online' if value == 'online' else 'offline' }}"}
