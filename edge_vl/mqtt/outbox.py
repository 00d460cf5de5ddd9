"""What is to be sent: in order, kept until it is confirmed, within a bound. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from edge_vl.mqtt.packet import Outbound

__all__ = ["LARGE_BYTES", "MAX_SENDS", "OVERHEAD_BYTES", "Entry", "Keep", "Outbox", "Receipt"]

Keep = Literal["terminal", "delta", "latest", "drop"]
"""What becomes of a message that cannot be sent now.

`terminal`: it is kept, and is the last to go when there is no room. `delta`: it is kept, and is the first to go.
`latest`: only the newest of its topic is kept. `drop`: it is for this connection or not at all.
"""

OVERHEAD_BYTES = 256
"""What a message counts besides its topic and payload."""

LARGE_BYTES = 131_072
"""Brokers may refuse a larger message by closing the connection; some of clouds do."""

MAX_SENDS = 5
"""Connections on which a large message is tried: it may be what ends them."""

_FIRST_TO_GO: tuple[Keep, ...] = ("drop", "delta", "latest", "terminal")


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
    """

    message: Outbound
    keep: Keep
    receipt: R
    sent_s: float = 0.0
    num_sends: int = 0
    order: int = 0

    @property
    def cost_bytes(self) -> int:
        """What it counts against the bound."""
        return len(self.message.payload) + len(self.message.topic) + OVERHEAD_BYTES


class Outbox(Generic[R]):
    """Messages that wait, and messages that are sent and not confirmed.

    All of them are sent in the order in which they came, so that order holds within each topic, also over connections:
    what was not confirmed on one is sent first on the next. A message at QoS 1 may therefore arrive twice.

    Attributes:
        num_bytes: what all its messages count.
        num_dropped: messages that were given up, by what was to become of them.
    """

    def __init__(self, max_bytes: int) -> None:
        """Begin empty.

        Args:
            max_bytes: bound of `num_bytes`, > 0. What is sent and not confirmed counts and is never given up for room.
        """
        self._max_bytes = max_bytes
        self._waiting: OrderedDict[int, Entry[R]] = OrderedDict()
        self._by_keep: dict[Keep, OrderedDict[int, Entry[R]]] = {keep: OrderedDict() for keep in _FIRST_TO_GO}
        self._waiting_bytes: Counter[Keep] = Counter()
        self._newest: dict[str, Entry[R]] = {}
        self._in_flight: OrderedDict[int, Entry[R]] = OrderedDict()
        self._last_order = 0
        self._first_order = 0
        self.num_bytes = 0
        self.num_dropped: Counter[Keep] = Counter()

    @property
    def num_waiting(self) -> int:
        """Messages that no connection was given, or that must be given to one again."""
        return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        """Messages that were sent and are not confirmed."""
        return len(self._in_flight)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and everything is confirmed."""
        return not self._waiting and not self._in_flight

    @property
    def oldest_sent_s(self) -> float | None:
        """When the one sent longest ago of those that are not confirmed was sent."""
        return next(iter(self._in_flight.values())).sent_s if self._in_flight else None

    def add(self, entry: Entry[R]) -> list[Entry[R]]:
        """Put a message behind all others; return those that are given up for it, perhaps itself."""
        dropped = self._without_older(entry)
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

    def take(self, max_in_flight: int) -> Entry[R] | None:
        """Take out the message to be sent next.

        Args:
            max_in_flight: messages that may be sent and not confirmed at once, > 0.

        Returns:
            None: nothing waits, or too many are not confirmed. What its sender has taken back is passed over.
        """
        while self._waiting:
            entry = next(iter(self._waiting.values()))
            if entry.receipt.cancelled():
                self._remove(entry)
                continue
            if entry.message.qos > 0 and len(self._in_flight) >= max_in_flight:
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

    def confirmed(self, number: int) -> Entry[R] | None:
        """Let go of a message; None: there is none of that number."""
        entry = self._in_flight.pop(number, None)
        if entry is not None:
            self.num_bytes -= entry.cost_bytes
        return entry

    def connection_lost(self) -> list[Entry[R]]:
        """Put what was not confirmed before everything that waits; return those that are given up.

        Given up is what is for one connection only, states of which there is a newer one, and a large message that was
        not confirmed on several connections: it may be what ended them.
        """
        sent = list(self._in_flight.values())
        self._in_flight.clear()
        self.num_bytes -= sum(entry.cost_bytes for entry in sent)
        dropped = []
        for entry in reversed(sent):
            if entry.receipt.cancelled():
                continue
            is_poison = entry.num_sends >= MAX_SENDS and len(entry.message.payload) > LARGE_BYTES
            is_old = entry.keep == "latest" and entry.message.topic in self._newest
            if entry.keep == "drop" or is_poison or is_old:
                dropped.append(entry)
            else:
                self._put_first(entry)
        for entry in list(self._by_keep["drop"].values()):
            self._remove(entry)
            dropped.append(entry)
        self.num_dropped.update(entry.keep for entry in dropped)
        return dropped

    def clear(self) -> list[Entry[R]]:
        """Take out everything, and return it."""
        rest = [*self._in_flight.values(), *self._waiting.values()]
        for entries in (self._waiting, self._in_flight, *self._by_keep.values()):
            entries.clear()
        self._newest.clear()
        self._waiting_bytes.clear()
        self.num_bytes = 0
        return rest

    def _put(self, entry: Entry[R]) -> None:
        self._waiting[entry.order] = entry
        self._by_keep[entry.keep][entry.order] = entry
        if entry.keep == "latest":
            self._newest[entry.message.topic] = entry
        self._waiting_bytes[entry.keep] += entry.cost_bytes
        self.num_bytes += entry.cost_bytes

    def _put_first(self, entry: Entry[R]) -> None:
        self._first_order -= 1
        entry.order = self._first_order
        self._put(entry)
        self._waiting.move_to_end(entry.order, last=False)
        self._by_keep[entry.keep].move_to_end(entry.order, last=False)

    def _remove(self, entry: Entry[R]) -> None:
        del self._waiting[entry.order], self._by_keep[entry.keep][entry.order]
        if self._newest.get(entry.message.topic) is entry:
            del self._newest[entry.message.topic]
        self._waiting_bytes[entry.keep] -= entry.cost_bytes
        self.num_bytes -= entry.cost_bytes

    def _without_older(self, entry: Entry[R]) -> list[Entry[R]]:
        old = self._newest.get(entry.message.topic) if entry.keep == "latest" else None
        if old is None:
            return []
        self._remove(old)
        self.num_dropped["latest"] += 1
        return [old]

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
