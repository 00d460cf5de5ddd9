"""The ids of requests that came lately, so that one that is delivered twice is answered once. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict

__all__ = ["RecentIds"]


class RecentIds:
    """Remembers so many ids and no more; the one not met for longest is forgotten first."""

    def __init__(self, max_ids: int) -> None:
        """Begin with none.

        Args:
            max_ids: remembered at once, at least 1.
        """
        self._max_ids = max(1, max_ids)
        self._ids: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._num_by_id: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._ids)

    def add(self, client: str, id: str) -> bool:
        """Remember the request of a client; two clients may choose the same id.

        Returns:
            Whether it is new.
        """
        key = (client, id)
        is_new = key not in self._ids
        self._ids[key] = None
        self._ids.move_to_end(key)
        if is_new:
            self._num_by_id[id] += 1
        if len(self._ids) > self._max_ids:
            (_, oldest), _ = self._ids.popitem(last=False)
            self._num_by_id[oldest] -= 1
            if not self._num_by_id[oldest]:
                del self._num_by_id[oldest]
        return is_new

    def is_known(self, client: str | None, id: str) -> bool:
        """Whether a request of a client, or, without one, of anybody, is remembered."""
        return self._num_by_id[id] > 0 if client is None else (client, id) in self._ids
