"""A gateway's part in its group: what it has taken is claimed, and the clients of a worker that is lost are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edge_vl.gateway.active import ActiveRequest
from edge_vl.gateway.announcements import Announcements
from edge_vl.gateway.claims import ClaimKey, ClaimLedger, claim_key
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.messages import Aborted, Claim
from edge_vl.mqtt.node_messages import Info
from edge_vl.mqtt.packet import Inbound, Outbound, QoS
from edge_vl.mqtt.reading import BadPayload, read_claim, read_message
from edge_vl.mqtt.reply_rule import ReplyRule
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import NAME, GroupTopics, NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog

__all__ = ["GroupDesk"]

_log = logging.getLogger(__name__)

_QUIET_S = 0.1
"""Silence after which everything that the broker keeps about the group counts as read."""

_SETTLE_S = 1.5
"""How long it may take, at most."""

_MAX_INFO_BYTES = 65_536

_ANNOUNCE_EVERY_S = 3.0
_ANNOUNCE_BURST = 16
"""Claims are published again for workers that come; so many that come together do not wait for it."""

_ASK_EVERY_S = 5.0
"""Answers are held back while the others are asked; whoever writes `offline` again and again must not hold them up."""

_ANSWER_S = 1.0
"""How long the others may take to say what they have ended, besides the way to the broker and back."""


@dataclass(slots=True, eq=False)
class _Open:
    active: ActiveRequest
    claim: Claim
    claimed: asyncio.Future[float]
    released: asyncio.Future[float] | None = None


class GroupDesk:
    """Keeps the ledger in step with the broker. Belongs to the event loop's thread."""

    def __init__(
        self,
        topics: NodeTopics,
        group: GroupTopics,
        boot_id: str,
        session: Session,
        rule: ReplyRule,
        *,
        is_online: Callable[[], bool],
        drop: Callable[[ActiveRequest], object],
    ) -> None:
        """Begin with nothing known.

        Args:
            topics: of the gateway.
            group: of its group.
            boot_id: of this run of it.
            session: the link.
            rule: where answers may go.
            is_online: whether the gateway has said so on this connection.
            drop: ends a request without a word, because another has told its client.
        """
        self._topics = topics
        self._group = group
        self._boot_id = boot_id
        self._session = session
        self._rule = rule
        self._is_online = is_online
        self._drop = drop
        self._ledger = ClaimLedger(topics.node, boot_id, group.group, clock=time.monotonic, prefix=topics.prefix)
        self._announcements = Announcements(every_s=_ANNOUNCE_EVERY_S, burst=_ANNOUNCE_BURST, clock=time.monotonic)
        self._announcing: asyncio.TimerHandle | None = None
        self._open: dict[ClaimKey, _Open] = {}
        self._own_status: str | None = None
        self._heard = asyncio.Event()
        self._is_away = True
        self._asking: asyncio.TimerHandle | None = None
        self._ask_again_s = 0.0
        self._rated_log = RateLimitedLog(_log)

    def filters(self) -> Mapping[str, QoS]:
        """Return what it listens to, besides the gateway's own status."""
        prefix = self._topics.prefix
        return {self._group.claims: 1, f"{prefix}/+/status": 1, f"{prefix}/+/info": 1}

    @property
    def num_open(self) -> int:
        """Requests that were taken, and whose release the broker has not confirmed."""
        return len(self._open)

    @property
    def is_asking(self) -> bool:
        """Whether it waits for the others to say what they have ended."""
        return self._asking is not None

    def is_known(self, id: str, topic: str) -> bool:
        """Whether somebody of the group has taken a request already."""
        return self._ledger.is_known((id, topic))

    def take(self, active: ActiveRequest) -> None:
        """Claim a request; called before its first message."""
        claim = Claim(
            id=active.request.id,
            node=self._topics.node,
            boot_id=self._boot_id,
            reply_to=active.topic,
            deadline_ms=active.deadline_ms,
        )
        active.claim = claim_key(claim)
        self._ledger.take(claim)
        self._open[active.claim] = _Open(active, claim, self._post(claim))
        if self._is_away:
            active.writer.hold()

    def release(self, active: ActiveRequest) -> None:
        """Say that a request has ended; called behind its last message."""
        opened = self._open.get(active.claim) if active.claim is not None else None
        if opened is None or opened.released is not None:
            return
        key = claim_key(opened.claim)

        def close(future: asyncio.Future[float]) -> None:
            if opened.released is future:  # confirmed, or given up for want of room; not taken back
                self._forget(key)

        opened.released = self._post(_release_of(opened.claim))
        opened.released.add_done_callback(close)

    # The connection

    def note_away(self) -> None:
        """Note that the connection is lost: what runs goes on, and is held until it is known who ends it."""
        self._is_away = True
        self._own_status = None
        self._stop_asking()
        self._ledger.note_away()
        for opened in self._open.values():
            self._hold(opened)

    async def settle(self) -> None:
        """Read what the broker keeps about the group, on a new connection on which nothing was sent yet."""
        if not self._open:
            return
        until_s = time.monotonic() + _SETTLE_S
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < until_s:
                self._heard.clear()
                await asyncio.wait_for(self._heard.wait(), _QUIET_S)

    def back(self) -> None:
        """Go on, on a new connection; what is posted from here on comes behind `online`."""
        self._is_away = False
        if self._own_status == "offline" and self._open:
            self._ask()
        else:
            self.go_on()

    def go_on(self) -> None:
        """Send what was held: nobody else has ended it."""
        self._stop_asking()
        for opened in list(self._open.values()):
            opened.active.writer.resume()
            if opened.active.writer.is_over and opened.released is None:  # its end had been confirmed before
                self.release(opened.active)

    def close(self) -> None:
        """Wait for nobody any more."""
        self._stop_asking()
        if self._announcing is not None:
            self._announcing.cancel()
            self._announcing = None

    def _ask(self) -> None:
        """Ask the others which of the requests they have ended, as the will of this worker was out."""
        self._ledger.ask()
        self._ask_again_s = time.monotonic() + _ASK_EVERY_S
        for opened in self._open.values():
            self._hold(opened)
            self._post(opened.claim)
        wait_s = _ANSWER_S + 4 * self._session.link.expected_s()
        self._asking = asyncio.get_running_loop().call_later(wait_s, self.go_on)

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    @staticmethod
    def _hold(opened: _Open) -> None:
        """Take back what the broker has not confirmed: it is sent again, if at all, when it is known who ends it."""
        if opened.released is not None:
            opened.released.cancel()
            opened.released = None
        opened.active.writer.hold()

    # What comes in

    def handle(self, inbound: Inbound) -> bool:
        """Take a message if it is for the group; say whether it is."""
        topic = inbound.topic
        if topic == self._group.claims:
            if not inbound.is_retained:
                self._note_claim(inbound.payload)
        elif topic.startswith(f"{self._topics.prefix}/") and topic.count("/") == self._topics.prefix.count("/") + 2:
            node, what = topic.split("/")[-2:]
            if what in ("status", "info") and re.fullmatch(NAME, node) is None:
                return True  # no node is called so
            if what == "status":
                self._note_status(node, inbound)
            elif what == "info":
                self._note_info(node, inbound.payload)
            else:
                return False
        else:
            return False
        self._heard.set()
        self._tell_orphans()
        return True

    def tidy(self) -> None:
        """Forget what is over; called from time to time."""
        self._ledger.tidy()

    def _note_claim(self, payload: bytes) -> None:
        try:
            claim = read_claim(payload)
        except BadPayload as error:
            self._rated_log.warning("claim", "a claim that cannot be read: %s", error.message)
            return
        if self._ledger.has_ended(claim) and not self._is_away:
            self._post(_release_of(claim))
        key = self._ledger.note_claim(claim)
        if key is None:
            return
        opened = self._open.get(key)
        is_own_word = opened is not None and opened.released is not None
        if opened is not None and not is_own_word:  # somebody else has ended it
            self._give_up(key)

    def _note_status(self, node: str, inbound: Inbound) -> None:
        status = inbound.payload[:16].decode("ascii", errors="replace")
        if node != self._topics.node:
            self._ledger.note_status(node, status)
            if status == "online" and not inbound.is_retained and self._ledger.is_member(node):
                self._announce()
            return
        self._own_status = status
        if not inbound.is_retained:
            self._ledger.note_status(node, status)
        if status == "online" or self._is_away or not self._is_online():
            return
        if status == "offline":
            # The will of a connection that the broker took for dead: the others have heard it, too.
            self._ledger.ask()
            if time.monotonic() >= self._ask_again_s:
                self._stop_asking()
                self._ask()

    def _announce(self) -> None:
        """Publish the open claims again: somebody who has just come has missed them."""
        if self._is_away or self._announcing is not None or not self._open:
            return
        wait_s = self._announcements.wait_s()
        if wait_s:
            self._announcing = asyncio.get_running_loop().call_later(wait_s, self._announce_now)
        else:
            self._post_open()

    def _announce_now(self) -> None:
        self._announcing = None
        self._announce()

    def _post_open(self) -> None:
        for opened in self._open.values():
            if opened.released is None:
                self._post(opened.claim)

    def _note_info(self, node: str, payload: bytes) -> None:
        if not payload:
            return
        try:
            info = read_message(payload, Info, max_bytes=_MAX_INFO_BYTES)
        except BadPayload as error:
            self._rated_log.warning("info", "an info that cannot be read: %s", error.message)
            return
        self._ledger.note_info(node, info.boot_id, info.group)

    def _tell_orphans(self) -> None:
        if self._is_away:  # nothing may be said yet; it is looked at again with the next message
            return
        for claim in self._ledger.orphans():
            if not self._rule.is_allowed(claim.reply_to):
                continue
            self._rated_log.info("lost", "worker %s is lost; the client of one of its requests is told so", claim.node)
            message = Aborted(id=claim.id, seq=None, t_ms=0, reason="worker_lost")
            self._session.post(
                Outbound(
                    claim.reply_to,
                    encode(message),
                    content_type="application/json",
                    correlation=claim.id.encode(),
                ),
                "terminal",
            )
            self._post(_release_of(claim))

    def _give_up(self, key: ClaimKey) -> None:
        opened = self._open.get(key)
        if opened is None:
            return
        opened.claimed.cancel()
        self._forget(key)
        released, opened.released = opened.released, None
        if released is not None:
            released.cancel()
        opened.active.writer.drop()
        self._drop(opened.active)

    def _forget(self, key: ClaimKey) -> None:
        self._open.pop(key, None)
        self._ledger.close(key)

    def _post(self, claim: Claim) -> asyncio.Future[float]:
        return self._session.post(self._outbound(claim), "terminal")

    def _outbound(self, claim: Claim) -> Outbound:
        return Outbound(self._group.claims, encode(claim), content_type="application/json")


def _release_of(claim: Claim) -> Claim:
    """Return the release of a claim."""
    return Claim(id=claim.id, node=claim.node, boot_id=claim.boot_id, reply_to=claim.reply_to, released=True)
