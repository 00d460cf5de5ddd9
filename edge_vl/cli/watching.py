"""A running `edge-vl watch`: what it asks, and where its answers go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge_vl.asking import AskOptions
from edge_vl.cli.watch_record import WhenState, answer_record
from edge_vl.cli.watch_view import WatchView, status_text
from edge_vl.debounce import Debounce
from edge_vl.errors import DeadlineExceeded
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
        if self.publisher is not None:
            self.publisher.state(state)

    def end(self) -> None:
        """End it from another thread."""
        if self._watch is not None:
            self._watch.close(0.0)

    def run(self, runtime: Runtime, watch: Watch, when_options: AskOptions) -> None:
        """Answer until the source ends, or there are enough answers."""
        self._watch = watch
        self._began_s = time.monotonic()
        if self.publisher is not None:
            self.publisher.start()
        self.view.start()
        for answer in watch:
            frame = watch.frame
            assert frame is not None
            states = self._ask_when(runtime, frame, answer, when_options)
            self._deliver(watch, answer, frame, states)
            if self._max_answers is not None and watch.counts.answers >= self._max_answers:
                break
        if self.publisher is not None and self.publisher.failure is not None:
            raise self.publisher.failure.again()

    def finish(self) -> None:
        """Take the status line away, say goodbye to the broker, and sum up."""
        self.view.stop()
        if self.publisher is not None:
            self.publisher.close()
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
            changed = debounce.update(None if said is None else yes_or_no(said)) is not None
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
        state = getattr(source, "state", None)
        latest = getattr(source, "latest", None)
        newest = latest() if latest is not None else watch.frame
        counts = watch.counts
        return status_text(
            camera=state if isinstance(state, CameraState) else None,
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
