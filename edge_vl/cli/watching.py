"""A running `edge-vl watch`: what it asks, and where its answers go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge_vl.asking import AskOptions
from edge_vl.cli.watch_record import WhenState, answer_record
from edge_vl.cli.watch_view import WatchView, status_text
from edge_vl.debounce import Debounce
from edge_vl.errors import BrokerError, DeadlineExceeded
from edge_vl.sources.camera_state import CameraState
from edge_vl.watch_events import WatchEvent
from edge_vl.yes_or_no import yes_or_no

if TYPE_CHECKING:
    from edge_vl.answer import Answer
    from edge_vl.cli.watch_publisher import WatchPublisher
    from edge_vl.frame import Frame
    from edge_vl.runtime import Runtime
    from edge_vl.saved_answers import SavedAnswers
    from edge_vl.sources.source import Source
    from edge_vl.watch import Watch

__all__ = ["Watching"]


class _Seen:
    """What is watched, seen as a camera: one that tells its state, or pictures or a recording, which are online."""

    def __init__(self, source: Source | None, watch: Watch) -> None:
        self._source = source
        self._watch = watch
        self._since_s = time.monotonic()

    @property
    def state(self) -> CameraState:
        """Return what is known now."""
        state, counts, frame = _state_of(self._source), self._watch.counts, self._watch.frame
        return state or CameraState(
            "online",
            since_s=self._since_s,
            num_frames=counts.frames,
            num_bad=counts.bad,
            num_connections=1,
            width=0 if frame is None else frame.width,
            height=0 if frame is None else frame.height,
        )

    def latest(self) -> Frame | None:
        """Return the newest frame; of a recording, the one that was answered last."""
        latest = getattr(self._source, "latest", None)
        return self._watch.frame if latest is None else latest()


def _state_of(source: Source | None) -> CameraState | None:
    state = getattr(source, "state", None)
    return state if isinstance(state, CameraState) else None


class Watching:
    """A watch while it runs. Cameras tell their state on threads of their own; everything else is for one thread.

    Attributes:
        question: asked about each frame; the first yes/no question where there is no other.
        source: gives the frames; set before `run`.
        saved: keeps answers on disk; None: nothing does.
        publisher: sends answers to a broker; None: nothing does.
        view: shows it all.
    """

    def __init__(
        self, question: str | None, when: Sequence[str], after: int, *, as_json: bool, max_answers: int | None
    ) -> None:
        """Begin with nothing answered.

        Args:
            question: None: the yes/no questions alone.
            when: yes/no questions; at least one where there is no question.
            after: equal answers in a row before one of them changes.
            as_json: show one object per answer.
            max_answers: end after so many; None: never.
        """
        self.question = when[0] if question is None else question
        self.source: Source | None = None
        self.saved: SavedAnswers | None = None
        self.publisher: WatchPublisher | None = None
        self._is_first_asked = question is None  # the watch's own question is the first yes/no question
        self._when: dict[str, Debounce] = {text: Debounce(after) for text in when}
        self._num_unclear = dict.fromkeys(when, 0)
        self._max_answers = max_answers
        self._watch: Watch | None = None
        self._first_token_s: float | None = None
        self._began_s = time.monotonic()
        self.view = WatchView(as_json=as_json, shows_text=question is not None, status=self._status)

    def on_event(self, event: WatchEvent) -> None:
        """Show an answer while it is made."""
        self.view.on_event(event)

    def on_camera(self, state: CameraState) -> None:
        """Tell that a camera came or went."""
        self.view.camera(state)

    def end(self) -> None:
        """End it from another thread."""
        if self._watch is not None:
            self._watch.close(0.0)

    def run(self, runtime: Runtime, watch: Watch, when_options: AskOptions) -> None:
        """Answer until the source ends, or there are enough answers."""
        self._watch = watch
        self._began_s = time.monotonic()
        self.view.is_live = self.source is None or self.source.is_live
        if self.publisher is not None:
            self.publisher.start(_Seen(self.source, watch), self._when)
        self.view.start()
        for answer in watch:
            frame = watch.frame
            assert frame is not None
            states = self._ask_when(runtime, frame, answer, when_options)
            self._deliver(watch, answer, frame, states)
            if self._max_answers is not None and watch.counts.answers >= self._max_answers:
                break

    def check_published(self) -> None:
        """See that everything that was to be published is.

        Raises:
            BrokerError: it is not, and why.
        """
        if self.publisher is None:
            return
        if self.publisher.failure is not None:
            raise self.publisher.failure.again()
        if number := self.publisher.num_unpublished:
            raise BrokerError(f"{number} answers were not published: the broker did not confirm them", reason="lost")

    def finish(self) -> None:
        """Take the status line away, say goodbye to the broker, and sum up; each, whatever becomes of the others."""
        with contextlib.ExitStack() as steps:  # the last one in is the first one out
            steps.callback(self._sum_up)
            if self.saved is not None:
                steps.callback(self.saved.close)
            if self.publisher is not None:
                steps.callback(self.publisher.close)
            steps.callback(self.view.stop)

    def _sum_up(self) -> None:
        if self._watch is None:
            return
        counts = self._watch.counts
        parts = [f"{counts.answers} answers about {counts.frames} frames in {time.monotonic() - self._began_s:.1f} s"]
        for what in ("dropped", "quiet", "late", "bad"):
            if number := getattr(counts, what):
                parts.append(f"{number} {what}")
        if self.saved is not None:
            failed = f", {self.saved.num_failed} not for lack of room or the like" if self.saved.num_failed else ""
            parts.append(f"{self.saved.num_saved} saved{failed}")
        self.view.note(", ".join(parts))
        for text, number in self._num_unclear.items():
            if number:
                self.view.note(f"{number} answers to {text!r} were neither yes nor no")

    def _ask_when(
        self, runtime: Runtime, frame: Frame, answer: Answer, when_options: AskOptions
    ) -> tuple[WhenState, ...]:
        states = []
        for number, (text, debounce) in enumerate(self._when.items()):
            said: str | None = answer.text
            if number or not self._is_first_asked:
                try:
                    said = runtime.ask(frame, text, **when_options).text
                except DeadlineExceeded:
                    said = None
            is_so = None if said is None else yes_or_no(said)
            self._num_unclear[text] += said is not None and is_so is None
            changed = debounce.update(is_so) is not None
            states.append(WhenState(text, debounce.state, changed))
        return tuple(states)

    def _deliver(self, watch: Watch, answer: Answer, frame: Frame, states: tuple[WhenState, ...]) -> None:
        self._first_token_s = answer.timings.first_token_s
        record = answer_record(self.question, answer, frame, states, watch.counts)
        if self.saved is not None:
            path = self.saved.save(frame, record)
            record["saved"] = None if path is None else str(path)
        self.view.answered(frame, record)
        if self.publisher is not None:
            self.publisher.answered(self.question, answer, frame, {state.question: state.state for state in states})
            for state in states:
                if state.changed:
                    self.publisher.changed(state.question, state.state, frame)

    def _status(self) -> str:
        watch, source = self._watch, self.source
        if watch is None:
            return "loading"
        newest = _Seen(source, watch).latest()
        counts = watch.counts
        return status_text(
            camera=_state_of(source),
            age_s=None if newest is None else time.monotonic() - newest.captured_s,
            first_token_s=self._first_token_s,
            answers=counts.answers,
            dropped=counts.dropped,
            late=counts.late,
            bad=counts.bad,
            quiet=counts.quiet,
            frames=counts.frames,
            elapsed_s=time.monotonic() - self._began_s,
        )
