"""Reads what comes in as a request, and answers at once what is none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from edge_vl.errors import RequestError
from edge_vl.gateway.config import Limits
from edge_vl.gateway.group_desk import GroupDesk
from edge_vl.gateway.node_state import NodeState
from edge_vl.gateway.recent_ids import RecentIds
from edge_vl.gateway.stream_writer import Post, StreamWriter
from edge_vl.mqtt.coalescer import Coalescer
from edge_vl.mqtt.messages import ErrorFacts, Request
from edge_vl.mqtt.packet import MAX_CORRELATION_BYTES, Inbound
from edge_vl.mqtt.reading import BadPayload, read_request
from edge_vl.mqtt.reply_rule import ReplyRule
from edge_vl.mqtt.topics import NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog

__all__ = ["Received", "Reception"]

_LEAST_REFUSED = 16
"""Refused requests are remembered apart, so that nobody can make the gateway forget those that it has answered."""


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
        *,
        is_open: Callable[[str, str], bool],
        is_busy: Callable[[str, str], bool],
    ) -> None:
        """Remember no request.

        Args:
            topics: of the gateway.
            limits: what a request may ask for.
            rule: where answers may go.
            state: counts.
            post: hands a message to the link.
            group_desk: knows what others of the group have taken; None: there is no group.
            is_open: whether a request of a client, by its id, waits or runs.
            is_busy: whether an answer to a topic, by the topic and the request's id, waits or runs.
        """
        self._topics = topics
        self._limits = limits
        self._rule = rule
        self._state = state
        self._post = post
        self._group_desk = group_desk
        self._is_open = is_open
        self._is_busy = is_busy
        self._recent = RecentIds(limits.num_recent_ids)
        self._refused = RecentIds(max(_LEAST_REFUSED, limits.num_recent_ids // 4))
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
        if is_others or self._was_there(request.client, request.id):
            self._state.num_repeated += 1
            return None
        if self._is_busy(topic, request.id):
            self._refuse_busy(inbound, request, topic)
            return None
        if inbound.correlation is not None and len(inbound.correlation) > MAX_CORRELATION_BYTES:
            self._refuse_correlation(inbound, request, topic)
            return None
        return Received(request, topic, _correlation_of(inbound, request.id), inbound.received_s, is_group)

    def note_taken(self, request: Request) -> None:
        """Remember a request that is worked on, so that it is not taken once more."""
        self._recent.add(request.client, request.id)

    def note_refused(self, request: Request) -> None:
        """Remember a request that was answered with an error at once, so that it is not answered once more."""
        self._refused.add(request.client, request.id)

    def has_taken(self, client: str | None, id: str) -> bool:
        """Whether a request of a client, or, without one, of anybody, was taken lately."""
        return self._recent.is_known(client, id)

    def _was_there(self, client: str, id: str) -> bool:
        """Whether a request was there before: it runs still, however many came since, or it was answered lately."""
        return self._is_open(client, id) or self._recent.is_known(client, id) or self._refused.is_known(client, id)

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
        if error.id is not None and not self._is_first_refusal(error.client or "", error.id):
            return
        self._refuse(inbound, topic, error.id or "", ErrorFacts("invalid_request", error.message, error.param))

    def _refuse_topic(self, inbound: Inbound, request: Request, error: RequestError) -> None:
        """Answer on the usual topic that the one asked for may not be used."""
        self._state.num_bad += 1
        self._rated_log.warning("topic", "a request was refused: %s", error)
        if not self._is_first_refusal(request.client, request.id):
            return
        topic = self._topics.response(request.client, request.id)
        self._refuse(inbound, topic, request.id, ErrorFacts("invalid_request", str(error), "reply_to"))

    def _refuse_busy(self, inbound: Inbound, request: Request, topic: str) -> None:
        """Keep an answer out of the topic of another one with the same id: nobody could tell them apart."""
        self._state.num_bad += 1
        self._rated_log.warning("busy", "a request has the id and the reply topic of one that is being answered")
        own = self._topics.response(request.client, request.id)
        if own == topic or not self._is_first_refusal(request.client, request.id):
            return
        message = "another client's request with this id and this reply topic is being answered; choose another id"
        self._refuse(inbound, own, request.id, ErrorFacts("invalid_request", message, "reply_to"))

    def _refuse_correlation(self, inbound: Inbound, request: Request, topic: str) -> None:
        self._state.num_bad += 1
        self._rated_log.warning("correlation", "a request was refused: its correlation data is too long")
        if self._is_first_refusal(request.client, request.id):
            message = f"the correlation data may have at most {MAX_CORRELATION_BYTES} bytes"
            self._refuse(inbound, topic, request.id, ErrorFacts("invalid_request", message, "correlation"))

    def _is_first_refusal(self, client: str, id: str) -> bool:
        """Remember that a request is refused; False: it was there before."""
        is_first = not self._was_there(client, id)
        self._refused.add(client, id)
        if not is_first:
            self._state.num_repeated += 1
        return is_first

    def _refuse(self, inbound: Inbound, topic: str, id: str, facts: ErrorFacts) -> None:
        writer = StreamWriter(
            self._post,
            Coalescer(lambda: 0.0),
            id=id,
            topic=topic,
            received_s=inbound.received_s,
            expires_s=time.monotonic(),
            correlation=_correlation_of(inbound, id),
            on_terminal=lambda message, future: self._state.note_end(message),
        )
        writer.error(facts)


def _correlation_of(inbound: Inbound, id: str) -> bytes:
    given = inbound.correlation
    return given if given and len(given) <= MAX_CORRELATION_BYTES else id.encode()
