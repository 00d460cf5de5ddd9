"""What each stream of frames looked like."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_vl.similar_tiles import SimilarTiles

__all__ = ["TileMemory"]

_MAX_STREAMS = 16


class TileMemory:
    """The tiles of each stream that were encoded last. Any thread."""

    def __init__(self) -> None:
        """Begin with no stream."""
        self._lock = threading.Lock()
        self._streams: OrderedDict[tuple[str, int, int | None], SimilarTiles] = OrderedDict()

    def of(self, stream: str, index: int, longest_edge: int | None) -> SimilarTiles:
        """Return the memory of one picture of a stream's requests, cut in one way; the oldest one goes."""
        from edge_vl.similar_tiles import SimilarSettings, SimilarTiles  # late: few ask for it

        with self._lock:
            found = self._streams.pop((stream, index, longest_edge), None) or SimilarTiles(SimilarSettings())
            self._streams[stream, index, longest_edge] = found
            if len(self._streams) > _MAX_STREAMS:
                self._streams.popitem(last=False)
            return found

    def clear(self) -> None:
        """Forget all streams."""
        with self._lock:
            self._streams.clear()
