"""The gateway: what comes in over the link goes to one of its desks, and what they say goes out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from edge_vl.errors import BrokerError
from edge_vl.gateway.answering import Answering
from edge_vl.gateway.camera_desk import CameraDesk
from edge_vl.gateway.config import GatewayConfig
from edge_vl.gateway.conversations import Conversations
from edge_vl.gateway.group_desk import GroupDesk
from edge_vl.gateway.image_shelf import ImageShelf
from edge_vl.gateway.journal import Journal
from edge_vl.gateway.node_state import NodeState
from edge_vl.gateway.presence_watch import PresenceWatch
from edge_vl.gateway.ready_line import ready_line
from edge_vl.gateway.request_desk import RequestDesk
from edge_vl.gateway.request_images import RequestImages
from edge_vl.gateway.stray_commands import StrayCommands
from edge_vl.home_assistant.announcer import Announcer
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.node_messages import CameraStats, LinkStats
from edge_vl.mqtt.packet import Inbound, Outbound, QoS
from edge_vl.mqtt.reply_rule import ReplyRule
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import GroupTopics, NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog, tell_left_out
from edge_vl.runtime import Runtime
from edge_vl.sources.source import LiveSource

__all__ = ["Gateway"]

_log = logging.getLogger(__name__)

_TIDY_EVERY_S = 5.0

_GOODBYE_S = 0.5
"""What closing the connection may take of the time for a stop."""

_LEAST_SEND_S = 0.3
"""How long the last messages may take in any case."""


class Gateway:
    """Answers questions over MQTT, and tells what its cameras see. Belongs to one event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        runtime: Runtime,
        cameras: Mapping[str, LiveSource] | None = None,
        *,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        """Connect nothing yet.

        Args:
            config: what the gateway file says.
            runtime: answers; it must take as many requests at once as `num_requests` says. Whoever opened it closes it.
            cameras: by the names in the file; whoever opened them closes them.
            on_ready: called when it is connected for the first time.
        """
        self._config = config
        self._on_ready = on_ready
        self._rated_log = RateLimitedLog(_log)
        self._topics = NodeTopics(config.prefix, config.node)
        self._model = runtime.model.name
        self._is_ready = False
        self._is_online = False
        self._is_stopping = False
        self._failure: BrokerError | None = None
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        sources = {} if cameras is None else dict(cameras)
        boot_id = secrets.token_hex(8)
        limits = config.limits
        self._state = NodeState(config, runtime, boot_id)
        self._presence = PresenceWatch(
            self._topics,
            config.broker.username,
            boot_id,
            self._state.started_at,
            say=self._say_again,
            leave=self._leave,
        )
        self._session = Session(
            config.broker,
            filters={},
            on_message=self._handle,
            on_connect=self._hello,
            will=self._status("offline"),
            before_send=self._settle,
            on_state=self._note_link,
            on_refused=lambda message, reason: self._presence.refused(message, reason),
            outbox_bytes=limits.outbox_mib << 20,
            client_id_stem=f"edge_vl-{config.node}",
        )
        rule = ReplyRule(config.prefix, config.reply_prefixes, config.home_assistant.discovery_prefix)
        shelf = ImageShelf(
            max_image_bytes=limits.max_image_bytes,
            max_bytes=limits.max_images_bytes,
            max_wait_s=limits.image_wait_s,
            clock=asyncio.get_running_loop().time,
        )
        self._conversations = Conversations(runtime, limits.max_conversations)
        images = RequestImages(
            sources,
            config.folders,
            shelf,
            self._topics,
            max_image_bytes=limits.max_image_bytes,
            max_bytes=limits.max_images_bytes,
        )
        answering = Answering(
            runtime,
            images,
            self._conversations,
            broker_rtt_s=lambda: self._session.link.expected_s() if self._session.link.num_exchanges else None,
            on_answer=self._state.note_answer,
        )
        group = None if config.group is None else GroupTopics(config.prefix, config.group)
        self._group = None
        if group is not None:
            self._group = GroupDesk(
                self._topics,
                group,
                boot_id,
                self._session,
                rule,
                is_online=lambda: self._is_online,
                drop=lambda active: self._requests.drop(active),
            )
        self._journal = None if config.state_dir is None else Journal(config.state_dir)
        self._requests = RequestDesk(
            self._topics,
            limits,
            self._session,
            rule,
            answering,
            shelf,
            self._state,
            model=runtime.model.name,
            journal=self._journal,
            group=group,
            group_desk=self._group,
        )
        self._cameras = {
            camera.name: CameraDesk(camera, self._topics, runtime, sources[camera.name], self._session)
            for camera in config.cameras
            if camera.name in sources
        }
        self._stray = StrayCommands(self._topics, [camera.name for camera in config.cameras], self._session)
        self._announcer = None
        if config.home_assistant.is_enabled:
            self._announcer = Announcer(config, self._topics, self._session, self._states, model=runtime.model.name)

    @staticmethod
    def num_requests(config: GatewayConfig) -> int:
        """Return how many requests the runtime of a gateway must take at once: those of clients, and each camera's."""
        return config.limits.max_active + 2 * len(config.cameras) + 2

    async def run(self) -> None:
        """Serve until `stop`, then return when everything is told.

        Raises:
            BrokerError: the broker cannot be used, and trying again would not help; or another gateway has its name.
        """
        await self._session.subscribe(self._filters())
        self._requests.tell_of_crash()
        session = asyncio.create_task(self._session.run(), name="link")
        for desk in self._cameras.values():
            self._keep(desk.run())
        self._keep(self._every(self._config.stats_every_s, self._tell_stats))
        self._keep(self._every(_TIDY_EVERY_S, self._tidy))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({session, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if session.done() and not self._is_stopping:
                await self.stop()  # the link is lost for good: end what runs
            await session
            if self._failure is not None:
                raise self._failure.again()
        finally:
            self._presence.lost()
            stopped.cancel()
            session.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(session, stopped, *self._tasks, return_exceptions=True)
            self._conversations.close()
            if self._group is not None:
                self._group.close()
            if self._announcer is not None:
                self._announcer.close()
            if self._journal is not None:
                self._journal.close()

    async def stop(self) -> None:
        """End all requests with `aborted`/`shutdown`, say that it has stopped, and disconnect. May be called twice."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._announcer is not None:
            self._announcer.close()
        until_s = time.monotonic() + self._config.limits.shutdown_s - _GOODBYE_S
        for desk in self._cameras.values():
            desk.close()
        if self._group is not None and self._is_online:
            self._group.go_on()  # else the ends of what is held would be held, too
        await self._requests.stop()
        self._is_online = False
        timeout_s = max(_LEAST_SEND_S, until_s - time.monotonic())
        last = [self._status("stopped")] if self._failure is None else []  # the other one of its name is online
        await self._session.stop(last=last, timeout_s=timeout_s)
        self._stopped.set()

    # The link

    def _filters(self) -> dict[str, QoS]:
        filters: dict[str, QoS] = dict(self._requests.filters())
        filters[self._topics.camera("+", "+/set")] = 1
        if self._group is None:
            filters |= {self._topics.status: 1, self._topics.info: 1}
        else:
            filters |= self._group.filters()
        if self._announcer is not None:
            filters |= self._announcer.filters()
        return filters

    async def _settle(self) -> None:
        if self._group is not None:
            await self._group.settle()

    def _hello(self) -> Iterable[Outbound]:
        """Return what is said first on every connection; `online` is behind all that it promises."""
        self._is_online = not self._is_stopping
        if self._group is not None:
            self._group.back()
        announced = () if self._announcer is None else self._announcer.messages()
        return [*announced, *self._states()]

    def _states(self) -> Iterable[Outbound]:
        """Return what it is and how it is, as the broker keeps it; a gateway that stops is not online any more."""
        yield self._info()
        for desk in self._cameras.values():
            yield from desk.states()
        if not self._is_stopping:
            yield self._status("online")

    def _note_link(self, state: str, text: str) -> None:
        if state == "connected":
            if self._journal is not None:
                self._journal.note_tried()
            _log.info("connected to the broker%s", f": {text}" if text else "")
            self._presence.connected()
            if not self._is_ready:
                self._is_ready = True
                _log.info("ready: %s", ready_line(self._config, self._model))
                self._on_ready()
        elif state == "lost":
            self._rated_log.warning("lost", "%s", text)
        elif state == "unreachable":
            self._rated_log.warning("unreachable", "%s", text)
        if state != "connected":
            self._presence.lost()
            self._is_online = False
            if self._group is not None and not self._is_stopping:
                self._group.note_away()

    def _handle(self, inbound: Inbound) -> None:
        try:
            if inbound.topic == self._topics.info:
                self._presence.hear(inbound)
            is_own_status = inbound.topic == self._topics.status
            if is_own_status:
                self._heal_status(inbound)
            if (self._group is not None and self._group.handle(inbound)) or is_own_status:
                return
            if self._requests.handle(inbound) or any(desk.handle(inbound) for desk in self._cameras.values()):
                return
            if self._stray.handle(inbound):
                return
            if self._announcer is not None:
                self._announcer.handle(inbound)
        except Exception as error:  # a defect of ours must not end the link
            self._rated_log.warning(
                "defect", "a message on a topic of ours failed with %s: %s", type(error).__name__, error
            )
            _log.debug("the traceback", exc_info=error)

    def _heal_status(self, inbound: Inbound) -> None:
        """Say again that it is online when a will, late by a dead connection, or anybody else says otherwise."""
        if self._is_online and not self._is_stopping and inbound.payload != b"online":
            self._session.post(self._status("online"), "latest")

    def _leave(self, failure: BrokerError) -> None:
        """End, and leave what the broker keeps to the other gateway of this name."""
        if self._failure is None and not self._is_stopping:
            self._failure = failure
            self._keep(self.stop())

    # What it says

    def _say_again(self) -> None:
        if self._is_online and not self._is_stopping:
            for message in self._states():
                self._session.post(message, "latest")

    def _status(self, status: str) -> Outbound:
        return Outbound(self._topics.status, status.encode(), is_retained=True, content_type="text/plain")

    def _info(self) -> Outbound:
        info = self._state.info(self._session.protocol)
        return Outbound(self._topics.info, encode(info), is_retained=True, content_type="application/json")

    def _tell_stats(self) -> None:
        link = self._session.link
        stats = self._state.stats(
            num_active=self._requests.num_active,
            num_waiting=self._requests.num_waiting,
            num_conversations=len(self._conversations),
            link=LinkStats(
                connections=self._session.num_connections,
                rtt_ms=round(link.expected_s() * 1000, 3) if link.num_exchanges else None,
                window_ms=round(link.window_s("text") * 1000, 3),
                outbox_bytes=self._session.outbox_bytes,
                num_dropped=self._session.num_lost,
            ),
            cameras=self._camera_stats(),
        )
        outbound = Outbound(self._topics.stats, encode(stats), qos=0, content_type="application/json")
        self._session.post(outbound, "drop")

    def _camera_stats(self) -> dict[str, CameraStats]:
        return {name: desk.stats() for name, desk in self._cameras.items()}

    def _tidy(self) -> None:
        tell_left_out()
        if self._group is not None:
            self._group.tidy()

    async def _every(self, every_s: float, work: Callable[[], None]) -> None:
        """Do something from time to time; a failure is told, and the next time it is tried again."""
        while True:
            await asyncio.sleep(every_s)
            try:
                work()
            except Exception as error:
                self._rated_log.warning("task", "%s failed with %s: %s", work.__name__, type(error).__name__, error)
                _log.debug("the traceback", exc_info=error)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something until the end; what it raises is told, and ends nothing else."""
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await work
            except Exception:
                _log.exception("a part of the gateway ended")
