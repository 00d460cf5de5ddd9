"""The seam between what gives frames and what answers questions about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from edge_vl.frame import Frame

__all__ = ["LiveSource", "Source"]


class Source(Protocol):
    """Gives frames, one after the other. Pictures, folders and recordings are sources, and so is every live source.

    It may be iterated once. `close` may be called from any thread and twice; it ends the iteration.
    """

    @property
    def name(self) -> str:
        """What `Frame.source` says; never holds a password."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether frames come by themselves, so that one not taken in time is lost."""
        ...

    def __iter__(self) -> Iterator[Frame]:
        """Yield frames, upright RGB, with the moment each was taken.

        Raises:
            SourceError: it cannot be read any further; a live source never raises, it waits for its camera to return.
        """
        ...

    def close(self) -> None:
        """Give up what it holds. Does not wait longer than a second for a camera that hangs."""
        ...


class LiveSource(Source, Protocol):
    """A source that keeps its newest frame for any number of readers, none of whom takes it away from another."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, so that no frame will come any more."""
        ...

    def latest(self) -> Frame | None:
        """Return the newest frame, of any age; None before the first, and while it is offline or disabled."""
        ...

    def wait_newer(self, index: int, timeout_s: float) -> Frame | None:
        """Wait for a frame whose `index` is larger; -1 takes any. None when none came in time, or it was closed."""
        ...
