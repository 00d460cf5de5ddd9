"""A thread that connects to a camera, takes every frame off it, and connects again."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from edge_vl.errors import EdgeVLError, SourceError
from edge_vl.frame import Frame
from edge_vl.sources.address import masked, on_one_line
from edge_vl.sources.camera_record import CameraRecord, Ticket
from edge_vl.sources.capture import Capture, OpenCapture

__all__ = ["Call", "Reader"]

_log = logging.getLogger(__name__)

_CLOSE_S = 2.0
_MAX_SLACK_S = 1.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call into the camera's library.

    Attributes:
        what: it does, to be put before "hangs".
        ticket: of its connection.
        timeout_s: how long it may take by its own deadline.
        until_s: moment of the monotonic clock from which on it must be taken for one that hangs.
    """

    what: str
    ticket: Ticket
    timeout_s: float
    until_s: float


class Reader:
    """Holds a camera's connections, one after the other, on a thread of its own, until it is closed or replaced.

    Attributes:
        call: what it does in the camera's library now; None: nothing.
        has_ended: whether it will do nothing any more.
    """

    def __init__(
        self, name: str, open_capture: OpenCapture, record: CameraRecord, on_end: Callable[[], object]
    ) -> None:
        """Prepare it; `start` starts its thread, whose last act is to call `on_end`."""
        self.call: Call | None = None
        self.has_ended = False
        self._name = name
        self._open_capture = open_capture
        self._record = record
        self._on_end = on_end
        self._is_appointed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"edge-vl-camera-{name}", daemon=True)

    def start(self, *, num_abandoned: int) -> None:
        """Start the thread, and appoint it, in the place of the one before, of which so many still hang.

        Raises:
            RuntimeError: the system has no thread left; nothing has changed.
        """
        self._thread.start()
        self._record.appoint(self, num_abandoned=num_abandoned)
        self._is_appointed.set()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most so long."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._is_appointed.wait()
        try:
            self._hold_connections()
        finally:  # a library may raise what is no `Exception`, too: the deadline of the call then calls for another
            self.has_ended = True
            self._record.wake()
            self._on_end()

    def _hold_connections(self) -> None:
        while (ticket := self._record.next_ticket(self)) is not None:
            try:
                reason = self._connect(ticket)
            except EdgeVLError as error:
                reason = str(error)
            except Exception as error:  # whatever a camera's library raises, the next attempt may do better
                reason = f"{type(error).__name__}: {error}"
            self.call = None
            self._record.fail(ticket, on_one_line(masked(reason)))

    def _connect(self, ticket: Ticket) -> str:
        """Open the camera and read it until it fails or is not wanted; return how it ended."""
        settings = self._record.settings
        self._begin("opening it", ticket, settings.open_timeout_s)
        capture = self._open_capture()
        try:
            return self._drain(capture, ticket)
        finally:
            self._begin("closing it", ticket, _CLOSE_S)
            with contextlib.suppress(Exception):
                capture.close()

    def _drain(self, capture: Capture, ticket: Ticket) -> str:
        record, timeout_s = self._record, self._record.settings.read_timeout_s
        good_s = time.monotonic()
        while record.is_wanted(ticket):
            self._begin("reading it", ticket, timeout_s)
            if not capture.grab():
                return "it gives no more frames"
            captured_s, captured_wall_s = time.monotonic(), time.time()
            grabbed = record.grabbed(ticket, captured_s)
            if grabbed is None:
                break
            index, is_due = grabbed
            if not is_due:
                continue
            try:
                pixels = record.settings.view.of(capture.retrieve())
            except SourceError as error:
                record.drop_bad(ticket)
                _log.debug("camera %s: frame %d cannot be used: %s", self._name, index, masked(str(error)))
                if captured_s - good_s > timeout_s:
                    return f"none of its frames could be decoded for {timeout_s:g} s: {error}"
                continue
            pixels.setflags(write=False)
            record.keep(ticket, Frame(pixels, captured_s, captured_wall_s, self._name, index))
            good_s = captured_s
            del pixels  # a frame must not be kept alive while the camera is waited for
        return "it is not wanted"

    def _begin(self, what: str, ticket: Ticket, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s + min(_MAX_SLACK_S, timeout_s / 2)
        is_new = self.call is None or self.call.what != what
        self.call = Call(what, ticket, timeout_s, until_s)
        if is_new:  # it could not be foreseen; that the same goes on is noticed when the last deadline passes
            self._record.wake()
