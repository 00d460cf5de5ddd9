"""Whether answers stay right when tiles that look the same are reused, in clips where one object changes."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.clips import CHANGES, NUM_FRAMES, Change, Clip, random_clip
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl import Answer, Runtime
from edge_vl.request import Reuse

MIN_SEEN = 0.99
MAX_DIFFERENT = 0.01

WAYS: tuple[Reuse, ...] = ("exact", "perceptual", "approximate")

Belongs = Callable[[Clip], bool]
GROUPS: Mapping[str, Belongs] = {
    "all": lambda clip: True,
    "object below 3 % of the picture": lambda clip: clip.share < 0.03,
    "object from 3 %": lambda clip: clip.share >= 0.03,
    "noise below 4": lambda clip: clip.noise < 4,
    "noise from 4": lambda clip: clip.noise >= 4,
    "JPEG": lambda clip: clip.jpeg_quality > 0,
    "no JPEG": lambda clip: clip.jpeg_quality == 0,
    "light drifts": lambda clip: clip.light > 0,
    "light is steady": lambda clip: clip.light == 0,
}


@dataclass(slots=True)
class Track:
    """What one way of computing answered to every frame of a clip, and what it took.

    Attributes:
        texts: the answers.
        num_encoded: image units encoded.
        num_prefilled: prompt tokens computed.
        answer_s: seconds until each answer.
    """

    texts: list[str] = field(default_factory=list)
    num_encoded: int = 0
    num_prefilled: int = 0
    answer_s: list[float] = field(default_factory=list)

    def add(self, answer: Answer, duration_s: float) -> None:
        """Note an answer."""
        computed = [span for span in answer.timings.spans if span.source == "computed"]
        self.texts.append(answer.text)
        self.num_encoded += sum(span.stage == "encode" for span in computed)
        self.num_prefilled += sum(span.num_tokens for span in computed if span.stage == "prefill")
        self.answer_s.append(duration_s)


@dataclass(frozen=True, slots=True)
class Watched:
    """A clip and one track for each way of computing; `exact` is full computation."""

    clip: Clip
    tracks: Mapping[Reuse, Track]

    @property
    def is_followed(self) -> bool:
        """Whether full computation is right about the frames before and after every change: others prove nothing."""
        texts = self.tracks["exact"].texts
        return all(
            (texts[start - 1], texts[start]) == truths
            for start, truths in zip(self.clip.starts[1:], pairwise(self.clip.truths), strict=True)
        )

    def seen(self, way: Reuse, change: Change | None = None) -> list[bool]:
        """Return for each change, or each of a kind, whether it is in the answer to the very frame that shows it."""
        texts = self.tracks[way].texts
        return [
            texts[start] == truth
            for start, truth, kind in zip(self.clip.starts[1:], self.clip.truths[1:], self.clip.changes, strict=True)
            if change in (None, kind)
        ]

    def num_different(self, way: Reuse) -> int:
        """Count the frames with another answer than full computation gives."""
        return sum(a != b for a, b in zip(self.tracks["exact"].texts, self.tracks[way].texts, strict=True))

    def num_wrong(self, way: Reuse) -> int:
        """Count the frames with another answer than the true one."""
        clip = self.clip
        shown = [sum(number >= start for start in clip.starts) - 1 for number in range(NUM_FRAMES)]
        return sum(text != clip.truths[scene] for text, scene in zip(self.tracks[way].texts, shown, strict=True))


def run(quick: bool) -> Result:
    """Ask one question about every frame of each clip, in each way of computing; the seeds of clips are fixed."""
    num_clips = 12 if quick else 120
    watched: list[Watched] = []
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        # Each way has a runtime of its own, so that none finds what another one has computed. One thread: a second one
        # would only wait for so small a model.
        runtimes = {way: stack.enter_context(Runtime.open("bundled", threads=1)) for way in WAYS}
        for seed in range(num_clips):
            watched.append(_watch(runtimes, random_clip(seed)))
            if (seed + 1) % 6 == 0:
                row = _row("perceptual", "all", watched)
                report(f"{seed + 1} of {num_clips} clips, {time.monotonic() - started_s:.0f} s: {row}")
    followed = [one for one in watched if one.is_followed]
    seen = [seen for one in followed for seen in one.seen("perceptual")]
    different = sum(one.num_different("perceptual") for one in followed)
    bars = {
        "share of changes in the answer to the very next frame, perceptual": Bar(
            _share(sum(seen), len(seen)), MIN_SEEN, at_least=True
        ),
        "share of answers unlike full computation, perceptual": Bar(
            _share(different, NUM_FRAMES * len(followed)), MAX_DIFFERENT
        ),
    }
    return Result(bars, _table(watched))


def _watch(runtimes: Mapping[Reuse, Runtime], clip: Clip) -> Watched:
    tracks: dict[Reuse, Track] = {way: Track() for way in runtimes}
    for frame in clip.frames():
        for way, runtime in runtimes.items():
            started_s = time.perf_counter()
            answer = runtime.ask(frame, clip.question, reuse=way, stream=f"clip {clip.seed}")
            tracks[way].add(answer, time.perf_counter() - started_s)
    return Watched(clip, tracks)


def _table(watched: Sequence[Watched]) -> list[dict[str, Cell]]:
    rows = []
    for way in WAYS:
        rows += [
            _row(way, name, [one for one in watched if belongs(one.clip)])
            for name, belongs in GROUPS.items()
            if way != "exact" or name == "all"
        ]
        if way != "exact":
            rows += [
                _row(way, f"object {change}", [one for one in watched if change in one.clip.changes], change)
                for change in CHANGES
            ]
    return rows


def _row(way: Reuse, name: str, watched: Sequence[Watched], change: Change | None = None) -> dict[str, Cell]:
    """Sum a group of clips up. All but `left_out` is about the clips whose changes full computation follows."""
    followed = [one for one in watched if one.is_followed]
    tracks = [one.tracks[way] for one in followed]
    num_frames = NUM_FRAMES * len(followed)
    seen = [seen for one in followed for seen in one.seen(way, change)]
    num_different = sum(one.num_different(way) for one in followed)
    times_s = [duration_s for track in tracks for duration_s in track.answer_s]
    return {
        "reuse": way,
        "clips": name,
        "left_out": len(watched) - len(followed),
        "followed": len(followed),
        "changes": len(seen),
        "seen_at_once": sum(seen),
        "answers": num_frames,
        "unlike_full": num_different,
        "unlike_full_share": _cell(num_different, num_frames),
        "wrong_share": _cell(sum(one.num_wrong(way) for one in followed), num_frames),
        "units_encoded": _cell(sum(track.num_encoded for track in tracks), num_frames),
        "tokens_prefilled": _cell(sum(track.num_prefilled for track in tracks), num_frames),
        "median_answer_ms": round(1e3 * statistics.median(times_s), 2) if times_s else None,
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _cell(part: int, whole: int) -> float | None:
    """Return a share or a mean as a table shows it."""
    return round(part / whole, 5) if whole else None
