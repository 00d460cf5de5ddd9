"""A recording that plays in a gateway as if it were a camera, again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from edge_vl.errors import SourceError
from edge_vl.frame import Frame
from edge_vl.sources.pushed import PushedFrames
from edge_vl.sources.source import Source

__all__ = ["RecordingCamera"]

_log = logging.getLogger(__name__)


class RecordingCamera:
    """Plays a paced source on a thread of its own; its newest frame waits for any number of readers."""

    def __init__(self, recording: Source) -> None:
        """Begin to play.

        Args:
            recording: yields frames in real time; it is closed with this.
        """
        self._recording = recording
        self._frames = PushedFrames(recording.name)
        self._thread = threading.Thread(target=self._play, name=f"edge-vl-play-{recording.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """Of the recording."""
        return self._recording.name

    @property
    def is_live(self) -> bool:
        """True: a frame not taken in time is lost."""
        return True

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or the recording has ended."""
        return self._frames.is_closed

    def latest(self) -> Frame | None:
        """Return the newest frame; None before the first."""
        return self._frames.latest()

    def wait_newer(self, index: int, timeout_s: float) -> Frame | None:
        """Wait for a frame whose `index` is larger; None when none came in time."""
        return self._frames.wait_newer(index, timeout_s)

    def __iter__(self) -> Iterator[Frame]:
        """Yield the newest frame, again and again."""
        return iter(self._frames)

    def close(self) -> None:
        """End it."""
        self._recording.close()
        self._frames.close()
        self._thread.join(1.0)

    def _play(self) -> None:
        try:
            for frame in self._recording:
                self._frames.push(frame.pixels, captured_s=frame.captured_s)
        except SourceError as error:
            _log.warning("%s ended: %s", self.name, error)
        finally:
            self._frames.close()
