"""What is known about one camera and what is wanted of it: all that its threads and its readers share."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import replace

from edge_vl.frame import Frame
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.camera_state import CameraState, CameraStatus
from edge_vl.sources.frame_rate import RateLimit, RateMeter

__all__ = ["CameraRecord", "Ticket"]

_LONG_LIFE_S = 10.0
"""A connection that gave frames for so long was a good one: after it, delays between attempts begin small again."""


class Ticket:
    """Says for which connection a reader speaks. Whoever has one that is out of date is not listened to any more."""


class CameraRecord:
    """The newest frame, the counters, the status, and whether frames are wanted. Every method may be called anywhere.

    Nothing in here waits for a camera. All intervals are of the monotonic clock.
    """

    def __init__(self, settings: CameraSettings) -> None:
        """Want frames, know nothing."""
        self.settings = settings
        self._lock = threading.RLock()
        self._framed = threading.Condition(self._lock)  # for those who wait for frames
        self._changed = threading.Condition(self._lock)  # for those who wait for anything else
        self._num_changes = 0
        self._state = CameraState("connecting", since_s=time.monotonic())
        self._untold: deque[CameraState] = deque()
        self._newest: Frame | None = None
        self._is_enabled = True
        self._reader: object = None
        self._ticket: Ticket | None = None
        self._meter = RateMeter()
        self._limit = RateLimit(settings.max_fps)
        self._random = random.Random()
        self._num_attempts = 0  # failed ones in a row that the next delay depends on
        self._online_s: float | None = None
        self._retry_s = 0.0

    # What anybody may ask.

    def state(self) -> CameraState:
        """Return a copy of what is known now."""
        with self._lock:
            fps = self._meter.fps(time.monotonic()) if self._state.status == "online" else 0.0
            return replace(self._state, fps=fps)

    @property
    def is_closed(self) -> bool:
        """Whether nothing will come any more."""
        return self._state.status == "closed"

    @property
    def newest(self) -> Frame | None:
        """The newest frame; None while it is not online."""
        return self._newest

    def wait_newer(self, index: int, timeout_s: float) -> Frame | None:
        """Wait for a frame with a larger index; None: none came in time, or it was closed."""

        def newer() -> Frame | None:
            return self._newest if self._newest is not None and self._newest.index > index else None

        with self._lock:
            self._framed.wait_for(lambda: self.is_closed or newer() is not None, min(timeout_s, threading.TIMEOUT_MAX))
            return newer()

    # What its owner says.

    def enable(self, is_wanted: bool) -> None:
        """Want frames, or none; the connection that there is, is given up either way when this changes anything."""
        with self._lock:
            if self.is_closed or is_wanted == self._is_enabled:
                return
            self._is_enabled = is_wanted
            self._ticket = None
            self._num_attempts, self._retry_s = 0, 0.0
            self._enter("connecting" if is_wanted else "disabled", "" if is_wanted else "it is switched off")

    def close(self) -> None:
        """Want nothing any more. May be called twice."""
        with self._lock:
            if not self.is_closed:
                self._ticket = None
                self._enter("closed", "it was closed")

    # What a reader asks and says. Each returns at once, but for `next_ticket`.

    def next_ticket(self, reader: object) -> Ticket | None:
        """Wait until it is time to connect.

        Returns:
            For the new connection; None: the reader is to end, because all is closed or another has taken its place.
        """
        with self._lock:
            while not self.is_closed and reader is self._reader:
                early_s = self._retry_s - time.monotonic()
                if self._is_enabled and early_s <= 0:
                    self._ticket = Ticket()
                    return self._ticket
                self._changed.wait(early_s if self._is_enabled else None)
            return None

    def is_wanted(self, ticket: Ticket) -> bool:
        """Say whether frames of this connection are wanted."""
        return ticket is self._ticket

    def grabbed(self, ticket: Ticket, now_s: float) -> tuple[int, bool] | None:
        """Count a frame.

        Returns:
            Its index, and whether to decode it; None: it is not wanted.
        """
        with self._lock:
            if ticket is not self._ticket:
                return None
            index = self._state.num_frames
            self._state = replace(self._state, num_frames=index + 1)
            self._meter.count(now_s)
            return index, self._limit.is_due(now_s)

    def keep(self, ticket: Ticket, frame: Frame) -> None:
        """Put a frame into the place of the newest."""
        with self._lock:
            if ticket is not self._ticket:
                return
            self._limit.count(frame.captured_s)
            self._newest = frame
            self._state = replace(
                self._state, num_kept=self._state.num_kept + 1, width=frame.width, height=frame.height
            )
            if self._state.status != "online":
                self._online_s = time.monotonic()
                self._state = replace(self._state, num_connections=self._state.num_connections + 1, num_failures=0)
                self._enter("online", "")
            self._framed.notify_all()

    def drop_bad(self, ticket: Ticket) -> None:
        """Count a frame that could not be decoded."""
        with self._lock:
            if ticket is self._ticket:
                self._state = replace(self._state, num_bad=self._state.num_bad + 1)

    def fail(self, ticket: Ticket, reason: str) -> None:
        """Say that a connection is no more, or that it could not be made; the next one is tried after a delay."""
        with self._lock:
            if ticket is not self._ticket:
                return
            now_s = time.monotonic()
            is_good = self._online_s is not None and now_s - self._online_s >= _LONG_LIFE_S
            self._num_attempts = 1 if is_good else self._num_attempts + 1
            self._retry_s = now_s + self.settings.backoff.delay_s(self._num_attempts, self._random)
            self._ticket = None
            self._state = replace(self._state, num_failures=self._state.num_failures + 1, reason=reason)
            self._enter("offline", reason)

    # What the watch asks and says.

    def appoint(self, reader: object, *, num_abandoned: int) -> None:
        """Let a reader connect from now on, in the place of the one before, and say how many still hang."""
        with self._lock:
            self._reader = reader
            self._state = replace(self._state, num_abandoned=num_abandoned)
            self.wake()

    def take_untold(self) -> CameraState | None:
        """Take the oldest state that was entered and not told to anybody yet."""
        with self._lock:
            return self._untold.popleft() if self._untold else None

    @property
    def num_changes(self) -> int:
        """How often anything but a frame has changed."""
        return self._num_changes

    def wait_changed(self, num_changes: int, timeout_s: float | None) -> None:
        """Wait until there were more changes than so many, at most so long."""
        with self._lock:
            self._changed.wait_for(lambda: self._num_changes != num_changes, timeout_s)

    def wake(self) -> None:
        """Say that something has changed that others know more about."""
        with self._lock:
            self._num_changes += 1
            self._changed.notify_all()

    def _enter(self, status: CameraStatus, reason: str) -> None:
        """Change the status; the caller holds the lock. Whatever is not `online` has no newest frame."""
        if status != "online":
            self._newest = None
            self._meter.clear()
            self._online_s = None
        if status != self._state.status:
            self._state = replace(self._state, status=status, reason=reason, since_s=time.monotonic())
            self._untold.append(self._state)
        self.wake()
        self._framed.notify_all()
