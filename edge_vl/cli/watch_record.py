"""An answer of a watch as one JSON object. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from edge_vl.answer import Answer
from edge_vl.frame import Frame
from edge_vl.watch_counts import WatchCounts

__all__ = ["WhenState", "answer_record"]


@dataclass(frozen=True, slots=True)
class WhenState:
    """What a yes/no question says by now.

    Attributes:
        question: that was asked.
        state: after debouncing; None: nothing yet.
        changed: whether this frame's answer changed it.
    """

    question: str
    state: bool | None
    changed: bool


def answer_record(
    question: str, answer: Answer, frame: Frame, when: Sequence[WhenState], counts: WatchCounts
) -> dict[str, Any]:
    """Return what `--json` prints and `--save-dir` keeps: the answer, its frame's time and age, what was dropped."""
    timings = answer.timings
    return {
        "question": question,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "model": answer.model,
        "frame": {
            "source": frame.source,
            "index": frame.index,
            "captured_at": datetime.fromtimestamp(frame.captured_wall_s, UTC).isoformat(timespec="milliseconds"),
            "age_s": _rounded(answer.frame_age_s),
            "width": frame.width,
            "height": frame.height,
        },
        "dropped": answer.dropped,
        "when": [asdict(state) for state in when],
        "first_token_s": _rounded(timings.first_token_s),
        "total_s": _rounded(timings.total_s),
        "tokens_per_s": _rounded(timings.tokens_per_s),
        "usage": {
            "prompt_tokens": answer.usage.prompt_tokens,
            "image_tokens": answer.usage.image_tokens,
            "completion_tokens": answer.usage.completion_tokens,
        },
        "degraded": list(answer.degraded),
        "counts": asdict(counts),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
