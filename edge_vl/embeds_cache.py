"""Image embeds by content, so that equal tiles are encoded once."""

from __future__ import annotations

from collections import OrderedDict

from edge_vl.engine import ImageEmbeds

__all__ = ["EmbedsCache"]


class EmbedsCache:
    """The image embeds used last, within a number of bytes. Belongs to the language lane of one runtime.

    The key of a unit says its pixels; model, precision and preprocessing are those of the runtime.

    Attributes:
        num_hits: how often embeds were there.
        num_misses: how often they were not.
        num_evicted: how many had to make room.
        nbytes: memory held.
    """

    def __init__(self, max_bytes: int) -> None:
        """Begin empty; 0 bytes keep nothing."""
        self.num_hits = self.num_misses = self.num_evicted = self.nbytes = 0
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, ImageEmbeds] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self._kept)

    def __contains__(self, key: str) -> bool:
        """Say whether the embeds of a unit are kept; does not count. From any thread."""
        return key in self._kept

    def find(self, key: str) -> ImageEmbeds | None:
        """Return the embeds of a unit, or None."""
        found = self._kept.get(key)
        if found is None:
            self.num_misses += 1
            return None
        self.num_hits += 1
        self._kept.move_to_end(key)
        return found

    def keep(self, key: str, embeds: ImageEmbeds) -> None:
        """Keep embeds; those not used for longest make room."""
        size = embeds.values.nbytes
        if size > self._max_bytes:
            return
        before = self._kept.pop(key, None)
        if before is not None:
            self.nbytes -= before.values.nbytes
        self._kept[key] = embeds
        self.nbytes += size
        while self.nbytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.nbytes -= oldest.values.nbytes
            self.num_evicted += 1
