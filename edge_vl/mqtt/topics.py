"""The topics of the MQTT contract. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge_vl.errors import RequestError

__all__ = ["MAX_LEVELS", "NAME", "GroupTopics", "NodeTopics", "check_name", "check_prefix"]

NAME = r"[A-Za-z0-9_-]{1,64}"
"""What a node, camera, client, group, request or action may be called."""

MAX_LEVELS = 7
"""Levels that a topic of ours may have; some brokers of clouds allow no more."""

_MAX_PREFIX_LEVELS = 2


def check_name(name: str, field: str) -> str:
    """Return a name that may be a level of a topic.

    Raises:
        RequestError: it may not.
    """
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        raise RequestError(f"{field} is 1 to 64 letters, digits, _ or -, not {name!r:.80}", field=field)
    return name


def check_prefix(prefix: str, field: str = "prefix") -> str:
    """Return what all topics of an installation begin with: one or two names.

    Raises:
        RequestError: it is something else.
    """
    levels = prefix.split("/") if isinstance(prefix, str) else []
    if not 1 <= len(levels) <= _MAX_PREFIX_LEVELS:
        raise RequestError(f"{field} is one or two names with a / between them, not {prefix!r:.80}", field=field)
    for level in levels:
        check_name(level, field)
    return prefix


@dataclass(frozen=True, slots=True)
class NodeTopics:
    """Topics of one gateway.

    Attributes:
        prefix: what all topics of an installation begin with.
        node: the gateway's name.
    """

    prefix: str
    node: str

    @property
    def base(self) -> str:
        """What all its topics begin with."""
        return f"{self.prefix}/{self.node}"

    @property
    def status(self) -> str:
        """Retained: `online`, `stopped` or, by its last will, `offline`."""
        return f"{self.base}/status"

    @property
    def info(self) -> str:
        """Retained: what it is."""
        return f"{self.base}/info"

    @property
    def stats(self) -> str:
        """How it does, again and again."""
        return f"{self.base}/stats"

    @property
    def request(self) -> str:
        """Takes requests."""
        return f"{self.base}/request"

    @property
    def cancel(self) -> str:
        """Takes cancels."""
        return f"{self.base}/cancel"

    @property
    def image_filter(self) -> str:
        """Filter of the topics that take raw pictures."""
        return f"{self.base}/image/+/+"

    def image(self, client: str, id: str) -> str:
        """Take one raw picture for a request to come."""
        return f"{self.base}/image/{client}/{id}"

    def response(self, client: str, id: str) -> str:
        """Carry the stream of one request that names no reply topic."""
        return f"{self.base}/response/{client}/{id}"

    def action(self, name: str) -> str:
        """Carry what an agent does."""
        return f"{self.base}/action/{name}"

    def camera(self, camera: str, what: str) -> str:
        """Carry something of one camera: `state`, `event`, `answer`, `answer/last`, `snapshot`, `enabled/set`, ..."""
        return f"{self.base}/camera/{camera}/{what}"


@dataclass(frozen=True, slots=True)
class GroupTopics:
    """Topics of a group of workers that share their requests.

    Attributes:
        prefix: what all topics of an installation begin with.
        group: the group's name.
    """

    prefix: str
    group: str

    @property
    def request(self) -> str:
        """Takes requests for whichever worker is free."""
        return f"{self.prefix}/group/{self.group}/request"

    @property
    def shared_request(self) -> str:
        """Filter that gives each request to one worker."""
        return f"$share/{self.group}/{self.request}"

    @property
    def cancel(self) -> str:
        """Takes cancels; every worker hears them."""
        return f"{self.prefix}/group/{self.group}/cancel"

    @property
    def claims(self) -> str:
        """Where workers say what they have taken, and what they have ended."""
        return f"{self.prefix}/group/{self.group}/claims"
