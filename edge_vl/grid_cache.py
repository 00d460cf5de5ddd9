"""Pictures that were cut last, so that one that is asked about again is not cut again."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable

from edge_vl.frame import Frame
from edge_vl.plan import ImageGrid

__all__ = ["GridCache"]


class GridCache:
    """The grids of pictures by their pixels, within a number of bytes. Any thread."""

    def __init__(self, max_bytes: int) -> None:
        """Begin empty; 0 bytes keep nothing."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int | None], ImageGrid] = OrderedDict()
        self._nbytes = 0

    def cut(self, frame: Frame, longest_edge: int | None, cut: Callable[[Frame, int | None], ImageGrid]) -> ImageGrid:
        """Return the grid of a picture; it is cut only if its pixels are not those of one that is kept."""
        digest = hashlib.blake2b(frame.pixels.data, digest_size=16, person=f"{frame.height}x{frame.width}".encode())
        key = digest.hexdigest(), longest_edge
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        grid = cut(frame, longest_edge)
        with self._lock:
            self._nbytes -= _nbytes(self._kept.pop(key, None))
            self._kept[key] = grid
            self._nbytes += _nbytes(grid)
            while self._kept and self._nbytes > self._max_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._nbytes -= _nbytes(oldest)
        return grid

    def clear(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self._kept.clear()
            self._nbytes = 0


def _nbytes(grid: ImageGrid | None) -> int:
    return 0 if grid is None else sum(unit.pixels.nbytes for unit in grid.units)
