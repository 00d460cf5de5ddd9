"""Pulls frames off a source on a thread of its own, so that nobody else ever waits for a camera."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

from edge_vl.errors import ImageError, RequestError
from edge_vl.frame import Frame
from edge_vl.mailbox import Mailbox
from edge_vl.pictures import Picture, load_picture

__all__ = ["Arrival", "FrameFeed", "check_source"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A picture that came off a source.

    Attributes:
        number: counts what came off the source, from 0.
        picture: pixels of our own, or something encoded that is decoded only if its turn comes: most frames of a
            camera are dropped, and to decode them all can cost more than the answers.
        captured_s: `time.monotonic()` when it came off the source.
        captured_wall_s: seconds since the epoch at the same moment.
    """

    number: int
    picture: Frame | str | os.PathLike[str] | bytes
    captured_s: float
    captured_wall_s: float

    def load(self) -> Frame:
        """Decode it.

        Raises:
            ImageError: it cannot be used.
        """
        if isinstance(self.picture, Frame):
            return self.picture
        frame = load_picture(self.picture, index=self.number)
        return dataclasses.replace(frame, captured_s=self.captured_s, captured_wall_s=self.captured_wall_s)


class FrameFeed:
    """One thread that takes pictures off a source and puts them into a mailbox.

    Attributes:
        mailbox: where the newest one waits.
        num_frames: pictures taken off the source so far.
        num_bad: those of them that could not even be put into the mailbox.
    """

    def __init__(
        self, source: Iterable[Picture], *, bgr: bool, is_on_demand: bool, on_frame: Callable[[], object]
    ) -> None:
        """Start the thread.

        Args:
            source: gives pictures; iterated on the thread.
            bgr: arrays have OpenCV's channel order.
            is_on_demand: take a picture off the source only when somebody waits for it, so that none is dropped.
            on_frame: called on the thread when a picture is in the mailbox; must not block or raise.
        """
        self.mailbox: Mailbox[Arrival] = Mailbox()
        self.num_frames = 0
        self.num_bad = 0
        self._bgr = bgr
        self._is_on_demand = is_on_demand
        self._on_frame = on_frame
        self._thread = threading.Thread(target=self._pull, args=(source,), name="edge-vl-frames", daemon=True)
        self._thread.start()

    @property
    def is_abandoned(self) -> bool:
        """Whether the thread is still inside the source although nobody wants its frames any more."""
        return self.mailbox.is_closed and self._thread.is_alive()

    def close(self, timeout_s: float) -> None:
        """Want no more frames; wait for the source to give its next one, at most so long. From any thread."""
        self.mailbox.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _pull(self, source: Iterable[Picture]) -> None:
        iterator: Iterator[Picture] | None = None
        error: BaseException | None = None
        try:
            iterator = iter(source)
            self._pull_all(iterator)
        except BaseException as raised:  # a source is somebody else's code; whatever it raises is told to the reader
            error = raised
        self.mailbox.end(error)
        if isinstance(iterator, Generator):  # here, because no other thread may close one that is at work
            try:
                iterator.close()
            except Exception as raised:
                _log.warning("the source failed when it was closed: %r", raised)

    def _pull_all(self, iterator: Iterator[Picture]) -> None:
        while not self.mailbox.is_closed:
            if self._is_on_demand and not self.mailbox.wait_until_wanted():
                return
            try:
                picture = next(iterator)
            except StopIteration:
                return
            if not self.mailbox.is_closed:
                self._arrive(picture)
            del picture  # a frame must not be kept alive while the source waits for the next

    def _arrive(self, picture: Picture) -> None:
        captured_s, captured_wall_s = time.monotonic(), time.time()
        number = self.num_frames
        self.num_frames += 1
        kept: Frame | str | os.PathLike[str] | bytes
        if isinstance(picture, (str, os.PathLike, bytes)):
            kept = picture
        else:  # may be overwritten as soon as the source goes on
            try:
                kept = load_picture(picture, bgr=self._bgr, index=number)
            except ImageError as error:
                _log.debug("frame %d cannot be used: %s", number, error)
                self.num_bad += 1
                return
        self.mailbox.put(Arrival(number, kept, captured_s, captured_wall_s))
        self._on_frame()


def check_source(source: object) -> None:
    """Refuse what is no source of pictures, a single picture above all.

    Raises:
        RequestError: saying what to pass.
    """
    is_picture = isinstance(source, (str, bytes, bytearray, memoryview, os.PathLike, Frame))
    if is_picture or getattr(source, "ndim", None) in (2, 3):
        raise RequestError(
            f"source is one picture (a {type(source).__name__}); pass an iterable of pictures, or ask() about this one",
            field="source",
        )
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
        raise RequestError(
            f"source must be an iterable of pictures, not a {type(source).__name__}; a camera's read() becomes one "
            "with a generator: while True: yield camera.read()[1]",
            field="source",
        )
