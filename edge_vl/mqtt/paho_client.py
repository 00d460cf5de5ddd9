"""The client of the MQTT library, set up for one connection. The only module that imports the library."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, Any, Literal

from edge_vl.errors import BrokerError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.packet import Outbound

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

__all__ = [
    "MAX_PACKET_BYTES",
    "ErrorKeeper",
    "Version",
    "check_installed",
    "connect_properties",
    "incoming_bytes",
    "message_properties",
    "new_client",
]

Version = Literal["3.1.1", "5"]

MAX_PACKET_BYTES = 17 * 2**20
"""Largest packet that is taken in: a picture of 16 MiB and what goes with it."""

_CONTRACT_VERSION = ("v", "1")


def check_installed() -> None:
    """See that the MQTT library is there.

    Raises:
        BrokerError: it is not (`unsupported`).
    """
    if importlib.util.find_spec("paho") is None or importlib.util.find_spec("paho.mqtt") is None:
        raise BrokerError(
            "MQTT needs a library that is not installed; install it with: pip install 'edge-vl[mqtt]'",
            reason="unsupported",
        )


class ErrorKeeper(logging.Logger):
    """Takes what the MQTT library logs; keeps the last error that it swallowed, and passes nothing on."""

    def __init__(self) -> None:
        super().__init__("edge_vl.mqtt.library")
        self.last: BaseException | None = None

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Keep an error that is named; everything else is dropped unformatted."""
        if level >= logging.WARNING and args and isinstance(args[-1], BaseException):
            self.last = args[-1]


def new_client(
    settings: BrokerSettings, version: Version, client_id: str, will: Outbound | None, errors: ErrorKeeper
) -> Client:
    """Make a client that does nothing of its own accord: it neither connects again nor bounds what is under way."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

    protocol = MQTTProtocolVersion.MQTTv5 if version == "5" else MQTTProtocolVersion.MQTTv311
    client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=protocol, reconnect_on_failure=False)
    client.enable_logger(errors)
    client.connect_timeout = settings.connect_timeout_s
    client.max_inflight_messages_set(0)  # the outbox bounds them
    if settings.username is not None:
        client.username_pw_set(settings.username, settings.password)
    if will is not None:
        properties = message_properties(will, is_will=True) if version == "5" else None
        client.will_set(will.topic, will.payload, will.qos, will.is_retained, properties)
    return client


def connect_properties() -> Properties:
    """Return what a broker of MQTT 5 is asked for: no larger packets than are taken in."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.MaximumPacketSize = MAX_PACKET_BYTES
    return properties


def message_properties(message: Outbound, *, is_will: bool = False) -> Properties:
    """Return what only MQTT 5 carries of a message."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.WILLMESSAGE if is_will else PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if message.content_type:
        properties.ContentType = message.content_type
        properties.UserProperty = _CONTRACT_VERSION
    if message.correlation is not None:
        properties.CorrelationData = message.correlation
    if message.response_topic is not None:
        properties.ResponseTopic = message.response_topic
    if message.expiry_s is not None:
        properties.MessageExpiryInterval = message.expiry_s
    packed: bytes = properties.pack()  # type: ignore[no-untyped-call]
    object.__setattr__(properties, "pack", lambda: packed)  # packing costs as much as the rest of a message
    return properties


def incoming_bytes(client: Client) -> int:
    """Return the size of the packet that is coming in, 0: none is known.

    The library has no bound of its own and no public way to see the size before everything is there, up to 256 MiB. The
    attribute read here is that of its versions 2.1 and 2.2; where it is missing there is no bound.
    """
    try:
        return int(client._in_packet["remaining_length"])
    except (AttributeError, KeyError, TypeError):
        return 0
