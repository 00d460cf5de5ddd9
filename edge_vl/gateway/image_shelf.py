"""Raw pictures that came before the request that is about them. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
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
    """Keeps pictures by topic: so many bytes, for so long. The oldest leaves first.

    Those that somebody wants neither grow old nor leave; new ones have the room that those leave.
    """

    def __init__(self, *, max_image_bytes: int, max_bytes: int, max_wait_s: float, clock: Callable[[], float]) -> None:
        """Begin empty.

        Args:
            max_image_bytes: of one picture.
            max_bytes: of all of them.
            max_wait_s: how long one stays that nobody wants.
            clock: the monotonic one.
        """
        self._max_image_bytes = max_image_bytes
        self._max_bytes = max_bytes
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._images: OrderedDict[str, ShelvedImage] = OrderedDict()
        self._num_bytes = 0
        self._wants: dict[Hashable, frozenset[str]] = {}
        self._num_wanting: Counter[str] = Counter()

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
            Whether it is kept: not if it is empty or too large, or those that are wanted leave no room.
        """
        self._tidy()
        if not data or len(data) > self._max_image_bytes:
            return False
        staying = [other for other in self._images if other != topic and self._is_wanted(other)]
        num_staying_bytes = sum(len(self._images[other].data) for other in staying)
        if num_staying_bytes + len(data) > self._max_bytes or len(staying) >= MAX_IMAGES:
            return False
        self._drop(topic)
        self._images[topic] = ShelvedImage(data, self._clock())
        self._num_bytes += len(data)
        while self._num_bytes > self._max_bytes or len(self._images) > MAX_IMAGES:
            self._drop(next(other for other in self._images if other != topic and not self._is_wanted(other)))
        return True

    def want(self, who: Hashable, topics: Iterable[str]) -> None:
        """Let pictures stay until they are taken, or are not wanted any more."""
        self._tidy()
        self.release(who)
        self._wants[who] = frozenset(topics)
        self._num_wanting.update(self._wants[who])

    def release(self, who: Hashable) -> None:
        """Let pictures grow old again that somebody wanted. Does nothing when it was done already."""
        for topic in self._wants.pop(who, ()):
            self._num_wanting[topic] -= 1
            if not self._num_wanting[topic]:
                del self._num_wanting[topic]

    def take(self, topic: str) -> ShelvedImage | None:
        """Return a picture and let go of it; None where there is none, or it has lain there for too long."""
        self._tidy()
        image = self._images.get(topic)
        self._drop(topic)
        return image

    def _tidy(self) -> None:
        too_old_s = self._clock() - self._max_wait_s
        for topic, image in list(self._images.items()):
            if image.received_s >= too_old_s:
                return
            if not self._is_wanted(topic):
                self._drop(topic)

    def _is_wanted(self, topic: str) -> bool:
        return topic in self._num_wanting

    def _drop(self, topic: str) -> None:
        image = self._images.pop(topic, None)
        if image is not None:
            self._num_bytes -= len(image.data)
