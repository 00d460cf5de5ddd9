"""A watch: the answers to one question about a stream of frames."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from edge_vl.answer import Answer
from edge_vl.answer_stream import AnswerStream
from edge_vl.asking import AskOptions, generation_of
from edge_vl.commit_rule import commit
from edge_vl.errors import (
    Cancelled,
    DeadlineExceeded,
    EdgeVLError,
    ImageError,
    QueueFull,
    RequestError,
    SourceError,
)
from edge_vl.frame import Frame
from edge_vl.frame_feed import Arrival, FrameFeed, FrameGate, check_source, is_own_source
from edge_vl.option_checks import require_number, require_text
from edge_vl.pictures import Picture
from edge_vl.watch_counts import WatchCounts
from edge_vl.watch_events import AnswerBegan, AnswerGivenUp, WatchEvent

if TYPE_CHECKING:
    from edge_vl.runtime import Runtime

__all__ = ["Watch"]

OWN_OPTIONS = ("every_s", "every_frame", "patience_s", "gate", "on_event")
"""What a watch takes besides `AskOptions`."""

MAX_PAUSE_S = 10_000_000
"""A third of a year."""

CLOSE_TIMEOUT_S = 1.0
"""How long closing waits for the frame that the source is about to give."""

RETRY_S = 0.05
"""How long to wait when the runtime takes no more requests."""


@dataclass(slots=True, eq=False)
class _Running:
    """A request at work: its stream, and until when its answer is wanted."""

    stream: AnswerStream
    until_s: float
    is_overtaken: bool = False


class Watch:
    """Iterates over the answers to one question about the frames of a source.

    The frames are taken off the source on a thread of the watch. While an answer is made, the newest frame waits and
    those before it are dropped, so that answers never fall behind. The answers are made when they are asked for, in
    `next`: a caller who takes his time gets answers about newer frames, not old answers.

    Iterate it on one thread; `close` and `counts` are for any. After its end, or an error, it is closed.
    """

    def __init__(
        self,
        runtime: Runtime,
        source: Iterable[Picture],
        question: str,
        *,
        every_s: float | None = None,
        every_frame: bool | None = None,
        patience_s: float | None = None,
        gate: FrameGate | None = None,
        on_event: Callable[[WatchEvent], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> None:
        """Start to take frames off the source. `Runtime.watch` is what most callers want.

        Args:
            runtime: answers.
            source: gives pictures or frames; a generator is closed in the end, a camera is not.
            question: asked about each frame.
            every_s: least seconds from the start of one answer to the start of the next; None: as fast as it goes.
            every_frame: answer every frame, and take one off the source only when it is due, as for a recording. None:
                where the source is one of `open_source` and not live.
            patience_s: how much longer an answer may take when a newer frame is there; one that needs more and is not
                nearly done is given up for that frame, three times in a row at most. None: as long as it is in time.
            gate: says which frames are worth an answer; sees all that come off the source. None: all are.
            on_event: told what becomes of an answer while it is made, its tokens above all, on the thread that waits
                for the answer. What it raises ends the watch.
            **options: see `AskOptions`; `deadline_s` counts for each frame from the start of its answer.

        Raises:
            RequestError: an argument makes no sense.
            ImageError: the model cannot see.
        """
        check_source(source)
        require_text(question, "question")
        if not question.strip():
            raise RequestError("the question is empty", field="question")
        if every_s is not None:
            require_number(every_s, "every_s", 1e-9, MAX_PAUSE_S, "above 0 (leave it out for no pause)")
        if patience_s is not None:
            require_number(patience_s, "patience_s", 0, MAX_PAUSE_S, "0 or more (leave it out to finish every answer)")
        if every_frame is None:
            every_frame = is_own_source(source) and not getattr(source, "is_live", True)
        if not isinstance(every_frame, bool):
            raise RequestError(f"every_frame must be True or False, not {every_frame!r:.60}", field="every_frame")
        if gate is not None and not callable(getattr(gate, "passes", None)):
            raise RequestError(
                f"gate needs a method passes(frame), which a {type(gate).__name__} has not", field="gate"
            )
        if on_event is not None and not callable(on_event):
            raise RequestError(f"on_event must be a function, not a {type(on_event).__name__}", field="on_event")
        if runtime.vision_spec is None:
            raise ImageError(f"model {runtime.model.name} reads text only; it cannot see frames")
        bgr = options.pop("bgr", False)
        options.setdefault("stream", f"watch-{os.urandom(8).hex()}")
        generation = generation_of(options, others=OWN_OPTIONS)
        self._limit_s = math.inf if generation.deadline_s is None else float(generation.deadline_s)
        self._max_age_s = math.inf if generation.max_frame_age_s is None else float(generation.max_frame_age_s)
        self._runtime = runtime
        self._question = question
        self._every_s = -math.inf if every_s is None else float(every_s)
        self._every_frame = every_frame
        self._patience_s = math.inf if patience_s is None else float(patience_s)
        self._options = options
        self._on_event = on_event
        self._turn = threading.Lock()
        self._lock = threading.Lock()  # of what follows
        self._counts = WatchCounts()
        self._running: _Running | None = None
        self._frame: Frame | None = None
        self._due_s = -math.inf
        self._num_cancelled = 0
        self._answered_number = -1
        # The thread must not keep a watch alive that its owner has dropped.
        self._feed = FrameFeed(source, bgr=bgr, is_on_demand=every_frame, on_frame=_weak(self), gate=gate)

    @property
    def counts(self) -> WatchCounts:
        """What has become of the frames so far."""
        feed = self._feed
        with self._lock:
            return dataclasses.replace(
                self._counts,
                frames=feed.num_frames,
                dropped=self._counts.dropped + feed.mailbox.num_dropped + feed.num_skipped,
                bad=self._counts.bad + feed.num_bad,
                quiet=feed.num_quiet,
                abandoned=int(feed.is_abandoned),
            )

    @property
    def frame(self) -> Frame | None:
        """The frame that the last answer is about, with the moment it was taken; None before the first answer."""
        return self._frame

    def __iter__(self) -> Iterator[Answer]:
        """Return itself."""
        return self

    def __next__(self) -> Answer:
        """Wait for the next answer; its `dropped` counts the frames passed over since the one before.

        Raises:
            StopIteration: the source has ended, or the watch was closed.
            SourceError: the source failed; its last frame has been answered.
            ContextLengthError: frame and question do not fit.
            EngineFault: an engine failed.
            Cancelled: somebody else cancelled the request, such as the option `cancel` or the runtime's end.
        """
        with self._turn:
            try:
                answer = self._next_answer()
            except Exception:
                self.close(0.0)  # the error must not wait for the source
                raise
        if answer is None:
            if not self._feed.mailbox.is_closed:
                self.close()
            raise StopIteration
        return answer

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End the watch, from any thread; whoever waits for an answer gets `StopIteration`. May be called again.

        Does nothing in a forked process: the watch is its parent's.

        Args:
            timeout_s: seconds to wait for a source that is about to give a frame. One that gives none keeps its thread,
                which is counted as `abandoned` and ends with the source's next frame, or the process.
        """
        if self._feed.is_forked:
            return
        self._feed.close(0.0)
        with self._lock:
            if self._running is not None:
                self._running.stream.cancel()
        self._feed.close(timeout_s)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close a forgotten watch, without waiting for its source."""
        if hasattr(self, "_feed"):
            self.close(0.0)

    def _next_answer(self) -> Answer | None:
        mailbox = self._feed.mailbox
        while (arrival := mailbox.take(self._due_s)) is not None:
            if (answer := self._answer(arrival)) is not None:
                return answer
        error = mailbox.error
        if error is None or mailbox.is_closed:
            return None
        if isinstance(error, EdgeVLError):
            raise error.again()
        text = f"the source failed after {self._feed.num_frames} frames: {type(error).__name__}: {error}"
        raise SourceError(text) from error

    def _answer(self, arrival: Arrival) -> Answer | None:
        """Answer one frame; None when it gets no answer."""
        try:
            frame = arrival.load()
            started_s = time.monotonic()
            until_s = min(frame.captured_s + self._max_age_s, started_s + self._limit_s)
            if started_s > until_s:
                self._count("late")
                return None
            stream = self._start(frame)
        except ImageError:
            self._count("bad")
            self._feed.mailbox.restore()
            return None
        except BaseException:
            self._count("cancelled")
            raise
        if stream is None:
            self._count("dropped")
            return None
        self._due_s = started_s + self._every_s
        num_passed = arrival.number - self._answered_number - 1
        answer = self._finish(_Running(stream, until_s), AnswerBegan(frame, num_passed))
        if answer is None:
            return None
        self._answered_number, self._frame = arrival.number, frame
        self._count("answers")
        return dataclasses.replace(answer, dropped=num_passed)

    def _start(self, frame: Frame) -> AnswerStream | None:
        """Start a request; None when the runtime takes none until there is a newer frame, or the watch is closed."""
        while True:
            try:
                return self._runtime.stream(frame, self._question, **self._options)
            except QueueFull:
                if self._feed.mailbox.wait_until_closed(RETRY_S) or self._is_overtaken():
                    return None

    def _finish(self, running: _Running, began: AnswerBegan) -> Answer | None:
        """Wait for the outcome of a request; None when it has no answer, or none that is still wanted."""
        reason: Literal["newer", "late", "ended"] | None = None
        try:
            answer, reason = self._outcome(running, began)
        except BaseException:
            reason = "ended"
            raise
        finally:
            if reason is not None and self._on_event is not None:
                self._on_event(AnswerGivenUp(began.frame, reason))
        return answer

    def _outcome(
        self, running: _Running, began: AnswerBegan
    ) -> tuple[Answer | None, Literal["newer", "late", "ended"] | None]:
        with running.stream as stream:
            with self._lock:
                self._running = running
            if self._feed.mailbox.is_closed:
                stream.cancel()
            self._reconsider()
            try:
                if self._on_event is not None:
                    self._on_event(began)
                    for token in stream:
                        self._on_event(token)
                answer = stream.answer
            except DeadlineExceeded:
                self._count("late")
            except BaseException as error:
                self._count("cancelled")
                is_ours = isinstance(error, Cancelled) and (running.is_overtaken or self._feed.mailbox.is_closed)
                if not is_ours:
                    raise
                self._due_s = -math.inf  # the newer frame takes its turn
                self._num_cancelled += 1
                return None, "newer" if running.is_overtaken else "ended"
            else:
                if time.monotonic() <= running.until_s:
                    self._num_cancelled = 0
                    return answer, None
                self._count("late")
            finally:
                with self._lock:
                    self._running = None
        self._num_cancelled = 0
        return None, "late"

    def _reconsider(self) -> None:
        """Give up the running request if a newer frame is there that deserves its place. From any thread."""
        with self._lock:
            running = self._running
            if running is None or running.is_overtaken or not self._is_overtaken():
                return
            progress = running.stream.progress
            slack_s = min(running.until_s - time.monotonic(), self._patience_s)
            commitment = commit(
                fraction=progress.fraction,
                remaining_s=progress.remaining_s,
                slack_s=None if math.isinf(slack_s) else slack_s,
                num_cancelled=self._num_cancelled,
            )
            if commitment == "take_newer":
                running.is_overtaken = True
                running.stream.cancel()

    def _is_overtaken(self) -> bool:
        return not self._every_frame and self._feed.mailbox.has_newer

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts = dataclasses.replace(self._counts, **{what: getattr(self._counts, what) + 1})


def _weak(watch: Watch) -> Callable[[], object]:
    reference = weakref.ref(watch)

    def reconsider() -> None:
        if (alive := reference()) is not None:
            alive._reconsider()

    return reconsider
