"""Takes requests, cancels and raw pictures, and sees to it that each request ends once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from edge_vl.async_answer_stream import AsyncAnswerStream
from edge_vl.gateway.active import ActiveRequest
from edge_vl.gateway.admission import Admission
from edge_vl.gateway.answering import Answering
from edge_vl.gateway.config import Limits
from edge_vl.gateway.early_cancels import EarlyCancels
from edge_vl.gateway.error_facts import late
from edge_vl.gateway.group_desk import GroupDesk
from edge_vl.gateway.image_shelf import ImageShelf
from edge_vl.gateway.journal import Journal, JournalEntry
from edge_vl.gateway.node_state import NodeState
from edge_vl.gateway.reception import Received, Reception
from edge_vl.gateway.stream_writer import StreamWriter
from edge_vl.mqtt.coalescer import Coalescer
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.messages import Aborted, AbortReason, ErrorFacts, StreamMessage
from edge_vl.mqtt.packet import Inbound, Outbound, QoS
from edge_vl.mqtt.reading import BadPayload, read_cancel
from edge_vl.mqtt.reply_rule import ReplyRule
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import GroupTopics, NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog

__all__ = ["RequestDesk"]

_log = logging.getLogger(__name__)

_GRACE_S = 0.5
"""How long work that was told to end may take to say so, when the gateway stops."""


class RequestDesk:
    """Where requests come in. Belongs to the event loop's thread; nothing that comes in can make it raise."""

    def __init__(
        self,
        topics: NodeTopics,
        limits: Limits,
        session: Session,
        rule: ReplyRule,
        answering: Answering,
        shelf: ImageShelf,
        state: NodeState,
        *,
        model: str,
        journal: Journal | None = None,
        group: GroupTopics | None = None,
        group_desk: GroupDesk | None = None,
    ) -> None:
        """Take nothing yet.

        Args:
            topics: of the gateway.
            limits: what it takes on.
            session: the link.
            rule: where answers may go.
            answering: works on a request.
            shelf: for raw pictures.
            state: counts.
            model: name of what answers.
            journal: remembers what is in flight; None: nothing does.
            group: that it shares requests with; None: none.
            group_desk: its part in that group.
        """
        self._topics = topics
        self._limits = limits
        self._session = session
        self._rule = rule
        self._answering = answering
        self._shelf = shelf
        self._state = state
        self._model = model
        self._journal = journal
        self._group = group
        self._group_desk = group_desk
        self._open: dict[tuple[str, str], ActiveRequest] = {}  # by client and id
        self._busy: dict[tuple[str, str], ActiveRequest] = {}  # by topic and id
        self._reception = Reception(
            topics,
            limits,
            rule,
            state,
            session.post,
            group_desk,
            is_open=lambda client, id: (client, id) in self._open,
            is_busy=lambda topic, id: (topic, id) in self._busy,
        )
        self._admission: Admission[ActiveRequest] = Admission(
            max_active=limits.max_active, max_waiting=limits.max_waiting, max_per_client=limits.max_per_client
        )
        self._early_cancels = EarlyCancels(time.monotonic)
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._rated_log = RateLimitedLog(_log)

    @property
    def num_active(self) -> int:
        """Requests that run."""
        return self._admission.num_active

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self._admission.num_waiting

    def filters(self) -> Mapping[str, QoS]:
        """Return what it listens to."""
        filters: dict[str, QoS] = {self._topics.request: 1, self._topics.cancel: 1, self._topics.image_filter: 1}
        if self._group is not None:
            filters |= {self._group.shared_request: 1, self._group.cancel: 1}
        return filters

    def tell_of_crash(self) -> None:
        """Tell the clients of what the process before this one left without an end."""
        if self._journal is None:
            return
        for entry in self._journal.begin():
            if not self._rule.is_allowed(entry.reply_to):
                self._journal.note_ended(entry)
                continue
            message = Aborted(id=entry.id, seq=None, t_ms=0, reason="restart")
            correlation = _correlation_of(entry)
            self._note_when_delivered(entry, self._post(entry.reply_to, message, correlation))

    # What comes in

    def handle(self, inbound: Inbound) -> bool:
        """Take a message if it is for this desk; say whether it is."""
        topic, topics, group = inbound.topic, self._topics, self._group
        is_group = group is not None and topic == group.request
        if topic == topics.request or is_group:
            taken = self._reception.receive(inbound, is_group=is_group)
            if taken is not None:
                self._admit(taken)
        elif topic == topics.cancel or (group is not None and topic == group.cancel):
            if not inbound.is_retained:
                self._cancel(inbound.payload)
        elif topic.startswith(f"{topics.base}/image/"):
            if not inbound.is_retained and not self._shelf.put(topic, inbound.payload):
                self._rated_log.warning("picture", "a raw picture of %d bytes was not kept", len(inbound.payload))
        else:
            return False
        return True

    def _admit(self, taken: Received) -> None:
        request, received_s = taken.request, taken.received_s
        default_ms = round(self._limits.default_deadline_s * 1000)
        deadline_ms = default_ms if request.deadline_ms is None else request.deadline_ms
        entry = None
        if self._journal is not None and not taken.is_group:
            entry = JournalEntry(request.id, request.client, taken.topic, taken.correlation.hex())
        writer = StreamWriter(
            self._session.post,
            Coalescer(lambda: self._session.link.window_s("text")),
            id=request.id,
            topic=taken.topic,
            received_s=received_s,
            expires_s=received_s + deadline_ms / 1000,
            correlation=taken.correlation,
            on_terminal=lambda message, future: self._note_terminal(active, message, future),
        )
        active = ActiveRequest(request, taken.topic, received_s, deadline_ms, writer, entry=entry)
        if self._is_stopping:
            self._reception.note_refused(request)
            writer.abort("shutdown")
            return
        refusal = self._admission.refusal(request.client)
        if refusal:
            self._reception.note_refused(request)
            writer.error(ErrorFacts("overloaded", refusal))
            return
        self._reception.note_taken(request)
        if entry is not None and self._journal is not None:
            self._journal.note_taken(entry)
        self._admission.enter(active)
        topics = [ref.topic for ref in request.images if ref.topic is not None]
        if topics:
            self._shelf.want(active, topics)
        self._open[request.client, request.id] = self._busy[taken.topic, request.id] = active
        if taken.is_group and self._group_desk is not None:
            self._group_desk.take(active)
        writer.start(self._topics.node, self._state.boot_id, self._model)
        if self._early_cancels.take(request.client, request.id):
            self._abort(active, "cancelled")
            return
        wait_s = max(0.0, active.limit_s - time.monotonic())
        active.expiry = asyncio.get_running_loop().call_later(wait_s, self._expire, active)
        self._begin_next()

    def _cancel(self, payload: bytes) -> None:
        try:
            cancel = read_cancel(payload)
        except BadPayload as error:
            self._state.num_bad += 1
            self._rated_log.warning("cancel", "a cancel that cannot be read: %s", error.message)
            return
        found = [
            active
            for active in self._admission.all()
            if active.request.id == cancel.id and cancel.client in (None, active.client)
        ]
        for active in found:
            self._abort(active, "cancelled")
        if not found and not self._reception.has_taken(cancel.client, cancel.id):  # else it has just ended
            self._early_cancels.add(cancel.client, cancel.id)

    # Work

    def _begin_next(self) -> None:
        while (active := self._admission.next()) is not None:
            if active.expiry is not None:
                active.expiry.cancel()
                active.expiry = None
            active.task = asyncio.create_task(self._answering.work(active), name=f"request {active.request.id}")
            active.task.add_done_callback(partial(self._worked, active))

    def _worked(self, active: ActiveRequest, task: asyncio.Task[None]) -> None:
        """Make room. A task that is cancelled before its first step has done nothing, not even written its end."""
        stream, active.stream = active.stream, None
        if not active.writer.is_over:
            active.writer.abort(active.abort_reason or "shutdown")
        self._forget(active)
        if stream is None or stream.is_released:
            self._leave(active)
        else:
            leaving = asyncio.create_task(self._leave_later(active, stream), name=f"end of {active.request.id}")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _leave_later(self, active: ActiveRequest, stream: AsyncAnswerStream) -> None:
        """Make room when the runtime has let go of a request: the next one would find it full."""
        await stream.released()
        self._leave(active)

    def _forget(self, active: ActiveRequest) -> None:
        """Let go of its pictures and names; a request with the same ones may have come since.

        What has just ended is remembered.
        """
        self._shelf.release(active)
        key, place = (active.client, active.request.id), (active.topic, active.request.id)
        if self._open.get(key) is active:
            del self._open[key]
            self._reception.note_taken(active.request)
        if self._busy.get(place) is active:
            del self._busy[place]

    def _leave(self, active: ActiveRequest) -> None:
        self._forget(active)
        self._admission.leave(active)
        if not self._is_stopping:
            self._begin_next()

    def _expire(self, active: ActiveRequest) -> None:
        """End a request that has waited for too long."""
        active.expiry = None
        if active.task is None:
            active.writer.error(late(active.deadline_ms, "queue"))
            self._leave(active)

    def _abort(self, active: ActiveRequest, reason: AbortReason) -> None:
        active.abort_reason = active.abort_reason or reason
        active.stop_work()
        if active.task is None:
            active.writer.abort(reason)
            self._leave(active)

    def drop(self, active: ActiveRequest) -> None:
        """End a request without a word: another has told its client."""
        active.abort_reason = active.abort_reason or "worker_lost"
        active.stop_work()
        if active.task is None:
            self._leave(active)

    async def stop(self) -> None:
        """End all requests with `aborted`/`shutdown` and take no more. Returns within about a second."""
        self._is_stopping = True
        actives = self._admission.all()
        tasks = [active.task for active in actives if active.task is not None]
        for active in actives:
            self._abort(active, "shutdown")
        if tasks:
            _, late_tasks = await asyncio.wait(tasks, timeout=_GRACE_S)
            for task in late_tasks:  # such as one whose picture is being decoded on another thread
                task.cancel()
            if late_tasks:
                await asyncio.wait(late_tasks, timeout=_GRACE_S)
        for leaving in list(self._leaving):  # the process ends as a whole
            leaving.cancel()

    # Ends

    def _note_terminal(self, active: ActiveRequest, message: StreamMessage, future: asyncio.Future[float]) -> None:
        if not active.is_told:
            active.is_told = True
            self._state.note_end(message)
        if active.entry is not None:
            self._note_when_delivered(active.entry, future)
        if active.claim is not None and self._group_desk is not None:
            self._group_desk.release(active)

    def _note_when_delivered(self, entry: JournalEntry, future: asyncio.Future[float]) -> None:
        def note(future: asyncio.Future[float]) -> None:
            if self._journal is not None and not future.cancelled():
                self._journal.note_ended(entry)

        future.add_done_callback(note)

    def _post(self, topic: str, message: StreamMessage, correlation: bytes) -> asyncio.Future[float]:
        outbound = Outbound(topic, encode(message), content_type="application/json", correlation=correlation)
        return self._session.post(outbound, "terminal")


def _correlation_of(entry: JournalEntry) -> bytes:
    """Return what the sender of a request knows it by; a damaged line may say nothing that makes sense."""
    try:
        return bytes.fromhex(entry.correlation) or entry.id.encode()
    except ValueError:
        return entry.id.encode()
