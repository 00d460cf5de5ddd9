"""What is to be sent: in order, kept until it is confirmed, within a bound. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.suspicion import SOON_S, Suspicion

__all__ = ["LARGE_BYTES", "MAX_SENDS", "OVERHEAD_BYTES", "Entry", "Keep", "Outbox", "Receipt"]

Keep = Literal["terminal", "delta", "latest", "refusal", "drop"]
"""What becomes of a message that cannot be sent now.

`terminal`: it is kept, and is the last to go when there is no room. `delta`: it is kept, and goes before those.
`latest`: only the newest of its topic is kept. `refusal`: it is kept, goes before all of these, is sent when none of
them waits, and has an eighth of the room with all others like it: whoever asks for nonsense as often as he can must not
cost others their answers.
`drop`: it is for this connection or not at all.
"""

OVERHEAD_BYTES = 256
"""What a message counts besides the packet that carries it."""

LARGE_BYTES = 131_072
"""Brokers may refuse a larger message by closing the connection; some of clouds do."""

MAX_SENDS = 5
"""Connections on which a large message is tried: it may be what ends them."""

_FIRST_TO_GO: tuple[Keep, ...] = ("drop", "refusal", "delta", "latest", "terminal")

_REFUSALS_SHARE = 8
"""Which part of the room refusals may have together."""

_NEIGHBOURS_SHARE = 16
"""Which part those may have whose topics differ in the last level only, as those for one client do."""


class Receipt(Protocol):
    """What the sender of a message holds: that part of a future which matters here."""

    def cancelled(self) -> bool:
        """Whether the sender has taken the message back."""
        ...


R = TypeVar("R", bound=Receipt)


@dataclass(slots=True, eq=False)
class Entry(Generic[R]):
    """A message on its way.

    Attributes:
        message: what is sent.
        keep: what becomes of it when it cannot be sent now.
        receipt: what its sender holds.
        sent_s: `time.monotonic()` when it was last given to a connection.
        num_sends: connections that it was given to.
        order: its place among those that wait; the smallest is sent first.
        is_guilty: whether it was given up because it, or others of its topic, ended the connections.
        cost_bytes: what it counts against the bound.
    """

    message: Outbound
    keep: Keep
    receipt: R
    sent_s: float = 0.0
    num_sends: int = 0
    order: int = 0
    is_guilty: bool = False
    cost_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Count it once: it does not change."""
        self.cost_bytes = self.message.num_bytes + OVERHEAD_BYTES


