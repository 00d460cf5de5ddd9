"""Who may decode a picture at this moment, so that many large ones at once do not take all the memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["DecodingTurns"]

_LOOK_EVERY_S = 0.05
"""How soon who waits notices that it need not any more."""


class DecodingTurns:
    """Lets so many pixels be decoded at once; whoever comes first is first. Any thread."""

    def __init__(self, max_pixels: int) -> None:
        """Begin with nobody.

        Args:
            max_pixels: of all pictures together; a picture that alone has more has its turn when there is no other.
        """
        self._max_pixels = max_pixels
        self._num_pixels = 0
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def num_pixels(self) -> int:
        """Pixels that are being decoded."""
        return self._num_pixels

    @contextmanager
    def turn(self, check: Callable[[], object]) -> Iterator[Callable[[int], None]]:
        """Keep a turn until the body has ended.

        Args:
            check: called while it waits; what it raises ends the waiting.

        Yields:
            What waits for the turn of a picture of so many pixels; to be called once or never.
        """
        taken: list[int] = []

        def wait(num_pixels: int) -> None:
            self._take(num_pixels, check)
            taken.append(num_pixels)

        try:
            yield wait
        finally:
            if taken:
                with self._changed:
                    self._num_pixels -= sum(taken)
                    self._changed.notify_all()

    def _take(self, num_pixels: int, check: Callable[[], object]) -> None:
        place = object()
        with self._changed:
            self._line.append(place)
        try:
            while not self._has_turn(place, num_pixels):
                check()
        finally:
            with self._changed:
                self._line.remove(place)
                self._changed.notify_all()

    def _has_turn(self, place: object, num_pixels: int) -> bool:
        """Take the turn if it has come; else wait a moment."""
        with self._changed:
            fits = not self._num_pixels or self._num_pixels + num_pixels <= self._max_pixels
            if self._line[0] is place and fits:
                self._num_pixels += num_pixels
                return True
            self._changed.wait(_LOOK_EVERY_S)
            return False
