"""Questions to gateways over a broker, answers as they come."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from edge_vl.errors import Aborted, BrokerError, RequestError
from edge_vl.mqtt.attendant import Attendant
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.broker_url import read_broker_url
from edge_vl.mqtt.exchange import Exchange
from edge_vl.mqtt.messages import ImageRef, Request, StreamMessage
from edge_vl.mqtt.node_messages import Info
from edge_vl.mqtt.packet import Inbound, QoS
from edge_vl.mqtt.presence import Presence
from edge_vl.mqtt.reading import BadPayload, checked_request, read_message
from edge_vl.mqtt.remote_pictures import RawPicture, RemotePicture, take_picture
from edge_vl.mqtt.remote_stream import RemoteStream
from edge_vl.mqtt.request_sender import RequestSender
from edge_vl.mqtt.running_session import RunningSession
from edge_vl.mqtt.topics import NAME, GroupTopics, NodeTopics, check_name, check_prefix

__all__ = ["Client"]

_LOG = logging.getLogger(__name__)

_MAX_TIMEOUT_S = 86_400.0
_OUTBOX_BYTES = 64 * 1024 * 1024
_MAX_MESSAGE_BYTES = 8 * 1024 * 1024
_MAX_INFO_BYTES = 64 * 1024


class Client:
    """Asks one gateway, or a group of them. Keeps one connection; several questions may wait at once.

    Use it in `async with`, in one event loop.

    Example:
        >>> async with Client("mqtt://127.0.0.1", node="kitchen") as client:
        ...     async for text in client.ask("Is the door open?", images=[{"camera": "door"}]):
        ...         print(text, end="")
    """

    def __init__(
        self,
        broker: str | BrokerSettings = "mqtt://127.0.0.1",
        *,
        node: str | None = None,
        group: str | None = None,
        prefix: str | None = None,
        name: str | None = None,
        password: str | None = None,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        """Check the arguments; nothing is connected yet.

        Args:
            broker: `mqtt://user@host:port/prefix`, `mqtts://...` with TLS, or settings.
            node: the gateway that is asked.
            group: the group of gateways of which one is asked; either this or `node`.
            prefix: what all topics begin with; None: as the address says, else `edge_vl`.
            name: what gateways know this client by, a level of the topic of each answer; None: the user's in the
                address, by which the rules of brokers often go; without a user, one made up.
            password: for the user in the address.
            ca: file of trusted certificates; None: the system's.
            cert: certificate of this client.
            key: its key.

        Raises:
            RequestError: one of them makes no sense.
        """
        if isinstance(broker, BrokerSettings):
            self._settings, url_prefix = broker, None
        else:
            self._settings, url_prefix = read_broker_url(
                broker, password=password, ca=ca, cert=cert, key=key, field="broker"
            )
        if (node is None) == (group is None):
            raise RequestError("a client asks either a node or a group: give one of the two", field="node")
        self._prefix = check_prefix(prefix if prefix is not None else url_prefix or "edge_vl")
        self._name = _own_name(self._settings.username) if name is None else check_name(name, "name")
        self._group = group
        self._node = None if node is None else check_name(node, "node")
        self._target: NodeTopics | GroupTopics
        if group is not None:
            self._target = GroupTopics(self._prefix, check_name(group, "group"))
        else:
            self._target = NodeTopics(self._prefix, self._node or "")
        self._presence = Presence()
        self._exchanges: dict[str, Exchange] = {}
        self._attending: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: RunningSession | None = None
        self._attendant: Attendant | None = None
        self._info = b""
        self._has_info = asyncio.Event()
        level = "+" if node is None else node
        self._answers = f"{self._prefix}/{level}/response/{self._name}/+"
        self._filters: dict[str, QoS] = {
            self._answers: 1,
            f"{self._prefix}/{level}/status": 1,
            f"{self._prefix}/{level}/info": 1,
        }
        prefix_pattern = re.escape(self._prefix)
        self._response = re.compile(f"{prefix_pattern}/({NAME})/response/{re.escape(self._name)}/({NAME})")
        self._about = re.compile(f"{prefix_pattern}/({NAME})/(status|info)")

    @property
    def name(self) -> str:
        """What gateways know this client by."""
        return self._name

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerError: the broker is not to be reached, or refuses.
            RequestError: it is connected already.
        """
        if self._loop is not None and not self._loop.is_closed():
            raise RequestError("the client is connected already: one `async with` at a time", field="client")
        self._loop = asyncio.get_running_loop()
        running = RunningSession(
            self._settings,
            filters=self._filters,
            on_message=self._hear,
            on_end=self._fail_all,
            outbox_bytes=_OUTBOX_BYTES,
            client_id_stem=f"edge_vl-{self._name}",
        )
        try:
            await running.open()
        except BaseException:
            self._loop = None
            raise
        self._running = running
        sender = RequestSender(running.session, self._target, self._name)
        self._attendant = Attendant(running.session, sender, self._presence, group=self._group, answers=self._answers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancel what still waits, and disconnect."""
        running, attendant, self._running, self._attendant = self._running, self._attendant, None, None
        self._loop = None
        if attendant is not None:
            for exchange in list(self._exchanges.values()):
                attendant.leave(exchange)
        if running is not None:
            await running.close()
        for task in list(self._attending):
            task.cancel()

    def ask(
        self,
        question: str,
        *,
        images: Sequence[RemotePicture] | RemotePicture = (),
        timeout_s: float = 60.0,
        conversation: str | None = None,
        is_streamed: bool = True,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int = 0,
        max_frame_age_s: float | None = None,
    ) -> RemoteStream:
        """Ask a question. The request goes out at once, whether or not the stream is read.

        Args:
            question: about the pictures.
            images: what the gateway knows, as in `{"camera": "door"}` or `{"file": "stairs.jpg"}`, or pictures of this
                side: a path, encoded bytes, an array, a Pillow image, a frame. Those are sent along.
            timeout_s: seconds until the whole answer must be there; the gateway is told.
            conversation: name of a conversation at the gateway, which remembers what was said before.
            is_streamed: False: the whole answer comes in one message.
            max_tokens: most tokens of the answer.
            temperature: 0 takes the most likely token.
            seed: with a temperature: equal seeds give equal answers.
            max_frame_age_s: oldest frame of a camera that an answer may be about.

        Raises:
            RequestError: an argument makes no sense, or the client is not connected.
            ImageError: a picture is none. What only reading its file can tell is raised by the stream.
            BrokerError: the broker cannot be used any more.
        """
        attendant = self._attendant
        if self._running is None or attendant is None:
            raise RequestError("the client is not connected: use it in `async with`", field="client")
        if _running_loop() is not self._loop:
            raise RequestError(
                "the client is asked in the thread and event loop of its `async with`; from another thread, give "
                "asyncio.run_coroutine_threadsafe a coroutine that asks",
                field="client",
            )
        if self._running.hopeless is not None:
            raise self._running.hopeless.again()
        if not _is_duration(timeout_s):
            raise RequestError(
                f"timeout_s is a number of seconds, 0.001 to {_MAX_TIMEOUT_S:.0f}, not {timeout_s!r:.40}",
                field="timeout_s",
            )
        if max_frame_age_s is not None and not _is_duration(max_frame_age_s):
            raise RequestError(
                f"max_frame_age_s is a number of seconds, 0.001 to {_MAX_TIMEOUT_S:.0f}, not {max_frame_age_s!r:.40}",
                field="max_frame_age_s",
            )
        pictures = [take_picture(picture, index) for index, picture in enumerate(_as_list(images))]
        request = _checked(
            Request(
                id=secrets.token_hex(8),
                client=self._name,
                question=question,
                images=[picture for picture in pictures if isinstance(picture, ImageRef)],
                conversation=conversation,
                stream=is_streamed,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed,
                deadline_ms=max(1, round(timeout_s * 1000)),
                max_frame_age_ms=None if max_frame_age_s is None else max(1, round(max_frame_age_s * 1000)),
            )
        )
        exchange = Exchange(request.id, node=self._node, timeout_s=timeout_s)
        self._exchanges[exchange.id] = exchange
        task = asyncio.create_task(self._attend(attendant, exchange, request, pictures, timeout_s))
        self._attending.add(task)
        task.add_done_callback(self._attending.discard)
        return RemoteStream(exchange, lambda: attendant.cancel(exchange), lambda: attendant.leave(exchange))

    async def info(self, timeout_s: float = 1.0) -> Info | None:
        """Return what the gateway says it is: its cameras, its model, its limits.

        Args:
            timeout_s: how long the broker may take to tell it.

        Returns:
            None: the broker has none, or does not let this user read it, or a group is asked.
        """
        if self._node is None:
            return None
        try:
            await asyncio.wait_for(self._has_info.wait(), timeout_s)
            return read_message(self._info, Info)
        except (TimeoutError, BadPayload):
            return None

    def _fail_all(self, error: BrokerError) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.fail(error.again())

    async def _attend(
        self,
        attendant: Attendant,
        exchange: Exchange,
        request: Request,
        pictures: Sequence[ImageRef | RawPicture],
        timeout_s: float,
    ) -> None:
        try:
            await attendant.attend(exchange, request, pictures, timeout_s)
        finally:
            exchange.fail(Aborted("cancelled", text=exchange.text))  # nothing, where it is settled
            self._exchanges.pop(exchange.id, None)

    def _hear(self, inbound: Inbound) -> None:
        if (found := self._response.fullmatch(inbound.topic)) is not None:
            exchange = self._exchanges.get(found[2])
            if exchange is None or inbound.is_retained or len(inbound.payload) > _MAX_MESSAGE_BYTES:
                return
            try:
                message = msgspec.json.decode(inbound.payload, type=StreamMessage)
            except (msgspec.MsgspecError, RecursionError, ValueError):
                _LOG.debug("a message on %s is none of the contract's and is passed over", inbound.topic)
                return
            if message.id == exchange.id and (message.seq is None or message.seq >= 0):
                exchange.take(found[1], message)
        elif (found := self._about.fullmatch(inbound.topic)) is not None and len(inbound.payload) <= _MAX_INFO_BYTES:
            node, what = found[1], found[2]
            if what == "status":
                status = inbound.payload.decode(errors="replace")
                self._presence.note_status(node, status, inbound.received_s, is_retained=inbound.is_retained)
                return
            if node == self._node:
                self._info = inbound.payload
                self._has_info.set()
            if (known := _identity(inbound.payload)) is not None:
                boot_id, group = known
                self._presence.note_info(node, boot_id, inbound.received_s, group=group)


def _identity(payload: bytes) -> tuple[str, str | None] | None:
    """Return which start of a gateway an info is of, and its group; None if it says nothing of the kind."""
    try:
        info = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    boot_id, group = (info.get("boot_id"), info.get("group")) if isinstance(info, Mapping) else (None, None)
    return (boot_id, group if isinstance(group, str) else None) if isinstance(boot_id, str) else None


def _checked(request: Request) -> Request:
    """Return the request as the gateway would read it, so that what it would refuse is refused here."""
    try:
        return checked_request(request)
    except BadPayload as error:
        raise RequestError(error.message, field=error.param or "request") from None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _as_list(images: Sequence[RemotePicture] | RemotePicture) -> list[Any]:
    return list(images) if isinstance(images, (list, tuple)) else [images]


def _is_duration(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0.001 <= value <= _MAX_TIMEOUT_S  # type: ignore[operator, arg-type]


def _own_name(username: str | None) -> str:
    if username is not None and re.fullmatch(NAME, username) is not None:
        return username
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:40] or "client"
    return f"{host}-{secrets.token_hex(4)}"
