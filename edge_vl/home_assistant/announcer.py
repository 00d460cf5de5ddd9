"""Tells Home Assistant what is there: at each connect, and when it says that it has come up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from edge_vl.gateway.config import GatewayConfig
from edge_vl.home_assistant.camera_device import camera_device, camera_id
from edge_vl.home_assistant.discovery import Device, gateway_id, removal
from edge_vl.home_assistant.gateway_device import gateway_device
from edge_vl.mqtt.packet import Inbound, Outbound, QoS
from edge_vl.mqtt.topics import NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from edge_vl.gateway.camera_voice import Outlet

__all__ = ["Announcer", "removals"]

_log = logging.getLogger(__name__)

BIRTH_DELAY_S = (2.0, 6.0)
"""How long after its birth message Home Assistant is told: it is not ready at once, and not only we answer."""

STATES_DELAY_S = 1.0
"""From the discovery messages to the states: entities listen only when they are made."""


class Announcer:
    """Sends discovery messages. On the event loop's thread.

    Home Assistant sends `online` to `<discovery_prefix>/status` when it has started. It is answered after a random
    pause with the discovery messages and then with the states, once, however often it says so meanwhile.
    """

    def __init__(
        self,
        config: GatewayConfig,
        topics: NodeTopics,
        outlet: Outlet,
        states: Callable[[], Iterable[Outbound]],
        *,
        model: str,
    ) -> None:
        """Prepare the messages.

        Args:
            config: the whole gateway.
            topics: of the gateway.
            outlet: takes messages to the broker.
            states: makes everything that entities show: `status`, `info`, and what the cameras' desks tell.
            model: what the gateway runs.

        Raises:
            RequestError: a camera has too many entities to be announced.
        """
        prefix = config.home_assistant.discovery_prefix
        self._birth_topic = f"{prefix}/status"
        self._outlet = outlet
        self._states = states
        self._messages = tuple(device.message(prefix) for device in _devices(config, topics, model))
        self._random = random.Random()
        self._rated_log = RateLimitedLog(_log)
        self._pending: asyncio.TimerHandle | None = None
        self._is_closed = False

    def filters(self) -> Mapping[str, QoS]:
        """Return what the session has to subscribe to."""
        return {self._birth_topic: 1}

    def messages(self) -> tuple[Outbound, ...]:
        """Return the discovery messages, to be sent at each connect before the states."""
        return self._messages

    def handle(self, inbound: Inbound) -> bool:
        """Hear a birth message; False: the message is something else. Never raises.

        A retained one counts as well: it says that Home Assistant is there now.
        """
        if inbound.topic != self._birth_topic:
            return False
        if inbound.payload == b"online" and self._pending is None and not self._is_closed:
            self._rated_log.info("birth", "Home Assistant has come up")
            delay_s = self._random.uniform(*BIRTH_DELAY_S)
            self._pending = asyncio.get_running_loop().call_later(delay_s, self._announce)
        return True

    def close(self) -> None:
        """Tell nothing any more."""
        self._is_closed = True
        if self._pending is not None:
            self._pending.cancel()

    def _announce(self) -> None:
        for message in self._messages:
            self._outlet.post(message, "latest")
        self._pending = asyncio.get_running_loop().call_later(STATES_DELAY_S, self._tell_states)

    def _tell_states(self) -> None:
        self._pending = None
        for message in self._states():
            self._outlet.post(message, "latest")


def removals(config: GatewayConfig, topics: NodeTopics) -> tuple[Outbound, ...]:
    """Return the messages that make a gateway and its cameras disappear from Home Assistant."""
    prefix = config.home_assistant.discovery_prefix
    ids = [*(camera_id(topics, camera.name) for camera in config.cameras), gateway_id(topics)]
    return tuple(removal(prefix, device_id) for device_id in ids)


def _devices(config: GatewayConfig, topics: NodeTopics, model: str) -> Iterable[Device]:
    yield gateway_device(topics, model=model, stats_every_s=config.stats_every_s)
    for camera in config.cameras:
        yield camera_device(topics, camera)
