"""A camera: its newest frame, always at hand, and what became of the camera."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from edge_vl.frame import Frame
from edge_vl.rate_limited_log import RateLimitedLog
from edge_vl.sources.address import masked, on_one_line
from edge_vl.sources.camera_reader import Reader
from edge_vl.sources.camera_record import CameraRecord
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.capture import OpenCapture

__all__ = ["Camera"]

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
"""How long to wait before a thread is asked for again where the system has none left."""


class Camera:
    """A live source over anything that can be opened as a `Capture`.

    One thread takes every frame off the camera, so that none gets old in a buffer, and decodes the newest into one slot
    that any number of readers look at. Another thread watches the first: a native call that hangs cannot be killed, so
    the camera is said to be offline, and a new thread takes over. One such call is left behind at most; while it hangs,
    and the thread after it hangs too, nothing new is begun.

    `Frame.index` counts the frames that the camera gave, whether or not they were decoded: a gap is what was passed
    over. Both threads are daemons; a camera lives until it is closed, or the program ends, which closes it.
    """

    def __init__(
        self,
        open_capture: OpenCapture,
        *,
        name: str,
        settings: CameraSettings | None = None,
        on_state: Callable[[CameraState], object] | None = None,
    ) -> None:
        """Begin to connect; does not wait for it.

        Args:
            open_capture: called for each connection, on a thread of the camera's.
            name: for frames, logs and threads; any password in it is hidden.
            settings: how it is read; None: the defaults.
            on_state: called with the new state when the status changes, in order, on a thread of the camera's that does
                nothing else then but to notice calls that hang. What it raises is logged.

        Raises:
            RuntimeError: the system has no thread left.
        """
        self._process = os.getpid()
        self._name = on_one_line(masked(name))
        self._open_capture = open_capture
        self._on_state = on_state
        self._rated_log = RateLimitedLog(_log)  # a peer may switch a camera on and off as often as he likes
        self._record = CameraRecord(CameraSettings() if settings is None else settings)
        self._reader = self._start_reader(num_abandoned=0)
        self._watch_thread = threading.Thread(
            target=self._watch, name=f"edge-vl-camera-watch-{self._name}", daemon=True
        )
        try:
            self._watch_thread.start()
        except BaseException:
            self._record.close()  # ends the reader
            raise
        # A native call that returns while Python shuts down would end the process with an abort: OpenCV takes the lock
        # of Python back in a destructor, and Python ends the thread there.
        atexit.register(self.close)

    @property
    def name(self) -> str:
        """What `Frame.source` says; never holds a password."""
        return self._name

    @property
    def is_live(self) -> bool:
        """True: a frame not taken in time is lost."""
        return True

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._record.is_closed

    @property
    def state(self) -> CameraState:
        """What is known now."""
        return self._record.state()

    def latest(self) -> Frame | None:
        """Return the newest frame, of any age; None before the first, and while it is offline or disabled."""
        return self._record.newest

    def wait_newer(self, index: int, timeout_s: float) -> Frame | None:
        """Wait for a frame whose `index` is larger; -1 takes any. None when none came in time, or it was closed."""
        return self._record.wait_newer(index, timeout_s)

    def __iter__(self) -> Iterator[Frame]:
        """Yield the newest frame, again and again, each once; waits while it is offline; ends when it is closed."""
        index = -1
        while not self._record.is_closed:
            if (frame := self.wait_newer(index, threading.TIMEOUT_MAX)) is not None:
                index = frame.index
                yield frame
                del frame

    def enable(self, is_enabled: bool) -> None:
        """Switch it on or off. While it is off the camera is given back, and there are no frames. Does not wait."""
        self._record.enable(is_enabled)

    def close(self, timeout_s: float = 1.0) -> None:
        """Give the camera back, and end every iteration. From any thread; may be called twice.

        Args:
            timeout_s: how long to wait for the camera; what hangs is left behind.
        """
        if os.getpid() != self._process:
            return  # a fork: the camera's threads are the parent's, and a lock may be held by one of them for ever
        self._record.close()
        until_s = time.monotonic() + timeout_s
        self._reader.join(timeout_s)
        if threading.current_thread() is not self._watch_thread:
            self._watch_thread.join(max(0.0, until_s - time.monotonic()))
        self._let_go()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _start_reader(self, *, num_abandoned: int) -> Reader:
        reader = Reader(self._name, self._open_capture, self._record, self._let_go)
        reader.start(num_abandoned=num_abandoned)
        return reader

    def _let_go(self) -> None:
        """Need no closing when the program ends, once the camera is given back."""
        if self._record.is_closed and self._reader.has_ended:
            atexit.unregister(self.close)

    def _watch(self) -> None:
        """Tell what happens, and see to it that a call which hangs holds nobody up."""
        abandoned: Reader | None = None
        while True:
            num_changes = self._record.num_changes
            self._tell()
            if self._record.is_closed:
                break
            if abandoned is not None and abandoned.has_ended:
                abandoned = None
                self._record.appoint(self._reader, num_abandoned=0)
            call = self._reader.call
            early_s = None if call is None else call.until_s - time.monotonic()
            if call is not None and early_s is not None and early_s <= 0:
                self._record.fail(call.ticket, f"{call.what} hangs: it did not return within {call.timeout_s:g} s")
                early_s = None  # woken by the end of the abandoned one, or by the new one when it begins to connect
                if abandoned is None:
                    try:
                        abandoned, self._reader = self._reader, self._start_reader(num_abandoned=1)
                    except RuntimeError as error:  # the system has no thread left
                        self._rated_log.warning("thread", "camera %s has no thread to go on: %s", self._name, error)
                        early_s = _RETRY_S
            self._record.wait_changed(num_changes, early_s)
        self._tell()

    def _tell(self) -> None:
        while (state := self._record.take_untold()) is not None:
            reason = f": {state.reason}" if state.reason and state.status != "closed" else ""
            is_trouble = state.status == "offline" and self._on_state is None  # else the listener says so
            log = self._rated_log.warning if is_trouble else self._rated_log.info
            kind = "offline" if state.status == "offline" else "status"  # its loss is told, however often it comes back
            log(kind, "camera %s is %s%s", self._name, state.status, reason)
            if self._on_state is None:
                continue
            try:
                self._on_state(state)
            except Exception:  # somebody else's code; the camera lives on
                _log.exception("camera %s: on_state failed", self._name)