class Outbox(Generic[R]):
    """Messages that wait, and messages that are sent and not confirmed.

    All of them but refusals are sent in the order in which they came, so that order holds within each topic, also over
    connections: what was not confirmed on one is sent first on the next. A message at QoS 1 may therefore arrive twice.

    A message that may be what ends the connections is sent alone, and given up when it is; see `Suspicion`.

    Attributes:
        num_bytes: what all its messages count.
        num_dropped: messages that were given up, by what was to become of them; not those that a newer one replaced.
    """

    def __init__(self, max_bytes: int) -> None:
        """Begin empty.

        Args:
            max_bytes: bound of `num_bytes`, > 0. What is sent and not confirmed counts and is never given up for room.
        """
        self._max_bytes = max_bytes
        self._waiting: OrderedDict[int, Entry[R]] = OrderedDict()  # but for refusals
        self._by_keep: dict[Keep, OrderedDict[int, Entry[R]]] = {keep: OrderedDict() for keep in _FIRST_TO_GO}
        self._waiting_bytes: Counter[Keep] = Counter()
        self._newest: dict[str, Entry[R]] = {}
        self._in_flight: OrderedDict[int, Entry[R]] = OrderedDict()
        self._refusals: dict[str, OrderedDict[int, Entry[R]]] = {}  # by all but the last level of the topic
        self._refusal_bytes: Counter[str] = Counter()  # likewise
        self._suspicion = Suspicion()
        self._trial: Entry[R] | None = None  # the suspect that is under way alone
        self._last_order = 0
        self._first_order = 0
        self.num_bytes = 0
        self.num_dropped: Counter[Keep] = Counter()

    @property
    def num_waiting(self) -> int:
        """Messages that no connection was given, or that must be given to one again."""
        return len(self._waiting) + len(self._by_keep["refusal"])

    @property
    def num_in_flight(self) -> int:
        """Messages that were sent and are not confirmed."""
        return len(self._in_flight)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and everything is confirmed."""
        return not self.num_waiting and not self._in_flight

    @property
    def num_kept(self) -> int:
        """Messages that are not confirmed and were to outlive a connection."""
        entries = [*self._in_flight.values(), *self._waiting.values(), *self._by_keep["refusal"].values()]
        return sum(entry.keep != "drop" and not entry.receipt.cancelled() for entry in entries)

    @property
    def oldest_sent_s(self) -> float | None:
        """When the one sent longest ago of those that are not confirmed was sent."""
        return next(iter(self._in_flight.values())).sent_s if self._in_flight else None

    def add(self, entry: Entry[R]) -> list[Entry[R]]:
        """Put a message behind all others; return those that are given up for it, perhaps itself."""
        dropped = self._without_older(entry)
        if entry.keep == "refusal":
            dropped += self._made_room_among_refusals(entry)
            if dropped and dropped[-1] is entry:
                return dropped
        dropped += self._made_room(entry)
        if dropped and dropped[-1] is entry:
            return dropped
        self._last_order += 1
        entry.order = self._last_order
        self._put(entry)
        return dropped

    def add_first(self, entries: Iterable[Entry[R]]) -> list[Entry[R]]:
        """Put messages before all others, in their order; return those that are given up, because they are older."""
        fresh = list(entries)
        dropped = [old for entry in fresh for old in self._without_older(entry)]
        for entry in reversed(fresh):
            self._put_first(entry)
        return dropped

    def take(self, max_in_flight: int, *, is_settled: bool = True) -> Entry[R] | None:
        """Take out the message to be sent next.

        Args:
            max_in_flight: messages that may be sent and not confirmed at once, > 0.
            is_settled: whether the connection has lived long enough for a suspect.

        Returns:
            None: nothing waits, too many are not confirmed, or one is sent alone now or next. What its sender has taken
            back is passed over.
        """
        while queue := self._waiting or self._by_keep["refusal"]:
            entry = next(iter(queue.values()))
            if entry.receipt.cancelled():
                self._remove(entry)
                continue
            if self._trial is not None:
                return None
            if entry.message.qos > 0:
                # Of the places, half are for what is more than a refusal, and may come at any moment.
                if len(self._in_flight) >= (max_in_flight if queue is self._waiting else (max_in_flight + 1) // 2):
                    return None
                if self._suspicion.is_suspect(entry.message) and (self._in_flight or not is_settled):
                    return None
            self._remove(entry)
            return entry
        return None

    def sent(self, entry: Entry[R], number: int, now_s: float) -> None:
        """Keep a message that was taken and sent at QoS 1, until it is confirmed.

        Args:
            entry: what was taken.
            number: what the connection will confirm it by.
            now_s: `time.monotonic()`.
        """
        entry.sent_s = now_s
        entry.num_sends += 1
        self._in_flight[number] = entry
        self.num_bytes += entry.cost_bytes
        if self._suspicion.is_suspect(entry.message):
            self._trial = entry

    def confirmed(self, number: int, now_s: float) -> Entry[R] | None:
        """Let go of a message; None: there is none of that number."""
        entry = self._in_flight.pop(number, None)
        if entry is not None:
            self.num_bytes -= entry.cost_bytes
            self._trial = None
            self._suspicion.note_taken(entry.message, now_s)
        return entry

    def connection_lost(self, now_s: float, *, is_by_broker: bool) -> list[Entry[R]]:
        """Put what was not confirmed before everything that waits; return those that are given up.

        Given up is what is for one connection only, states of which there is a newer one, a message that has ended the
        connection, and a large message that was not confirmed on several connections: it may be what ended them.

        Args:
            now_s: `time.monotonic()`.
            is_by_broker: whether the broker ended it.
        """
        sent, trial = list(self._in_flight.values()), self._trial
        self._in_flight.clear()
        self._trial = None
        self.num_bytes -= sum(entry.cost_bytes for entry in sent)
        dropped, replaced = [], []
        if trial is not None and is_by_broker and now_s - trial.sent_s < SOON_S:
            trial.is_guilty = True
            if self._suspicion.note_guilty(trial.message, now_s):
                dropped += self._without_topic(trial.message.topic)
        for entry in reversed(sent):
            if not entry.is_guilty:
                self._suspicion.note_lost(entry.message, now_s - entry.sent_s)
            if entry.receipt.cancelled():
                continue
            if entry.num_sends >= MAX_SENDS and len(entry.message.payload) > LARGE_BYTES:
                entry.is_guilty = True
            if entry.keep == "drop" or entry.is_guilty:
                dropped.append(entry)
            elif entry.keep == "latest" and entry.message.topic in self._newest:
                replaced.append(entry)
            else:
                self._put_first(entry)
        for entry in list(self._by_keep["drop"].values()):
            self._remove(entry)
            dropped.append(entry)
        self.num_dropped.update(entry.keep for entry in dropped)
        return dropped + replaced

    def is_banned(self, topic: str, now_s: float) -> bool:
        """Whether nothing is to be added for a topic, because what is sent there ends the connections."""
        return self._suspicion.is_banned(topic, now_s)

    def max_packet_bytes(self, now_s: float) -> int | None:
        """Return the largest packet that the broker takes, as far as it is known from what it did; None: it is not."""
        return self._suspicion.max_bytes(now_s)

    def clear(self) -> list[Entry[R]]:
        """Take out everything, and return it."""
        rest = [*self._in_flight.values(), *self._waiting.values(), *self._by_keep["refusal"].values()]
        for entries in (self._waiting, self._in_flight, *self._by_keep.values()):
            entries.clear()
        self._newest.clear()
        self._refusals.clear()
        self._refusal_bytes.clear()
        self._waiting_bytes.clear()
        self._trial = None
        self.num_bytes = 0
        return rest

    def _put(self, entry: Entry[R]) -> None:
        if entry.keep != "refusal":
            self._waiting[entry.order] = entry
        self._by_keep[entry.keep][entry.order] = entry
        if entry.keep == "latest":
            self._newest[entry.message.topic] = entry
        elif entry.keep == "refusal":
            above = _above(entry)
            self._refusals.setdefault(above, OrderedDict())[entry.order] = entry
            self._refusal_bytes[above] += entry.cost_bytes
        self._waiting_bytes[entry.keep] += entry.cost_bytes
        self.num_bytes += entry.cost_bytes

    def _put_first(self, entry: Entry[R]) -> None:
        self._first_order -= 1
        entry.order = self._first_order
        self._put(entry)
        if entry.keep != "refusal":
            self._waiting.move_to_end(entry.order, last=False)
        self._by_keep[entry.keep].move_to_end(entry.order, last=False)

    def _remove(self, entry: Entry[R]) -> None:
        self._waiting.pop(entry.order, None)
        del self._by_keep[entry.keep][entry.order]
        if self._newest.get(entry.message.topic) is entry:
            del self._newest[entry.message.topic]
        if entry.keep == "refusal":
            above = _above(entry)
            neighbours = self._refusals[above]
            del neighbours[entry.order]
            self._refusal_bytes[above] -= entry.cost_bytes
            if not neighbours:
                del self._refusals[above], self._refusal_bytes[above]
        self._waiting_bytes[entry.keep] -= entry.cost_bytes
        self.num_bytes -= entry.cost_bytes

    def _without_older(self, entry: Entry[R]) -> list[Entry[R]]:
        old = self._newest.get(entry.message.topic) if entry.keep == "latest" else None
        if old is None:
            return []
        self._remove(old)
        return [old]

    def _without_topic(self, topic: str) -> list[Entry[R]]:
        waiting = [*self._waiting.values(), *self._by_keep["refusal"].values()]
        found = [entry for entry in waiting if entry.message.topic == topic]
        for entry in found:
            self._remove(entry)
            entry.is_guilty = True
        return found

    def _made_room_among_refusals(self, entry: Entry[R]) -> list[Entry[R]]:
        """Give up refusals, oldest first: neighbours of a new one, then any; the new one itself if it is too large."""
        above, cost_bytes, dropped = _above(entry), entry.cost_bytes, []
        if cost_bytes > self._max_bytes // _NEIGHBOURS_SHARE:
            self.num_dropped["refusal"] += 1
            return [entry]
        while self._refusal_bytes[above] + cost_bytes > self._max_bytes // _NEIGHBOURS_SHARE:
            dropped.append(next(iter(self._refusals[above].values())))
            self._remove(dropped[-1])
        while self._waiting_bytes["refusal"] + cost_bytes > self._max_bytes // _REFUSALS_SHARE:
            dropped.append(next(iter(self._by_keep["refusal"].values())))
            self._remove(dropped[-1])
        self.num_dropped["refusal"] += len(dropped)
        return dropped

    def _made_room(self, entry: Entry[R]) -> list[Entry[R]]:
        """Give up what is worth less than the new message, or as much and is older; the message itself if need be."""
        if self.num_bytes + entry.cost_bytes <= self._max_bytes:
            return []
        evictable = _FIRST_TO_GO[: _FIRST_TO_GO.index(entry.keep) + 1]
        can_free = sum(self._waiting_bytes[keep] for keep in evictable)
        if self.num_bytes - can_free + entry.cost_bytes > self._max_bytes:
            self.num_dropped[entry.keep] += 1
            return [entry]
        dropped = []
        for keep in evictable:
            while self._by_keep[keep] and self.num_bytes + entry.cost_bytes > self._max_bytes:
                old = next(iter(self._by_keep[keep].values()))
                self._remove(old)
                if not old.receipt.cancelled():
                    self.num_dropped[keep] += 1
                    dropped.append(old)
        return dropped


def _above(entry: Entry[R]) -> str:
    return entry.message.topic.rpartition("/")[0]
