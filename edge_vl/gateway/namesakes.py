"""Whether another gateway uses the same name, and which of the two has to go. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from edge_vl.mqtt.node_messages import Info
from edge_vl.mqtt.reading import BadPayload, read_message

__all__ = ["NameVerdict", "Namesakes"]

NameVerdict = Literal["nothing", "own", "younger", "older", "leave"]

_MAX_KNOWN = 16

NUM_QUESTIONS = 2
"""Times that another gateway is asked whether it lives."""

ANSWER_S = 10.0
"""It answers sooner."""

Rank = tuple[float, str]


@dataclass(frozen=True, slots=True)
class _Heard:
    """When another gateway was heard, and how often in a row."""

    at_s: float
    num_times: int


class Namesakes:
    """Judges what is heard on the topic where the gateway itself says what it is.

    What the broker kept tells nothing: it may be of the last run of the same gateway, which has crashed. But what
    another run says while this one listens shows that it lives. Of the two, the one that started later goes; wall
    clocks may be wrong, but both see the same two times, so that never both go. The later one asks twice, by saying its
    own info, before it goes: an info that was on its way when its sender ended, or that a bridge between brokers
    delivers once more, is not said again. Whoever may write to the topics of a gateway can still pretend to be one.
    """

    def __init__(self, boot_id: str, started_at: str) -> None:
        """Begin with nobody known.

        Args:
            boot_id: of this run of the gateway.
            started_at: when it started, as it says in its info.
        """
        self._boot_id = boot_id
        self._rank: Rank = (_seconds(started_at), boot_id)
        self._older: dict[str, _Heard] = {}
        self.other: Info | None = None

    def judge(self, payload: bytes, now_s: float, *, is_kept: bool) -> NameVerdict:
        """Take in an info.

        Args:
            payload: anything at all.
            now_s: `time.monotonic()`.
            is_kept: whether the broker has kept it, as opposed to being said just now.

        Returns:
            `own`: the gateway's own words came back; `younger`: another one started after it, and should hear of it;
            `older`: another one started before, and is to be asked whether it still lives; `leave`: it does, for it
            has answered soon each time;
            `nothing`: it says nothing of a gateway that runs.
        """
        try:
            info = read_message(payload, Info)
            rank = (_seconds(info.started_at), info.boot_id)
        except (BadPayload, ValueError):
            return "nothing"
        if is_kept:
            return "nothing"
        if info.boot_id == self._boot_id:
            return "own"
        self.other = info
        if rank > self._rank:
            return "younger"
        before = self._older.pop(info.boot_id, None)
        is_answer = before is not None and now_s - before.at_s <= ANSWER_S
        heard = _Heard(now_s, before.num_times + 1 if before is not None and is_answer else 1)
        self._older[info.boot_id] = heard
        if len(self._older) > _MAX_KNOWN:
            del self._older[next(iter(self._older))]
        return "leave" if heard.num_times > NUM_QUESTIONS else "older"


def _seconds(started_at: str) -> float:
    """Return a wall time as seconds; raises `ValueError` where it is none."""
    try:
        return datetime.fromisoformat(started_at).timestamp()
    except OverflowError:
        raise ValueError(started_at) from None
