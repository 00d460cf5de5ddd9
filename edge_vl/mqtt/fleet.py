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

from edge_vl.errors import BrokerError, RequestError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.broker_url import read_broker_url
from edge_vl.mqtt.node_messages import CameraAnswer, CameraEvent, CameraStateMessage, Info
from edge_vl.mqtt.packet import Inbound, QoS
from edge_vl.mqtt.running_session import RunningSession
from edge_vl.mqtt.topics import NAME, check_prefix

__all__ = ["Fleet", "Gateway", "Heard"]

_OUTBOX_BYTES = 1024 * 1024
_MAX_WAITING = 1024
_MAX_WAITING_BYTES = 8 * 1024 * 1024
_MAX_GATEWAYS = 1024
_MAX_GATEWAY_BYTES = 256 * 1024
_MAX_KNOWN_BYTES = 8 * 1024 * 1024
_ENTRY_BYTES = 256

T = TypeVar("T")


@dataclass(slots=True)
class Gateway:
    """What is known of one.

    Attributes:
        status: `online`, `stopped` or `offline`; empty: not known.
        info: what it is; None: not known.
        cameras: the last state of each, by name; how they are now is not known of a gateway that is not online.
    """

    status: str = ""
    info: Info | None = None
    cameras: dict[str, CameraStateMessage] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form. Of a gateway that is not online, a camera's `last_status` is what it said last."""
        cameras = {name: msgspec.to_builtins(state) for name, state in sorted(self.cameras.items())}
        if self.status != "online":
            for camera in cameras.values():
                camera["last_status"], camera["status"] = camera["status"], "unknown"
        return {"status": self.status or "unknown", "info": msgspec.to_builtins(self.info), "cameras": cameras}


@dataclass(frozen=True, slots=True)
class Heard:
    """A camera's answer or event, and the gateway that it came from."""

    node: str
    message: CameraAnswer | CameraEvent


class Fleet:
    """Listens to all gateways under a prefix. Use it in `async with`.

    Anybody whom the broker lets in may call itself a gateway. So only the 1,024 heard of last are known, fewer where
    they say more than 8 MiB of themselves, and as much waits to be taken by `heard`.

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
        self._settings = settings
        self._about = re.compile(f"{re.escape(prefix)}/({NAME})/(?:(status|info)|camera/({NAME})/(state|answer|event))")
        self._filters: dict[str, QoS] = {f"{prefix}/+/{what}": 1 for what in ("status", "info")}
        self._filters |= {f"{prefix}/+/camera/+/{what}": 1 for what in ("state", "answer", "event")}
        self._running: RunningSession | None = None
        self._begin()

    async def __aenter__(self) -> Self:
        """Connect, and begin anew.

        Raises:
            BrokerError: the broker is not to be reached, or refuses.
            RequestError: it is connected already.
        """
        if self._running is not None:
            raise RequestError("the fleet is connected already: one `async with` at a time", field="fleet")
        self._begin()
        self._running = RunningSession(
            self._settings,
            filters=self._filters,
            on_message=self._hear,
            on_end=self._put,
            outbox_bytes=_OUTBOX_BYTES,
            client_id_stem="edge_vl-fleet",
        )
        try:
            await self._running.open()
        except BaseException:
            self._running = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect."""
        running, self._running = self._running, None
        if running is not None:
            await running.close()

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
            item, num_bytes = await self._heard.get()
            self._num_heard_bytes -= num_bytes
            if isinstance(item, BrokerError):
                raise item.again()
            yield item

    def _begin(self) -> None:
        """Know nothing, and have heard nothing."""
        self.gateways.clear()
        self._sizes: dict[str, dict[str, int]] = {}
        self._num_known_bytes = 0
        self._heard: asyncio.Queue[tuple[Heard | BrokerError, int]] = asyncio.Queue(_MAX_WAITING)
        self._num_heard_bytes = 0
        self._stirred = asyncio.Event()

    def _hear(self, inbound: Inbound) -> None:
        found = self._about.fullmatch(inbound.topic)
        if found is None:
            return
        self._stirred.set()
        node, what, camera, of_camera = found.groups()
        is_kept = of_camera in (None, "state")
        gateway = self._known(node, what or f"camera/{camera}", len(inbound.payload) if is_kept else None)
        if gateway is None:
            return
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
                self._put(Heard(node, message), len(inbound.payload))

    def _known(self, node: str, what: str, num_bytes: int | None) -> Gateway | None:
        """Return a gateway that was heard of; None: it says too much of itself.

        Forgets those that were not heard of for longest where all of them are too much.

        Args:
            node: its name.
            what: what it says.
            num_bytes: what is to be noted of that; None: nothing is, and what was noted before stays.
        """
        sizes = self._sizes.get(node, {})
        if num_bytes is not None:
            num_more = num_bytes + _ENTRY_BYTES - sizes.get(what, 0)
            if sum(sizes.values()) + num_more > _MAX_GATEWAY_BYTES:
                return None
            sizes[what] = num_bytes + _ENTRY_BYTES
            self._num_known_bytes += num_more
        self._sizes[node] = sizes
        gateway = self.gateways.pop(node) if node in self.gateways else Gateway()
        self.gateways[node] = gateway
        while len(self.gateways) > _MAX_GATEWAYS or self._num_known_bytes > _MAX_KNOWN_BYTES:
            oldest = next(iter(self.gateways))
            del self.gateways[oldest]
            self._num_known_bytes -= sum(self._sizes.pop(oldest).values())
        return gateway

    def _put(self, item: Heard | BrokerError, num_bytes: int = 0) -> None:
        if num_bytes > _MAX_WAITING_BYTES:
            return
        while self._heard.full() or self._num_heard_bytes + num_bytes > _MAX_WAITING_BYTES:
            self._num_heard_bytes -= self._heard.get_nowait()[1]
        self._num_heard_bytes += num_bytes
        self._heard.put_nowait((item, num_bytes))


def _read(payload: bytes, kind: type[T]) -> T | None:
    """Read a message; None if it is none of that kind, whoever has sent it."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
