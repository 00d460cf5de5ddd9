"""Pulls frames off a source on a thread of its own, so that nobody else ever waits for a camera."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from edge_vl.errors import ImageError, RequestError
from edge_vl.frame import Frame
from edge_vl.mailbox import Mailbox
from edge_vl.pictures import Picture, load_picture
from edge_vl.sources.source import LiveSource

__all__ = ["Arrival", "FrameFeed", "FrameGate", "check_source", "is_own_source"]

_log = logging.getLogger(__name__)

POLL_S = 0.25
"""How long a live source is waited for at a time, so that a closed watch does not wait for a camera that is away."""


class FrameGate(Protocol):
    """Decides which frames are worth an answer, such as `edge_vl.sources.motion_gate.MotionGate`."""

    def passes(self, frame: Frame) -> bool:
        """Say whether this frame is; called once for each frame, in their order, on one thread."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A picture that came off a source.

    Attributes:
        number: counts what came off the source, from 0; what a gate kept back is not counted.
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
        num_frames: pictures taken off the source so far, and those that it says it passed over in between.
        num_bad: those of them that could not even be put into the mailbox.
        num_skipped: those that the source passed over: a camera whose newest frame alone counts.
        num_quiet: those that the gate kept back.
    """

    def __init__(
        self,
        source: Iterable[Picture],
        *,
        bgr: bool,
        is_on_demand: bool,
        on_frame: Callable[[], object],
        gate: FrameGate | None = None,
    ) -> None:
        """Start the thread.

        Args:
            source: gives pictures; iterated on the thread.
            bgr: arrays have OpenCV's channel order.
            is_on_demand: take a picture off the source only when somebody waits for it, so that none is dropped.
            on_frame: called on the thread when a picture is in the mailbox; must not block or raise.
            gate: asked on the thread about every picture; None: all pass.
        """
        self.mailbox: Mailbox[Arrival] = Mailbox()
        self.num_frames = 0
        self.num_bad = 0
        self.num_skipped = 0
        self.num_quiet = 0
        self._number = 0
        self._gate = gate
        self._gaps = _Gaps(source) if is_own_source(source) else None
        self._bgr = bgr
        self._is_on_demand = is_on_demand
        self._on_frame = on_frame
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._pull, args=(source,), name="edge-vl-frames", daemon=True)
        self._thread.start()

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy in a forked process: the thread is the parent's, and may hold a lock for ever."""
        return os.getpid() != self._process

    @property
    def is_abandoned(self) -> bool:
        """Whether the thread is still inside the source although nobody wants its frames any more."""
        return self.mailbox.is_closed and self._thread.is_alive()

    def close(self, timeout_s: float) -> None:
        """Want no more frames; wait for the source to give its next one, at most so long. From any thread.

        Does nothing in a forked process.
        """
        if self.is_forked:
            return
        self.mailbox.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _pull(self, source: Iterable[Picture]) -> None:
        iterator: Iterator[Picture] | None = None
        error: BaseException | None = None
        try:
            iterator = self._newest(source) if _is_live_source(source) else iter(source)
            self._pull_all(iterator)
            if self._gaps is not None:
                self._count_bad(self._gaps.rest())
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

    def _newest(self, source: LiveSource) -> Iterator[Picture]:
        index = -1
        while not self.mailbox.is_closed:
            frame = source.wait_newer(index, POLL_S)
            if frame is not None:
                index = frame.index
                yield frame
                del frame  # must not be kept alive while the next one is waited for
            elif source.is_closed:
                return

    def _arrive(self, picture: Picture) -> None:
        captured_s, captured_wall_s = time.monotonic(), time.time()
        num_skipped = 0
        if self._gaps is not None and isinstance(picture, Frame):
            num_skipped, num_bad = self._gaps.before(picture.index)
            self._count_bad(num_bad)
        number = self._number + num_skipped
        self.num_frames += 1 + num_skipped
        arrival: Arrival | None = None
        try:
            if isinstance(picture, (str, os.PathLike, bytes)):
                arrival = Arrival(number, picture, captured_s, captured_wall_s)
                if self._gate is not None:
                    arrival = dataclasses.replace(arrival, picture=arrival.load())
            else:  # may be overwritten as soon as the source goes on
                frame = load_picture(picture, bgr=self._bgr, index=number)
                arrival = Arrival(number, frame, captured_s, captured_wall_s)
        except ImageError as error:
            _log.debug("frame %d cannot be used: %s", number, error)
            self._number = number + 1
            self.num_skipped += num_skipped
            self.num_bad += 1
            return
        if self._gate is not None and isinstance(arrival.picture, Frame) and not self._gate.passes(arrival.picture):
            self.num_quiet += 1 + num_skipped  # those that the camera passed over meanwhile would have been quiet, too
            return
        self._number = number + 1
        self.num_skipped += num_skipped
        self.mailbox.put(arrival)
        self._on_frame()

    def _count_bad(self, num_bad: int) -> None:
        self.num_bad += num_bad
        self.num_frames += num_bad
        self._number += num_bad


class _Gaps:
    """What a source of ours passed over between two of its frames, by their indexes and its own count of bad ones."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._last = None if _is_live_source(source) else -1  # a live one may have run for hours
        self._num_bad = self._bad_so_far()  # those of them that are behind us

    def before(self, index: int) -> tuple[int, int]:
        """Return how many frames it passed over before this one, and how many more were bad."""
        if self._last is None:
            gap, self._num_bad = 0, self._bad_so_far()
        else:
            gap = max(0, index - self._last - 1)
        self._last = index
        # A camera goes on while it is asked, so those after this frame may be among them; they are for the next time.
        num_bad = max(0, min(gap, self._bad_so_far() - self._num_bad))
        self._num_bad += num_bad
        return gap - num_bad, num_bad

    def rest(self) -> int:
        """Return how many bad ones there were since the last frame, 0 before the first one of a live source."""
        return 0 if self._last is None else max(0, self._bad_so_far() - self._num_bad)

    def _bad_so_far(self) -> int:
        num_bad = getattr(self._source, "num_bad", None)
        if num_bad is None:
            num_bad = getattr(getattr(self._source, "state", None), "num_bad", 0)
        return num_bad if isinstance(num_bad, int) else 0


def is_own_source(source: object) -> bool:
    """Say whether a source is one as `edge_vl.sources.source.Source` describes, and no plain iterable."""
    return isinstance(getattr(source, "is_live", None), bool)


def _is_live_source(source: object) -> TypeGuard[LiveSource]:
    return is_own_source(source) and hasattr(source, "wait_newer")


def check_source(source: object) -> None:
    """Refuse what is no source of pictures, a single picture above all.

    Raises:
        RequestError: saying what to pass.
    """
    if isinstance(source, (str, os.PathLike)) or (isinstance(source, int) and not isinstance(source, bool)):
        kind = "the number of a webcam" if isinstance(source, int) else "the name of a source or of one picture"
        raise RequestError(
            f"{kind} is no source: open_source(...) opens a camera, a recording, a folder or a picture, and ask() "
            "answers about one picture",
            field="source",
        )
    is_picture = isinstance(source, (bytes, bytearray, memoryview, Frame))
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
