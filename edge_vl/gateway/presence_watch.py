"""Whether a gateway is heard: its words come back, the broker takes them, and nobody else uses its name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from edge_vl.errors import BrokerError
from edge_vl.gateway.namesakes import Namesakes
from edge_vl.gateway.write_rules import may_not_write
from edge_vl.mqtt.packet import Inbound, Outbound
from edge_vl.mqtt.topics import NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog

__all__ = ["PresenceWatch"]

_log = logging.getLogger(__name__)

ECHO_S = 10.0
"""After a connection, its own info should have come back."""

ANSWER_EVERY_S = 0.5
"""Least seconds between two answers to gateways of the same name."""


class PresenceWatch:
    """Listens to what the gateway says about itself. On the event loop's thread.

    A broker of MQTT 5 says what it does not take; one of 3.1.1 confirms everything and drops what its rules forbid, so
    that only the lack of an echo tells.
    """

    def __init__(
        self,
        topics: NodeTopics,
        username: str | None,
        boot_id: str,
        started_at: str,
        *,
        say: Callable[[], None],
        leave: Callable[[BrokerError], None],
    ) -> None:
        """Begin to listen.

        Args:
            topics: of the gateway.
            username: it connects with; None: none.
            boot_id: of this run.
            started_at: when it started, as it says in its info.
            say: says again what it is and how it is.
            leave: ends it, because another gateway has its name.
        """
        self._topics = topics
        self._username = username
        self._namesakes = Namesakes(boot_id, started_at)
        self._say = say
        self._leave = leave
        self._rated_log = RateLimitedLog(_log, burst=1)
        self._is_echoed = False
        self._was_refused = False
        self._waiting: asyncio.TimerHandle | None = None
        self._answering: asyncio.TimerHandle | None = None
        self._answered_s = float("-inf")

    def connected(self) -> None:
        """Expect an echo of what was said just now."""
        self.lost()
        self._is_echoed = self._was_refused = False
        self._waiting = asyncio.get_running_loop().call_later(ECHO_S, self._miss)

    def lost(self) -> None:
        """Expect nothing: there is no connection. May be called twice."""
        for handle in (self._waiting, self._answering):
            if handle is not None:
                handle.cancel()
        self._waiting = self._answering = None

    def refused(self, message: Outbound, reason: int) -> None:
        """Tell that the broker did not take a message."""
        base = f"{self._topics.base}/"
        is_own = message.topic.startswith(base)
        self._was_refused |= is_own
        pattern = f"{base}..." if is_own else message.topic
        self._rated_log.warning(
            "refused" if is_own else "refused elsewhere",
            "%s (reason %d of the broker)",
            may_not_write(self._username, f"{pattern:.200}", is_own=is_own),
            reason,
        )

    def hear(self, inbound: Inbound) -> None:
        """Take in what was said on the topic of the gateway's own info."""
        verdict = self._namesakes.judge(inbound.payload, inbound.received_s, is_kept=inbound.is_retained)
        other, node = self._namesakes.other, self._topics.node
        if verdict == "own":
            self._is_echoed = True
        elif verdict == "younger" and other is not None:
            self._rated_log.error(
                "younger",
                "another gateway with the name %r has started on this broker, at %.40s; it should end by itself. Give "
                "each gateway a node.name of its own",
                node,
                other.started_at,
            )
            self._answer()
        elif verdict == "older" or (verdict == "nothing" and not inbound.is_retained):  # somebody has overwritten it
            self._answer()
        elif verdict == "leave" and other is not None:
            text = (
                f"another gateway with the name {node!r} is online on this broker, since {other.started_at:.40}; only "
                "one of a name may run, or both would answer each request: set another node.name, or stop that one"
            )
            self._leave(BrokerError(text, reason="taken_over"))

    def _answer(self) -> None:
        """Say again what it is, soon; not more often than twice a second, whatever comes."""
        loop = asyncio.get_running_loop()
        if self._answering is None:
            self._answering = loop.call_at(max(loop.time(), self._answered_s + ANSWER_EVERY_S), self._answer_now)

    def _answer_now(self) -> None:
        self._answering = None
        self._answered_s = asyncio.get_running_loop().time()
        self._say()

    def _miss(self) -> None:
        self._waiting = None
        if not self._is_echoed and not self._was_refused:
            self._rated_log.warning(
                "echo",
                "the broker does not give back what this gateway says about itself: perhaps %s; perhaps it may not "
                "read there",
                may_not_write(self._username, f"{self._topics.base}/..."),
            )
