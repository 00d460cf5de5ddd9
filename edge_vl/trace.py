"""The trace of a request: what was done when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Span", "Stage", "Timings", "Trace"]

Stage = Literal["picture", "tile", "layout", "queue", "encode", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Span:
    """One unit of work.

    Attributes:
        stage: what kind of work.
        start_s: when it began, seconds after the request was made.
        duration_s: how long it took.
        num_tokens: cache entries it added, or image tokens it made.
        detail: which one, such as `tile 1,2` or `4032x3024 JPEG`.
    """

    stage: Stage
    start_s: float
    duration_s: float
    num_tokens: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of an answer went. All clocks start when the request was made.

    Attributes:
        spans: every unit of work, in order.
        first_token_s: until the first token was chosen; None if none was.
        total_s: until the answer was complete.
        token_s: when each token of the answer was chosen.
    """

    spans: tuple[Span, ...]
    first_token_s: float | None
    total_s: float
    token_s: tuple[float, ...]

    def stage_s(self, stage: Stage) -> float:
        """Sum of one stage's durations."""
        return sum(span.duration_s for span in self.spans if span.stage == stage)

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of the tokens after the first; None with fewer than two."""
        if len(self.token_s) < 2:
            return None
        elapsed_s = self.token_s[-1] - self.token_s[0]
        return (len(self.token_s) - 1) / elapsed_s if elapsed_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form: totals per stage in seconds, then the spans."""
        stages: dict[str, float] = {}
        for span in self.spans:
            stages[span.stage] = stages.get(span.stage, 0.0) + span.duration_s
        return {
            "first_token_s": _rounded(self.first_token_s),
            "total_s": _rounded(self.total_s),
            "tokens_per_s": _rounded(self.tokens_per_s),
            "stages_s": {stage: _rounded(total) for stage, total in stages.items()},
            "token_s": [_rounded(at) for at in self.token_s],
            "spans": [
                {
                    "stage": span.stage,
                    "start_s": _rounded(span.start_s),
                    "duration_s": _rounded(span.duration_s),
                    "num_tokens": span.num_tokens,
                    "detail": span.detail,
                }
                for span in self.spans
            ],
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


class Trace:
    """Records the spans of one request. Handed from thread to thread with it, never shared."""

    def __init__(self) -> None:
        """Start the clock."""
        self.started_s = time.monotonic()
        self._queued_s: float | None = None
        self._spans: list[Span] = []
        self._token_s: list[float] = []

    def enter_queue(self) -> None:
        """Note that the request waits for its turn from now on."""
        self._queued_s = time.monotonic()

    def leave_queue(self) -> None:
        """Record the waiting as a span."""
        if self._queued_s is not None:
            self.add("queue", self._queued_s)

    @contextmanager
    def span(self, stage: Stage, *, num_tokens: int = 0, detail: str = "") -> Iterator[None]:
        """Record the body as one unit of work; nothing is recorded when it raises."""
        start_s = time.monotonic()
        yield
        self.add(stage, start_s, num_tokens=num_tokens, detail=detail)

    def add(self, stage: Stage, start_s: float, *, num_tokens: int = 0, detail: str = "") -> None:
        """Record work that began at `start_s` on the monotonic clock and ends now."""
        self._spans.append(Span(stage, start_s - self.started_s, time.monotonic() - start_s, num_tokens, detail))

    def add_token(self) -> None:
        """Record that a token was chosen now."""
        self._token_s.append(time.monotonic() - self.started_s)

    def timings(self) -> Timings:
        """Return what was recorded so far."""
        return Timings(
            spans=tuple(self._spans),
            first_token_s=self._token_s[0] if self._token_s else None,
            total_s=time.monotonic() - self.started_s,
            token_s=tuple(self._token_s),
        )
