"""Which question about a camera's newest frame is due. Decides; does nothing."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from edge_vl.errors import QueueFull, RequestError
from edge_vl.frame import Frame

__all__ = ["MAX_ASKS", "CameraTurns", "Trigger", "Turn"]

Trigger = Literal["interval", "motion", "ask"]

MAX_ASKS = 4
"""Questions that may wait for their turn at one camera."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What to do now.

    Attributes:
        frame: what all of it is about.
        question: empty: only the yes/no questions.
        has_when: whether the yes/no questions are asked, too.
        trigger: why.
    """

    frame: Frame
    question: str
    has_when: bool
    trigger: Trigger


class CameraTurns:
    """The questions of one camera and when they are due. Belongs to one thread.

    Attributes:
        is_enabled: whether anything is asked at all.
        question: asked again and again; empty: none.
        every_s: least seconds from the start of one turn to the start of the next; None: as fast as it goes.
        last_index: of the frame that the last turn was about; -1 before the first.
    """

    def __init__(self, question: str, every_s: float | None, *, is_enabled: bool, has_when: bool, on_motion: bool):
        """Begin with the first turn due at once.

        Args:
            question: see above.
            every_s: likewise.
            is_enabled: likewise.
            has_when: whether there are yes/no questions.
            on_motion: whether a turn needs something to have changed in the picture.
        """
        self.is_enabled = is_enabled
        self.question = question
        self.every_s = every_s
        self.last_index = -1
        self._has_when = has_when
        self._on_motion = on_motion
        self._has_moved = False
        self._started_s = -math.inf
        self._not_before_s = -math.inf
        self._asks: deque[str] = deque()

    @property
    def num_asks(self) -> int:
        """Questions that wait for their turn."""
        return len(self._asks)

    def is_due(self, now_s: float) -> bool:
        """Whether a turn that nobody asked for may begin as soon as there is a newer frame."""
        is_wanted = bool(self.question) or self._has_when
        has_reason = self._has_moved or not self._on_motion
        is_time = now_s >= max(self._not_before_s, self._started_s + (self.every_s or 0.0))
        return self.is_enabled and is_wanted and has_reason and is_time

    def enable(self, is_enabled: bool) -> None:
        """Switch it on or off; what waits is forgotten when it is switched off."""
        self.is_enabled = is_enabled
        if not is_enabled:
            self._asks.clear()

    def ask(self, question: str) -> None:
        """Put a question in the queue; empty: the camera's own, with the yes/no questions.

        Raises:
            RequestError: it is switched off, or has no question of its own.
            QueueFull: too many wait.
        """
        if not self.is_enabled:
            raise RequestError("the camera is switched off; send ON to its enabled/set first", field="ask")
        if not (question or self.question or self._has_when):
            raise RequestError("the camera has no question; send one to its question/set, or to ask/set", field="ask")
        if len(self._asks) >= MAX_ASKS:
            raise QueueFull(len(self._asks), MAX_ASKS)
        self._asks.append(question)

    def moved(self) -> None:
        """Note that something has changed in the picture, or that it was silent for too long."""
        self._has_moved = True

    def pause(self, until_s: float) -> None:
        """Begin no turn before a moment on the monotonic clock, unless somebody asks."""
        self._not_before_s = until_s

    def has_ask_without(self, frame: Frame | None) -> bool:
        """Take a question off the queue for which there is no frame; False: there is none such."""
        if frame is None and self._asks:
            self._asks.popleft()
            return True
        return False

    def next(self, frame: Frame | None, now_s: float) -> Turn | None:
        """Return what is to be done now, and count it as begun; None: nothing yet.

        Args:
            frame: the newest frame; None: there is none.
            now_s: `time.monotonic()`.
        """
        if not self.is_enabled or frame is None:
            return None
        if self._asks:
            question = self._asks.popleft()
            if question:
                return Turn(frame, question, False, "ask")
            self._begin(frame, now_s)
            return Turn(frame, self.question, self._has_when, "ask")
        if not self.is_due(now_s) or frame.index <= self.last_index:
            return None
        self._begin(frame, now_s)
        return Turn(frame, self.question, self._has_when, "motion" if self._on_motion else "interval")

    def put_back(self, turn: Turn) -> None:
        """Undo the begin of a turn that could not be taken up."""
        if turn.trigger == "ask" and self.is_enabled:
            self._asks.appendleft("" if turn.has_when else turn.question)
        if turn.trigger != "ask":
            self._has_moved, self._started_s = True, -math.inf

    def _begin(self, frame: Frame, now_s: float) -> None:
        self.last_index = frame.index
        self._has_moved = False
        self._started_s = now_s
