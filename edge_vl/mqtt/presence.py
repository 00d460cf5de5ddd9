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


class Presence:
    """What is known of gateways. Times are `time.monotonic()`."""

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
        if node not in self._nodes and is_retained:
            self._nodes[node] = _Node(status, -math.inf)
        known = self._nodes.setdefault(node, _Node("", now_s))
        if known.status != status:
            known.status, known.since_s = status, now_s

    def note_boot(self, node: str, boot_id: str, now_s: float) -> None:
        """Take in which start of a gateway is running."""
        known = self._nodes.setdefault(node, _Node("", now_s))
        if known.boot_id != boot_id:
            known.boot_id, known.boot_since_s = boot_id, now_s

    def why_gone(self, node: str | None, *, has_begun: bool, boot_id: str, asked_s: float, now_s: float) -> Gone | None:
        """Say why a request that waits will not be answered any more.

        Args:
            node: who has it; None: one of a group, not known which.
            has_begun: whether anything of the answer came.
            boot_id: which start of the gateway has it; empty: not known.
            asked_s: when it was sent.
            now_s: the present.

        Returns:
            None: it may still be answered.
        """
        if node is None:
            return self._why_no_worker(asked_s, now_s)
        known = self._nodes.get(node)
        if known is None or not known.status:
            if has_begun or now_s - asked_s < UNKNOWN_AFTER_S:
                return None
            return Gone("nobody", f"the broker knows of no gateway {node!r}")
        if known.status == "online":
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

    def _why_no_worker(self, asked_s: float, now_s: float) -> Gone | None:
        if now_s - asked_s < UNKNOWN_AFTER_S or any(known.status == "online" for known in self._nodes.values()):
            return None
        return Gone("nobody", "the broker knows of no gateway that is online")


def _in_words(status: str) -> str:
    return "offline" if status == "offline" else "stopped"
