"""Raw pictures that came before the request that is about them. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ImageShelf", "ShelvedImage"]

MAX_IMAGES = 256
"""Pictures that may lie there, however small."""


@dataclass(frozen=True, slots=True)
class ShelvedImage:
    """An encoded picture as it came.

    Attributes:
        data: its bytes.
        received_s: on the monotonic clock.
    """

    data: bytes
    received_s: float


class ImageShelf:
    """Keeps pictures by topic: so many bytes, for so long. The oldest leaves first."""

    def __init__(self, *, max_image_bytes: int, max_bytes: int, max_wait_s: float, clock: Callable[[], float]) -> None:
        """Begin empty.

        Args:
            max_image_bytes: of one picture.
            max_bytes: of all of them.
            max_wait_s: how long one stays.
            clock: the monotonic one.
        """
        self._max_image_bytes = max_image_bytes
        self._max_bytes = max_bytes
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._images: OrderedDict[str, ShelvedImage] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        """Return how many lie there."""
        return len(self._images)

    @property
    def num_bytes(self) -> int:
        """Bytes of all that lie there."""
        return self._num_bytes

    def put(self, topic: str, data: bytes) -> bool:
        """Keep a picture; one that came on the same topic before is replaced.

        Returns:
            Whether it is kept: not if it is empty or too large.
        """
        self._tidy()
        if not data or len(data) > min(self._max_image_bytes, self._max_bytes):
            return False
        self._drop(topic)
        self._images[topic] = ShelvedImage(data, self._clock())
        self._num_bytes += len(data)
        while self._num_bytes > self._max_bytes or len(self._images) > MAX_IMAGES:
            self._drop(next(iter(self._images)))
        return True

    def take(self, topic: str) -> ShelvedImage | None:
        """Return a picture and let go of it; None where there is none, or it has lain there for too long."""
        self._tidy()
        image = self._images.get(topic)
        self._drop(topic)
        return image

    def _tidy(self) -> None:
        too_old_s = self._clock() - self._max_wait_s
        while self._images:
            topic, image = next(iter(self._images.items()))
            if image.received_s >= too_old_s:
                return
            self._drop(topic)

    def _drop(self, topic: str) -> None:
        image = self._images.pop(topic, None)
        if image is not None:
            self._num_bytes -= len(image.data)
