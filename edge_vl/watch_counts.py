"""What became of the frames of a watch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WatchCounts"]


@dataclass(frozen=True, slots=True)
class WatchCounts:
    """What became of the frames. In the end, `frames` is the sum of those from `answers` to `quiet`.

    Attributes:
        frames: taken off the source; of a live one, all that it gave since the watch saw the first.
        answers: answered.
        dropped: displaced by a newer frame before their turn came, still waiting at the end, or passed over by the
            source.
        cancelled: given up while they were worked on: for a newer one because their answers would have come too late,
            or because of an error or the end.
        late: not answered in time, by `deadline_s` or `max_frame_age_s`.
        bad: no pictures, or damaged.
        quiet: kept back by the watch's gate, because nothing moved.
        abandoned: 1 while the closed watch's thread still waits inside a source that gives nothing; otherwise 0.
    """

    frames: int = 0
    answers: int = 0
    dropped: int = 0
    cancelled: int = 0
    late: int = 0
    bad: int = 0
    quiet: int = 0
    abandoned: int = 0
