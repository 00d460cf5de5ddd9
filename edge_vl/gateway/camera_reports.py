"""What is told about a camera, as messages of the contract. Pure but for the clocks of `Moment.now`."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from edge_vl.answer import Answer
from edge_vl.gateway.camera_turns import Turn
from edge_vl.mqtt.messages import AnswerFrame, ErrorFacts
from edge_vl.mqtt.node_messages import CameraAnswer, CameraEvent, short_text

if TYPE_CHECKING:
    from edge_vl.frame import Frame

__all__ = ["EVERY_ERROR_S", "ErrorReports", "Moment", "Outcome", "answer_message", "wall_time"]

EVERY_ERROR_S = 10.0
"""Seconds in which one more error event of a kind may be sent."""

ERRORS_AT_ONCE = 5
"""Error events of a kind that may be sent at once."""

_MAX_KINDS = 64

MAX_TEXT_BYTES = 96_000
"""Of an answer's text as JSON: brokers of clouds take messages of 128 KB."""


def wall_time(wall_s: float) -> str:
    """Return seconds since the epoch in ISO 8601, UTC, with milliseconds."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on both clocks.

    Attributes:
        at: wall time in ISO 8601, UTC.
        t_ms: `time.monotonic()` in whole milliseconds.
    """

    at: str
    t_ms: int

    @classmethod
    def now(cls) -> Moment:
        """Read both clocks."""
        return cls(wall_time(time.time()), int(time.monotonic() * 1000))


@dataclass(slots=True)
class Outcome:
    """What a turn brought.

    Attributes:
        started_s: `time.monotonic()` when its first question was put.
        answer: to the question; None: none was asked, or it failed.
        first: the first answer that came, to whichever question.
        when: what the yes/no questions say by now.
        num_dropped: frames passed over since the last answer, whatever it was about.
    """

    started_s: float
    answer: Answer | None = None
    first: Answer | None = None
    when: Mapping[str, bool | None] = field(default_factory=dict)
    num_dropped: int = 0


def answer_message(camera: str, turn: Turn, outcome: Outcome, moment: Moment) -> CameraAnswer:
    """Return what is told about a turn that brought an answer.

    Args:
        camera: its name.
        turn: what was asked.
        outcome: what came of it; `first` is there.
        moment: when it was complete.

    Raises:
        ValueError: there is no answer at all.
    """
    answer, first, frame = outcome.answer, outcome.first, turn.frame
    if first is None:
        raise ValueError("a turn without an answer is not told as one")
    shown = first if answer is None else answer
    text = "" if answer is None else _fitting(answer.text)
    first_token_s = shown.timings.first_token_s
    rate = shown.timings.tokens_per_s
    return CameraAnswer(
        camera=camera,
        question="" if answer is None else turn.question,
        trigger=turn.trigger,
        text=text,
        state=short_text(text),
        at=moment.at,
        t_ms=moment.t_ms,
        finish_reason=None if answer is None else answer.finish_reason,
        model=shown.model,
        frame=answer_frame(camera, frame, moment, outcome.num_dropped),
        first_token_ms=None if first_token_s is None else round(first_token_s * 1000, 1),
        total_ms=round(max(0.0, moment.t_ms - outcome.started_s * 1000), 1),
        tokens_per_s=None if rate is None else round(rate, 2),
        usage={
            "prompt_tokens": shown.usage.prompt_tokens,
            "image_tokens": shown.usage.image_tokens,
            "completion_tokens": shown.usage.completion_tokens,
        },
        when=dict(outcome.when),
        degraded=list(shown.degraded),
    )


def answer_frame(camera: str, frame: Frame, moment: Moment, num_dropped: int) -> AnswerFrame:
    """Return which frame an answer is about, and its age at a moment."""
    return AnswerFrame(
        source=camera,
        index=frame.index,
        captured_at=wall_time(frame.captured_wall_s),
        age_ms=max(0, moment.t_ms - int(frame.captured_s * 1000)),
        dropped=num_dropped,
    )


def _fitting(text: str) -> str:
    """Return as much of a text as fits, without halves of characters."""
    text = text.encode(errors="replace").decode()
    while (size := len(msgspec.json.encode(text))) > MAX_TEXT_BYTES:
        text = text[: len(text) * MAX_TEXT_BYTES // size]
    return text


@dataclass(slots=True)
class _ErrorKind:
    """What is remembered of errors of one kind.

    Attributes:
        credit: events that may be sent at once.
        t_ms: when the credit was right.
        last: the one that was left out last; None: the last one was sent.
        num_left_out: since the last one that was sent.
    """

    credit: float
    t_ms: int
    last: CameraEvent | None = None
    num_left_out: int = 0


class ErrorReports:
    """Makes error events: a few of each kind at once, then one in ten seconds; that says how many were left out.

    A kind is the type of an error and the field that it is about.
    """

    def __init__(self) -> None:
        """Begin with none told."""
        self._kinds: OrderedDict[tuple[str, str | None], _ErrorKind] = OrderedDict()

    def event(self, camera: str, facts: ErrorFacts, moment: Moment) -> CameraEvent | None:
        """Return the event for an error; None: it is too soon.

        Args:
            camera: its name.
            facts: what is told about the error.
            moment: when it happened.
        """
        key = (facts.type, facts.param)
        kind = self._kinds.setdefault(key, _ErrorKind(ERRORS_AT_ONCE, moment.t_ms))
        self._kinds.move_to_end(key)
        if len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)
        event = CameraEvent(camera=camera, type="error", at=moment.at, t_ms=moment.t_ms, error=facts)
        num_left_out = kind.num_left_out
        if not _may_tell(kind, moment):
            kind.last, kind.num_left_out = event, num_left_out + 1
            return None
        kind.last, kind.num_left_out = None, 0
        return msgspec.structs.replace(event, suppressed=num_left_out)

    def left_out(self, moment: Moment) -> list[CameraEvent]:
        """Return the last event of each kind of which some were left out, as soon as it may be told."""
        events = []
        for kind in self._kinds.values():
            if kind.last is not None and _may_tell(kind, moment):
                events.append(msgspec.structs.replace(kind.last, suppressed=kind.num_left_out - 1))
                kind.last, kind.num_left_out = None, 0
        return events


def _may_tell(kind: _ErrorKind, moment: Moment) -> bool:
    """Say whether one more event may be sent, and take it as sent."""
    kind.credit = min(ERRORS_AT_ONCE, kind.credit + (moment.t_ms - kind.t_ms) / (EVERY_ERROR_S * 1000))
    kind.t_ms = moment.t_ms
    if kind.credit < 1:
        return False
    kind.credit -= 1
    return True
