"""Who of a group has taken which request, and who tells the client when that worker is lost. Pure.

Every worker keeps a ledger. A claim is published before the first message of the answer, its release after the last
one. Who is `offline` answers no more: what it has claimed and not released is an orphan, and the member with the
smallest name of those who know of it ends it and publishes its release. A worker that finds itself `offline` after a
lost connection says that it is `online`, publishes its open claims once more and holds their answers back for a
moment: whoever knows that one has ended publishes its release again, and the worker drops that request; with the
others it goes on. When a member comes `online`, the others publish their open claims, since it has missed what happened
before.

MQTT does not say who has sent a message, so what can be checked is checked: a claim counts when the node that it names
is online, its info names this group and that `boot_id`, and its reply topic is not that of another node or request. A
release counts for a claim that is known; for one of this worker's own, only after it has asked. Whoever may write any
status and info can still pretend all of that: only the broker's access list keeps him from it.

All of this rests on a broker that delivers in order what one client publishes. Two ends reach the client of a worker
that is lost between the last message and the release, or whose request was ended by one that is lost itself by the
time it is asked; none, when all who knew of the claim are lost at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from edge_vl.mqtt.messages import Claim

__all__ = ["ClaimKey", "ClaimLedger", "claim_key"]

ClaimKey = tuple[str, str]
"""Id and reply topic: what a request is known by to those who did not get it."""

MAX_MEMBERS = 1024
"""Nodes that are remembered."""

_MAX_STATUS_CHARACTERS = 16

MAX_CLAIM_S = 86_400.0
"""How long a claim without a deadline is remembered."""


def claim_key(claim: Claim) -> ClaimKey:
    """Return what a claim is about."""
    return claim.id, claim.reply_to


@dataclass(slots=True)
class _Member:
    status: str = ""
    boot_id: str = ""
    group: str | None = None
    online_number: int = 0

    @property
    def is_gone(self) -> bool:
        return self.status in ("offline", "stopped")


@dataclass(frozen=True, slots=True)
class _Noted:
    claim: Claim
    number: int  # of the event that it came with
    forget_s: float


class ClaimLedger:
    """What one worker knows of its group. Statuses, infos and claims are noted in the order in which they come."""

    def __init__(
        self,
        node: str,
        boot_id: str,
        group: str,
        *,
        clock: Callable[[], float],
        prefix: str = "edge_vl",
        max_claims: int = 2048,
    ) -> None:
        """Begin with nothing known.

        Args:
            node: name of the worker whose ledger this is.
            boot_id: of this run of it.
            group: its group.
            clock: the monotonic one.
            prefix: of all topics.
            max_claims: of others that are remembered, and as many that have ended.
        """
        self._node = node
        self._boot_id = boot_id
        self._group = group
        self._clock = clock
        self._prefix = prefix
        self._max_claims = max_claims
        self._number = 0
        self._members: OrderedDict[str, _Member] = OrderedDict()
        self._others: OrderedDict[ClaimKey, _Noted] = OrderedDict()
        self._ended: OrderedDict[ClaimKey, None] = OrderedDict()
        self._own: dict[ClaimKey, Claim] = {}
        self._asked: set[ClaimKey] = set()  # of the own ones: another may have ended them
        self._own_online_number: int | None = None  # None: the broker has not said so on this connection

    # What is mine

    def take(self, claim: Claim) -> None:
        """Note that this worker has taken a request."""
        self._own[claim_key(claim)] = claim

    def close(self, key: ClaimKey) -> None:
        """Note that a request of this worker has ended, and that the broker has its release."""
        self._asked.discard(key)
        if self._own.pop(key, None) is not None:
            self._note_ended(key)

    def ask(self) -> None:
        """Note that the others are asked which of the open requests they have ended."""
        self._asked.update(self._own)

    def is_known(self, key: ClaimKey) -> bool:
        """Whether somebody has taken a request already, or has ended it."""
        return key in self._own or key in self._others or key in self._ended

    # What comes in

    def note_claim(self, claim: Claim) -> ClaimKey | None:
        """Note a claim or a release from the topic.

        Returns:
            The key of a request of this worker that another has ended; None: something else.
        """
        key = claim_key(claim)
        if claim.node == self._node:
            is_told = claim.released and claim.boot_id == self._boot_id and key in self._asked
            return key if is_told else None
        if claim.released:
            noted = self._others.get(key)
            if noted is not None and (noted.claim.node, noted.claim.boot_id) == (claim.node, claim.boot_id):
                del self._others[key]
                self._note_ended(key)
            return None
        if key in self._own or key in self._ended or not self._is_credible(claim):
            return None
        self._number += 1
        wait_s = MAX_CLAIM_S if claim.deadline_ms is None else min(claim.deadline_ms / 1000, MAX_CLAIM_S)
        self._others[key] = _Noted(claim, self._number, self._clock() + wait_s)
        self._others.move_to_end(key)
        if len(self._others) > self._max_claims:
            self._others.popitem(last=False)
        return None

    def note_status(self, node: str, status: str) -> None:
        """Note what a node says of itself, or its last will says of it.

        Of this worker it is what the broker hands on while it is connected: from then on the others count on it.
        """
        if node == self._node:
            if status == "online" and self._own_online_number is None:
                self._number += 1
                self._own_online_number = self._number
            return
        member = self._member(node)
        if member is None:
            return
        if status == "online" and member.status != "online":
            self._number += 1
            member.online_number = self._number
        member.status = status[:_MAX_STATUS_CHARACTERS]

    def note_info(self, node: str, boot_id: str, group: str | None) -> None:
        """Note which group a node belongs to, and which of its runs it is."""
        if node == self._node:
            return
        member = self._member(node)
        if member is not None:
            member.boot_id, member.group = boot_id, group

    def is_member(self, node: str) -> bool:
        """Whether a node's info names this group."""
        member = self._members.get(node)
        return member is not None and member.group == self._group

    def has_ended(self, claim: Claim) -> bool:
        """Whether what another worker claims has ended already, so that it must be told."""
        return not claim.released and claim.node != self._node and claim_key(claim) in self._ended

    def note_away(self) -> None:
        """Note that this worker has lost its connection: from now on it misses what the others do."""
        self._members.clear()
        self._others.clear()
        self._own_online_number = None

    # What is to be done

    @property
    def live_peers(self) -> tuple[str, ...]:
        """Names of the other members that are online."""
        return tuple(
            name for name, member in self._members.items() if member.status == "online" and member.group == self._group
        )

    def orphans(self) -> list[Claim]:
        """Return the claims whose client this worker has to tell that their worker is lost. Each is returned once."""
        found = [
            noted.claim for noted in self._others.values() if self._is_orphan(noted.claim) and self._is_first(noted)
        ]
        for claim in found:
            self._others.pop(claim_key(claim))
            self._note_ended(claim_key(claim))
        return found

    def tidy(self) -> None:
        """Forget claims whose deadline has passed: their clients have stopped waiting."""
        now_s = self._clock()
        for key in [key for key, noted in self._others.items() if noted.forget_s < now_s]:
            del self._others[key]

    def _is_orphan(self, claim: Claim) -> bool:
        member = self._members.get(claim.node)
        return member is not None and (member.is_gone or member.boot_id != claim.boot_id)

    def _is_credible(self, claim: Claim) -> bool:
        """Say whether the worker that a claim names may have made it."""
        member = self._members.get(claim.node)
        if member is None or member.group != self._group or member.boot_id != claim.boot_id:
            return False
        if member.status != "online":
            return False
        levels = claim.reply_to.removeprefix(f"{self._prefix}/").split("/")
        if claim.reply_to.startswith(f"{self._prefix}/") and len(levels) == 4 and levels[1] == "response":
            return levels[0] == claim.node and levels[3] == claim.id
        return True

    def _is_first(self, noted: _Noted) -> bool:
        """Say whether no other member that knows of the claim has a smaller name.

        Who came online after the claim was made does not count: it may not have heard of it.
        """
        if self._own_online_number is None or self._own_online_number > noted.number:
            return False
        return not any(
            name < self._node and self._members[name].online_number < noted.number
            for name in self.live_peers
            if name != noted.claim.node
        )

    def _member(self, node: str) -> _Member | None:
        """Return what is known of a node; None where there are too many. Those of this group are not forgotten."""
        member = self._members.get(node)
        if member is not None:
            return member
        if len(self._members) >= MAX_MEMBERS:
            stranger = next((name for name, one in self._members.items() if one.group != self._group), None)
            if stranger is None:
                return None
            del self._members[stranger]
        member = self._members[node] = _Member()
        return member

    def _note_ended(self, key: ClaimKey) -> None:
        self._ended[key] = None
        self._ended.move_to_end(key)
        if len(self._ended) > self._max_claims:
            self._ended.popitem(last=False)
