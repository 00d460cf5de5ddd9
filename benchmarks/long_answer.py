"""A long answer that runs beside what is measured."""

from __future__ import annotations

import threading
import time
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edge_vl import Cancelled, Runtime

__all__ = ["LongAnswer"]


class LongAnswer:
    """Reads an answer on a thread of its own and notes when each token came; left early, it is cancelled."""

    def __init__(self, runtime: Runtime, picture: NDArray[np.uint8], question: str, *, max_tokens: int) -> None:
        """Ask."""
        self._stream = runtime.stream(picture, question, max_tokens=max_tokens)
        self._arrivals: list[tuple[int, float]] = []
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        """Start to read."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel, and wait for the reader."""
        self._stream.cancel()
        self._thread.join()

    def wait_for_tokens(self, num_tokens: int) -> None:
        """Block until so many tokens are there.

        Raises:
            RuntimeError: the answer ended before.
        """
        while not self._arrivals or self._arrivals[-1][0] + 1 < num_tokens:
            if not self._thread.is_alive():
                raise RuntimeError(f"the long answer ended before its token {num_tokens}")
            time.sleep(0.005)

    @property
    def num_tokens(self) -> int:
        """Tokens that came."""
        return self._arrivals[-1][0] + 1 if self._arrivals else 0

    def rate(self, began_s: float = 0.0, ended_s: float = float("inf")) -> float:
        """Return tokens a second between two moments on the monotonic clock.

        Tokens that complete no character are not shown; their indices count them all the same.
        """
        within = [arrival for arrival in self._arrivals if began_s <= arrival[1] <= ended_s]
        if len(within) < 2:
            return 0.0
        (first, first_s), (last, last_s) = within[0], within[-1]
        return (last - first) / (last_s - first_s)

    def _read(self) -> None:
        try:
            for token in self._stream:
                self._arrivals.append((token.index, time.monotonic()))
        except Cancelled:
            pass  # left early
