"""Which gateways are there, from what the broker keeps of them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Gone", "Presence"]

UNKNOWN_AFTER_S = 2.0
"""After so long without a word of a gateway there is none."""

OFFLINE_GRACE_S = 5.0
"""A gateway that is gone may come back and say itself what became of a request."""

_STATUSES = ("online", "stopped", "offline")

_MAX_NODES = 1024
_MAX_BOOT_ID_CHARACTERS = 64
_MAX_GROUP_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Gone:
    """Why no answer will come: a reason as `edge_vl.Aborted` has it, and words for a person."""

    reason: str
    hint: str


@dataclass(slots=True)
class _Node:
    status: str
    since_s: float
    boot_id: str = ""
    boot_since_s: float = 0.0
    has_info: bool = False
    group: str | None = None


class Presence:
    """What is known of gateways: of the 1,024 that were heard of last. Times are `time.monotonic()`."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def note_status(self, node: str, status: str, now_s: float, *, is_retained: bool = False) -> None:
        """Take in a status; anything but `online`, `stopped` and `offline` is passed over.

        Args:
            node: whose.
            status: the word.
            now_s: when it came.
            is_retained: the broker had kept it, so it is older than that.
        """
        if status not in _STATUSES:
            return
        is_older = is_retained and node not in self._nodes
        known = self._known(node, -math.inf if is_older else now_s)
        if is_older:
            known.status = status
        if known.status != status:
            known.status, known.since_s = status, now_s

    def note_info(self, node: str, boot_id: str, now_s: float, *, group: str | None = None) -> None:
        """Take in which start of a gateway is running, and which group it works for."""
        if len(boot_id) > _MAX_BOOT_ID_CHARACTERS or len(group or "") > _MAX_GROUP_CHARACTERS:
            return
        known = self._known(node, now_s)
        known.has_info, known.group = True, group
        if known.boot_id != boot_id:
            known.boot_id, known.boot_since_s = boot_id, now_s

    def _known(self, node: str, since_s: float) -> _Node:
        """Return what is known of a node, and forget the one that was not heard of for longest."""
        known = self._nodes.pop(node, None) or _Node("", since_s)
        self._nodes[node] = known
        if len(self._nodes) > _MAX_NODES:
            del self._nodes[next(iter(self._nodes))]
        return known

    def is_online(self, node: str) -> bool:
        """Whether the broker says so."""
        return node in self._nodes and self._nodes[node].status == "online"

    def why_gone(
        self,
        node: str | None,
        *,
        has_begun: bool,
        boot_id: str,
        asked_s: float,
        now_s: float,
        group: str | None = None,
        is_unheard: bool = False,
    ) -> Gone | None:
        """Say why a request that waits will not be answered any more.

        Args:
            node: who has it; None: one of a group, not known which.
            has_begun: whether anything of the answer came.
            boot_id: which start of the gateway has it; empty: not known.
            asked_s: when it was sent.
            now_s: the present.
            group: which one was asked, where no node was.
            is_unheard: the broker said that nobody listened to the request.

        Returns:
            None: it may still be answered.
        """
        if node is None:
            return self._why_no_worker(group, asked_s, now_s, is_unheard=is_unheard)
        known = self._nodes.get(node)
        if known is None or not known.status:
            if has_begun or now_s - asked_s < UNKNOWN_AFTER_S:
                return None
            return Gone("nobody", f"the broker knows of no gateway {node!r}")
        if known.status == "online":
            if is_unheard and not has_begun and now_s - asked_s >= UNKNOWN_AFTER_S:
                return Gone("nobody", f"the gateway {node!r} is online, but does not listen to requests")
            is_other = bool(boot_id and known.boot_id) and boot_id != known.boot_id
            if is_other and now_s - known.boot_since_s >= OFFLINE_GRACE_S:
                return Gone("restart", f"the gateway {node!r} was started anew and does not know it")
            return None
        if known.since_s <= asked_s and not has_begun:  # it was gone before
            if now_s - asked_s < UNKNOWN_AFTER_S:
                return None
            return Gone("nobody", f"the gateway {node!r} is {_in_words(known.status)}")
        if now_s - max(known.since_s, asked_s) < OFFLINE_GRACE_S:
            return None
        reason = "worker_lost" if known.status == "offline" else "shutdown"
        return Gone(reason, f"the gateway {node!r} {'is offline' if known.status == 'offline' else 'was stopped'}")

    def _why_no_worker(self, group: str | None, asked_s: float, now_s: float, *, is_unheard: bool) -> Gone | None:
        if now_s - asked_s < UNKNOWN_AFTER_S:
            return None
        online = [known for known in self._nodes.values() if known.status == "online"]
        if not is_unheard and any(not known.has_info or known.group == group for known in online):
            return None
        others = "" if not online else "; of others there are"
        return Gone("nobody", f"the broker knows of no gateway of the group {group!r} that is online{others}")


def _in_words(status: str) -> str:
    return "offline" if status == "offline" else "stopped"
