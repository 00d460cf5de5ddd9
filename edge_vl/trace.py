"""The trace of a request: what was done when."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["LaneName", "Source", "Span", "Stage", "Timings", "Trace"]

Stage = Literal["picture", "tile", "layout", "queue", "encode", "prefill", "decode", "early"]

LaneName = Literal["caller", "vision", "language"]
"""Where work is done: on the thread of whoever asks, or in one of the two lanes."""

Source = Literal["computed", "kv", "embeds", "similar", "graft"]
"""Where a unit came from: computed now; entries kept in a KV cache; image embeds kept; embeds of a tile that looks
the same; entries of another cache behind a changed tile."""

_CALLER_STAGES = ("picture", "tile", "layout", "queue")


@dataclass(frozen=True, slots=True)
class Span:
    """One unit of work.

    Attributes:
        stage: what kind of work.
        start_s: when it began, seconds after the request was made.
        duration_s: how long it took.
        num_tokens: cache entries it added, or image tokens it made.
        detail: which one, such as `tile 1,2` or `4032x3024 JPEG`.
        lane: where it was done.
        source: where its result came from; what was not computed took no time.
    """

    stage: Stage
    start_s: float
    duration_s: float
    num_tokens: int = 0
    detail: str = ""
    lane: LaneName = "language"
    source: Source = "computed"


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of an answer went. All clocks start when the request was made.

    Attributes:
        spans: every unit of work, in order.
        first_token_s: until the first token was chosen; None if none was.
        total_s: until the answer was complete.
        token_s: when each token of the answer was chosen.
        schedule: how it was scheduled: `mode`, `reason`, the measured numbers that led there, and `engine_notes`: what
            the language engine says about itself, such as whose attention runs and why.
    """

    spans: tuple[Span, ...]
    first_token_s: float | None
    total_s: float
    token_s: tuple[float, ...]
    schedule: Mapping[str, Any] = field(default_factory=dict)

    def stage_s(self, stage: Stage) -> float:
        """Sum of one stage's durations."""
        return sum(span.duration_s for span in self.spans if span.stage == stage)

    def lane_s(self, lane: LaneName) -> float:
        """Return how long a lane worked for this answer; waiting does not count."""
        return sum(span.duration_s for span in self.spans if span.lane == lane and span.stage != "queue")

    @property
    def overlap_ratio(self) -> float:
        """Share of the less busy lane's time in which the other one worked, too; 0 where one of them did nothing."""
        sees, speaks = self._busy("vision"), self._busy("language")
        both_s = sum(
            max(
                0.0,
                min(one.start_s + one.duration_s, other.start_s + other.duration_s) - max(one.start_s, other.start_s),
            )
            for one in sees
            for other in speaks
        )
        least_s = min(self.lane_s("vision"), self.lane_s("language"))
        return min(1.0, both_s / least_s) if least_s > 0 else 0.0

    @property
    def reuse_rate(self) -> float:
        """Share of the prompt's entries that were not computed again: hits / max(queries, 1)."""
        spans = [span for span in self.spans if span.stage == "prefill"]
        hits = sum(span.num_tokens for span in spans if span.source in ("kv", "graft"))
        return hits / max(sum(span.num_tokens for span in spans), 1)

    def _busy(self, lane: LaneName) -> list[Span]:
        return [span for span in self.spans if span.lane == lane and span.duration_s > 0]

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
            "overlap_ratio": _rounded(self.overlap_ratio),
            "reuse_rate": _rounded(self.reuse_rate),
            "schedule": dict(self.schedule),
            "token_s": [_rounded(at) for at in self.token_s],
            "spans": [
                {
                    "stage": span.stage,
                    "start_s": _rounded(span.start_s),
                    "duration_s": _rounded(span.duration_s),
                    "num_tokens": span.num_tokens,
                    "detail": span.detail,
                    "lane": span.lane,
                    "source": span.source,
                }
                for span in self.spans
            ],
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


class Trace:
    """Records the spans of one request. Both lanes add to it."""

    def __init__(self) -> None:
        """Start the clock."""
        self.started_s = time.monotonic()
        self._queued_s: float | None = None
        self._spans: list[Span] = []
        self._token_s: list[float] = []
        self._schedule: dict[str, Any] = {}

    def enter_queue(self) -> None:
        """Note that the request waits for its turn from now on."""
        self._queued_s = time.monotonic()

    def leave_queue(self) -> None:
        """Record the waiting as a span."""
        if self._queued_s is not None:
            self.add("queue", self._queued_s)

    @contextmanager
    def span(
        self, stage: Stage, *, num_tokens: int = 0, detail: str = "", lane: LaneName | None = None
    ) -> Iterator[None]:
        """Record the body as one unit of work; nothing is recorded when it raises."""
        start_s = time.monotonic()
        yield
        self.add(stage, start_s, num_tokens=num_tokens, detail=detail, lane=lane)

    def add(
        self, stage: Stage, start_s: float, *, num_tokens: int = 0, detail: str = "", lane: LaneName | None = None
    ) -> None:
        """Record work that began at `start_s` on the monotonic clock and ends now.

        Args:
            stage: what kind of work.
            start_s: when it began.
            num_tokens: cache entries it added, or image tokens it made.
            detail: which one.
            lane: where; None: where such work is usually done.
        """
        where = _usual_lane(stage) if lane is None else lane
        start = start_s - self.started_s
        self._spans.append(Span(stage, start, time.monotonic() - start_s, num_tokens, detail, where))

    def add_reused(self, stage: Stage, source: Source, num_tokens: int, detail: str = "") -> None:
        """Record something that did not have to be computed."""
        now_s = time.monotonic() - self.started_s
        self._spans.append(Span(stage, now_s, 0.0, num_tokens, detail, _usual_lane(stage), source))

    def note_schedule(self, **facts: Any) -> None:
        """Record how the request is scheduled, and why. JSON-ready."""
        self._schedule.update(facts)

    def add_token(self) -> None:
        """Record that a token was chosen now."""
        self._token_s.append(time.monotonic() - self.started_s)

    def timings(self) -> Timings:
        """Return what was recorded so far."""
        return Timings(
            spans=tuple(sorted(self._spans, key=lambda span: span.start_s)),
            first_token_s=self._token_s[0] if self._token_s else None,
            total_s=time.monotonic() - self.started_s,
            token_s=tuple(self._token_s),
            schedule=dict(self._schedule),
        )


def _usual_lane(stage: Stage) -> LaneName:
    if stage in _CALLER_STAGES:
        return "caller"
    return "vision" if stage == "encode" else "language"
