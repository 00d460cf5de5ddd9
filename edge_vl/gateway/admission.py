"""Which requests run, which wait and which are refused. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

__all__ = ["Admission", "Asker"]


class Asker(Protocol):
    """What waits."""

    @property
    def client(self) -> str:
        """Who asks."""
        ...

    @property
    def turn_of(self) -> Hashable | None:
        """What it is a turn of, such as a conversation; None: it stands alone."""
        ...


T = TypeVar("T", bound=Asker)


class Admission(Generic[T]):
    """Lets so many requests run, and so many wait, each client in its turn.

    A client with many requests waits as long as one with a single one: the next to run is the oldest of the client
    whose turn it is. Turns of the same conversation run one after the other, and do not hold up anything else.
    """

    def __init__(self, *, max_active: int, max_waiting: int, max_per_client: int) -> None:
        """Begin with none.

        Args:
            max_active: that run at once.
            max_waiting: that wait behind them.
            max_per_client: of one client, running and waiting.
        """
        self._max_active = max_active
        self._max_waiting = max_waiting
        self._max_per_client = max_per_client
        self._waiting: OrderedDict[str, list[T]] = OrderedDict()
        self._num_waiting = 0
        self._active: set[T] = set()
        self._turns: set[Hashable] = set()
        self._num_of_client: dict[str, int] = {}

    @property
    def num_active(self) -> int:
        """Requests that run."""
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self._num_waiting

    def all(self) -> list[T]:
        """Return what waits, then what runs."""
        return [*(asker for line in self._waiting.values() for asker in line), *self._active]

    def refusal(self, client: str) -> str:
        """Return why a request of a client would be refused now; empty: it would be taken."""
        if self._num_of_client.get(client, 0) >= self._max_per_client:
            return (
                f"{self._max_per_client} requests of this client wait or run already; ask again later, with another id"
            )
        num_free = max(0, self._max_active - len(self._active))
        if self._num_waiting >= self._max_waiting + num_free:
            return (
                f"{self._num_waiting} requests wait already and at most {self._max_waiting} may; ask again later, with "
                "another id"
            )
        return ""

    def enter(self, asker: T) -> None:
        """Let a request wait that was not refused."""
        self._waiting.setdefault(asker.client, []).append(asker)
        self._num_waiting += 1
        self._num_of_client[asker.client] = self._num_of_client.get(asker.client, 0) + 1

    def next(self) -> T | None:
        """Let the next one run and return it; None: nobody may."""
        if len(self._active) >= self._max_active:
            return None
        for client, line in self._waiting.items():
            asker = next((asker for asker in line if asker.turn_of not in self._turns), None)
            if asker is None:
                continue
            self._remove(asker)
            if client in self._waiting:
                self._waiting.move_to_end(client)  # behind the others
            self._active.add(asker)
            if asker.turn_of is not None:
                self._turns.add(asker.turn_of)
            return asker
        return None

    def leave(self, asker: T) -> None:
        """Let go of a request that ran or waited. Does nothing when it has left already."""
        if asker in self._active:
            self._active.remove(asker)
            self._turns.discard(asker.turn_of)
        elif asker in self._waiting.get(asker.client, ()):
            self._remove(asker)
        else:
            return
        left = self._num_of_client[asker.client] - 1
        if left:
            self._num_of_client[asker.client] = left
        else:
            del self._num_of_client[asker.client]

    def _remove(self, asker: T) -> None:
        line = self._waiting[asker.client]
        line.remove(asker)
        self._num_waiting -= 1
        if not line:
            del self._waiting[asker.client]
