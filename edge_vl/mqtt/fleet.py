"""The gateways of an installation, as the broker tells of them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from edge_vl.errors import BrokerError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.broker_url import read_broker_url
from edge_vl.mqtt.node_messages import CameraAnswer, CameraEvent, CameraStateMessage, Info
from edge_vl.mqtt.packet import Inbound, QoS
from edge_vl.mqtt.running_session import RunningSession
from edge_vl.mqtt.topics import NAME, check_prefix

__all__ = ["Fleet", "Gateway", "Heard"]

_OUTBOX_BYTES = 1024 * 1024
_MAX_WAITING = 1024

T = TypeVar("T")


@dataclass(slots=True)
class Gateway:
    """What is known of one.

    Attributes:
        status: `online`, `stopped` or `offline`; empty: not known.
        info: what it is; None: not known.
        cameras: the state of each, by name.
    """

    status: str = ""
    info: Info | None = None
    cameras: dict[str, CameraStateMessage] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "status": self.status or "unknown",
            "info": msgspec.to_builtins(self.info),
            "cameras": {name: msgspec.to_builtins(state) for name, state in sorted(self.cameras.items())},
        }


@dataclass(frozen=True, slots=True)
class Heard:
    """A camera's answer or event, and the gateway that it came from."""

    node: str
    message: CameraAnswer | CameraEvent


class Fleet:
    """Listens to all gateways under a prefix. Use it in `async with`.

    Attributes:
        gateways: what is known of each, by name.
    """

    def __init__(
        self,
        broker: str | BrokerSettings = "mqtt://127.0.0.1",
        *,
        prefix: str | None = None,
        password: str | None = None,
    ) -> None:
        """Check the arguments; nothing is connected yet.

        Args:
            broker: `mqtt://user@host:port/prefix`, `mqtts://...` with TLS, or settings.
            prefix: what all topics begin with; None: as the address says, else `edge_vl`.
            password: for the user in the address.

        Raises:
            RequestError: one of them makes no sense.
        """
        if isinstance(broker, BrokerSettings):
            settings, url_prefix = broker, None
        else:
            settings, url_prefix = read_broker_url(broker, password=password, field="broker")
        prefix = check_prefix(prefix if prefix is not None else url_prefix or "edge_vl")
        self.gateways: dict[str, Gateway] = {}
        self._about = re.compile(f"{re.escape(prefix)}/({NAME})/(?:(status|info)|camera/({NAME})/(state|answer|event))")
        self._heard: asyncio.Queue[Heard | BrokerError] = asyncio.Queue(_MAX_WAITING)
        self._stirred = asyncio.Event()
        filters: dict[str, QoS] = {f"{prefix}/+/{what}": 1 for what in ("status", "info")}
        filters |= {f"{prefix}/+/camera/+/{what}": 1 for what in ("state", "answer", "event")}
        self._running = RunningSession(
            settings,
            filters=filters,
            on_message=self._hear,
            on_end=self._put,
            outbox_bytes=_OUTBOX_BYTES,
            client_id_stem="edge_vl-fleet",
        )

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerError: the broker is not to be reached, or refuses.
        """
        await self._running.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect."""
        await self._running.close()

    async def settle(self, *, quiet_s: float = 0.5, timeout_s: float = 2.0) -> None:
        """Wait until what the broker has kept is in: until nothing came for a moment."""
        until_s = time.monotonic() + timeout_s
        while (now_s := time.monotonic()) < until_s:
            self._stirred.clear()
            try:
                await asyncio.wait_for(self._stirred.wait(), min(quiet_s, until_s - now_s))
            except TimeoutError:
                return

    async def heard(self) -> AsyncIterator[Heard]:
        """Yield answers and events of cameras as they come; the oldest are dropped while nobody takes them.

        Raises:
            BrokerError: the broker cannot be used any more.
        """
        while True:
            item = await self._heard.get()
            if isinstance(item, BrokerError):
                raise item.again()
            yield item

    def _hear(self, inbound: Inbound) -> None:
        found = self._about.fullmatch(inbound.topic)
        if found is None:
            return
        self._stirred.set()
        node, what, camera, of_camera = found.groups()
        gateway = self.gateways.setdefault(node, Gateway())
        if what == "status":
            status = inbound.payload.decode(errors="replace")
            gateway.status = status if status in ("online", "stopped", "offline") else ""
        elif what == "info":
            gateway.info = _read(inbound.payload, Info)
        elif of_camera == "state":
            state = _read(inbound.payload, CameraStateMessage)
            if state is None:
                gateway.cameras.pop(camera, None)
            else:
                gateway.cameras[camera] = state
        elif not inbound.is_retained:
            message: CameraAnswer | CameraEvent | None
            if of_camera == "answer":
                message = _read(inbound.payload, CameraAnswer)
            else:
                message = _read(inbound.payload, CameraEvent)
            if message is not None:
                self._put(Heard(node, message))

    def _put(self, item: Heard | BrokerError) -> None:
        if self._heard.full():
            self._heard.get_nowait()
        self._heard.put_nowait(item)


def _read(payload: bytes, kind: type[T]) -> T | None:
    """Read a message; None if it is none of that kind, whoever has sent it."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
