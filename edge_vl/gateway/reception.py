"""Reads what comes in as a request, and answers at once what is none."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from edge_vl.errors import RequestError
from edge_vl.gateway.config import Limits
from edge_vl.gateway.group_desk import GroupDesk
from edge_vl.gateway.node_state import NodeState
from edge_vl.gateway.recent_ids import RecentIds
from edge_vl.gateway.stream_writer import Post, StreamWriter
from edge_vl.mqtt.coalescer import Coalescer
from edge_vl.mqtt.messages import ErrorFacts, Request
from edge_vl.mqtt.packet import Inbound
from edge_vl.mqtt.reading import BadPayload, read_request
from edge_vl.mqtt.reply_rule import ReplyRule
from edge_vl.mqtt.topics import NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog

__all__ = ["Received", "Reception"]


@dataclass(frozen=True, slots=True)
class Received:
    """A request that can be worked on.

    Attributes:
        request: what is asked.
        topic: where its answer goes.
        correlation: what its sender knows it by.
        received_s: when it came, on the monotonic clock.
        is_group: whether it was sent to the group.
    """

    request: Request
    topic: str
    correlation: bytes
    received_s: float
    is_group: bool


class Reception:
    """Lets a request in once. What is none is answered with an error, once as well, where it says where to."""

    def __init__(
        self,
        topics: NodeTopics,
        limits: Limits,
        rule: ReplyRule,
        state: NodeState,
        post: Post,
        group_desk: GroupDesk | None,
    ) -> None:
        """Remember no request.

        Args:
            topics: of the gateway.
            limits: what a request may ask for.
            rule: where answers may go.
            state: counts.
            post: hands a message to the link.
            group_desk: knows what others of the group have taken; None: there is no group.
        """
        self._topics = topics
        self._limits = limits
        self._rule = rule
        self._state = state
        self._post = post
        self._group_desk = group_desk
        self._recent = RecentIds(limits.num_recent_ids)
        self._rated_log = RateLimitedLog(logging.getLogger(__name__))

    def receive(self, inbound: Inbound, *, is_group: bool) -> Received | None:
        """Read a request; None: it is none, was there before, or lay at the broker for nobody knows how long."""
        if inbound.is_retained:
            return None
        limits = self._limits
        try:
            request = read_request(
                inbound.payload,
                max_bytes=limits.max_request_bytes,
                max_tokens=limits.max_tokens,
                max_image_bytes=limits.max_image_bytes,
            )
        except BadPayload as error:
            self._refuse_payload(inbound, error)
            return None
        try:
            topic = self._reply_topic(inbound, request)
        except RequestError as error:
            self._refuse_topic(inbound, request, error)
            return None
        is_others = is_group and self._group_desk is not None and self._group_desk.is_known(request.id, topic)
        if is_others or not self._recent.add(request.client, request.id):
            self._state.num_repeated += 1
            return None
        correlation = inbound.correlation or request.id.encode()
        return Received(request, topic, correlation, inbound.received_s, is_group)

    def _reply_topic(self, inbound: Inbound, request: Request) -> str:
        """Return where an answer goes; raises `RequestError` where it may not."""
        if request.reply_to is not None:
            return self._rule.check(request.reply_to)
        if inbound.response_topic is not None:
            return self._rule.check(inbound.response_topic, "the response topic")
        return self._topics.response(request.client, request.id)

    def _refuse_payload(self, inbound: Inbound, error: BadPayload) -> None:
        self._state.num_bad += 1
        self._rated_log.warning("payload", "a request of %d bytes was refused: %s", len(inbound.payload), error.message)
        topics = [topic for topic in (error.reply_to, inbound.response_topic) if topic is not None]
        if error.client is not None and error.id is not None:
            topics.append(self._topics.response(error.client, error.id))
        topic = next((topic for topic in topics if self._rule.is_allowed(topic)), None)
        if topic is None:
            return
        if error.id is not None and not self._recent.add(error.client or "", error.id):
            self._state.num_repeated += 1
            return
        self._refuse(inbound, topic, error.id or "", ErrorFacts("invalid_request", error.message, error.param))

    def _refuse_topic(self, inbound: Inbound, request: Request, error: RequestError) -> None:
        """Answer on the usual topic that the one asked for may not be used."""
        self._state.num_bad += 1
        self._rated_log.warning("topic", "a request was refused: %s", error)
        if not self._recent.add(request.client, request.id):
            self._state.num_repeated += 1
            return
        topic = self._topics.response(request.client, request.id)
        self._refuse(inbound, topic, request.id, ErrorFacts("invalid_request", str(error), "reply_to"))

    def _refuse(self, inbound: Inbound, topic: str, id: str, facts: ErrorFacts) -> None:
        writer = StreamWriter(
            self._post,
            Coalescer(lambda: 0.0),
            id=id,
            topic=topic,
            received_s=inbound.received_s,
            expires_s=time.monotonic(),
            correlation=inbound.correlation or id.encode(),
            on_terminal=lambda message, future: self._state.note_end(message),
        )
        writer.error(facts)
