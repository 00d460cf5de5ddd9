"""Engines that write down how every KV entry came about and which logits followed, and that fail as planned."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import (
    ImageEmbeds,
    KVCache,
    LanguageModel,
    LanguageSpec,
    Prefillable,
    Tokenizer,
    VisionEncoder,
    VisionSpec,
)
from edge_vl.errors import EngineFault
from edge_vl.plan import ImageUnit, TextChunk

__all__ = [
    "History",
    "Pass",
    "Recorded",
    "Recording",
    "RecordingLanguage",
    "RecordingVision",
    "Stage",
    "Trouble",
    "replay",
]

Stage = Literal["encode", "prefill", "decode"]
Item = tuple[int, ...] | str
"""Ids of text tokens, or the content key of an image unit."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One call of the language model that entries of a cache came from.

    Attributes:
        items: what went in.
        num_tokens: entries it made.
        num_kept: those that are still there; fewer after the cache was trimmed.
        is_decode: a token of an answer.
    """

    items: tuple[Item, ...]
    num_tokens: int
    num_kept: int
    is_decode: bool = False


History = tuple[Pass, ...]
"""The passes that the entries of a cache came from: what it holds, and at which borders it was computed."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong with a request.

    Attributes:
        kind: it is cancelled during a call, or the call raises, or returns NaN.
        stage: of that call.
        at: which call of that stage, from 1. Where there are not so many encodes or prefills (what was computed before
            a cancel is kept, and how much that is depends on the mode), it happens with the prompt's last pass.
    """

    kind: Literal["cancel", "raise", "nan"]
    stage: Stage
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Logits, and the history of the cache that they were computed from.

    Attributes:
        history: of the cache, including what was appended last.
        logits: float32 (vocab_size,).
    """

    history: History
    logits: NDArray[np.float32]


class Recording:
    """What both lanes write to; one request after the other.

    Attributes:
        cancel: set when the request is to be cancelled; given to it as its flag.
        order: of the calls: `e` an encode, `p` a prefill, `d` a decode.
        num_beside: calls of one lane that began while the other lane was in a call.
        happened: stage of the call that the planned trouble happened in; empty: it did not.
        spoiled_key: content key of a unit whose embeds come out a little different.
    """

    def __init__(self) -> None:
        """Begin with nothing planned."""
        self.cancel = threading.Event()
        self.order = ""
        self.num_beside = 0
        self.happened: Stage | Literal[""] = ""
        self.spoiled_key = ""
        self._trouble: Trouble | None = None
        self._num_calls: dict[Stage, int] = {}
        self._logits: list[Recorded] = []
        self._num_inside = 0
        self._lock = threading.Lock()

    def begin(self, trouble: Trouble | None = None) -> None:
        """Begin a request; nothing of the one before may be running in either lane if trouble is planned."""
        self.cancel = threading.Event()
        self.order = self.happened = ""
        self._trouble = trouble
        self._num_calls = {"encode": 0, "prefill": 0, "decode": 0}
        self._logits = []

    def end(self) -> tuple[Recorded, ...]:
        """Return the logits of the request, in order."""
        return tuple(self._logits)

    @contextmanager
    def call(self, stage: Stage, *, is_last: bool = False) -> Iterator[bool]:
        """Note a call of an engine, which is made inside, and let happen what is planned.

        Yields:
            Whether its result is to be NaN.
        """
        with self._lock:
            self.order += stage[0]
            self.num_beside += self._num_inside
            self._num_inside += 1
            self._num_calls[stage] = self._num_calls.get(stage, 0) + 1
        try:
            yield self._meet(stage, self._num_calls[stage], is_last=is_last)
        finally:
            with self._lock:
                self._num_inside -= 1

    def _meet(self, stage: Stage, count: int, *, is_last: bool) -> bool:
        """Let happen what is planned for a call; return whether its result is to be NaN."""
        trouble = self._trouble
        if trouble is None:
            return False
        is_reached = trouble.stage == stage and trouble.at == count
        if not is_reached and not (is_last and trouble.stage != "decode"):
            return False
        self._trouble = None
        self.happened = stage
        if trouble.kind == "cancel":
            self.cancel.set()
        elif trouble.kind == "raise" or not is_reached:
            raise EngineFault("planned", stage, "planned") if trouble.at % 2 else RuntimeError("planned")
        return trouble.kind == "nan"

    def add(self, history: History, logits: NDArray[np.float32]) -> None:
        """Note logits."""
        self._logits.append(Recorded(history, logits.copy()))


class RecordingVision:
    """A vision encoder that fails as planned."""

    def __init__(self, inner: VisionEncoder, recording: Recording) -> None:
        """Wrap an encoder."""
        self._inner, self._recording = inner, recording

    @property
    def spec(self) -> VisionSpec:
        """Pass on."""
        return self._inner.spec

    def encode(self, unit: ImageUnit) -> ImageEmbeds:
        """Pass on, as planned."""
        with self._recording.call("encode") as is_nan:
            embeds = self._inner.encode(unit)
        if is_nan:
            return replace(embeds, values=np.full_like(embeds.values, np.nan))
        if unit.key == self._recording.spoiled_key:
            values = embeds.values.copy()
            values[-1, -1] += np.float32(0.05)
            return replace(embeds, values=values)
        return embeds

    def close(self) -> None:
        """Pass on."""
        self._inner.close()


class RecordingCache:
    """A cache that knows its history."""

    def __init__(self, inner: KVCache, history: History = ()) -> None:
        """Wrap a cache."""
        self.inner, self.history = inner, history

    @property
    def num_tokens(self) -> int:
        """Pass on."""
        return self.inner.num_tokens

    @property
    def next_position(self) -> int:
        """Pass on."""
        return self.inner.next_position

    @property
    def nbytes(self) -> int:
        """Pass on."""
        return self.inner.nbytes

    def fork(self) -> RecordingCache:
        """Pass on; the fork has the same history."""
        return RecordingCache(self.inner.fork(), self.history)

    def trim(self, num_tokens: int) -> None:
        """Pass on, and forget whole passes, and the end of one."""
        self.inner.trim(num_tokens)
        kept: list[Pass] = []
        left = num_tokens
        for one in self.history:
            if left > 0:
                kept.append(replace(one, num_kept=min(one.num_kept, left)))
            left -= one.num_kept
        self.history = tuple(kept)

    def close(self) -> None:
        """Pass on."""
        self.inner.close()


class RecordingLanguage:
    """A language model that records its logits and fails as planned."""

    def __init__(self, inner: LanguageModel, recording: Recording) -> None:
        """Wrap a language model."""
        self._inner, self._recording = inner, recording

    @property
    def spec(self) -> LanguageSpec:
        """Pass on."""
        return self._inner.spec

    @property
    def tokenizer(self) -> Tokenizer:
        """Pass on."""
        return self._inner.tokenizer

    def new_cache(self) -> RecordingCache:
        """Pass on."""
        return RecordingCache(self._inner.new_cache())

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        """Pass on, as planned."""
        assert isinstance(cache, RecordingCache)
        with self._recording.call("prefill", is_last=want_logits) as is_nan:
            logits = self._inner.prefill(cache.inner, run, want_logits=want_logits)
        items = tuple(part.token_ids if isinstance(part, TextChunk) else part.key for part in run)
        num_tokens = sum(part.num_tokens for part in run)
        cache.history = (*cache.history, Pass(items, num_tokens, num_tokens))
        if logits is not None:
            logits = np.full_like(logits, np.nan) if is_nan else logits
            self._recording.add(cache.history, logits)
        return logits

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        """Pass on, as planned."""
        assert isinstance(cache, RecordingCache)
        with self._recording.call("decode") as is_nan:
            logits = self._inner.decode(cache.inner, token_id)
        cache.history = (*cache.history, Pass(((token_id,),), 1, 1, is_decode=True))
        logits = np.full_like(logits, np.nan) if is_nan else logits
        self._recording.add(cache.history, logits)
        return logits

    def close(self) -> None:
        """Pass on."""
        self._inner.close()


def replay(
    vision: VisionEncoder | None, language: LanguageModel, history: History, units: dict[str, ImageUnit]
) -> list[NDArray[np.float32]]:
    """Compute on an empty cache, in one thread, what the passes of a history give: no fork, nothing kept.

    Args:
        vision: encodes the units anew.
        language: a model of its own.
        history: to be repeated; a pass of which only the beginning is left is run whole and then trimmed.
        units: by content key.

    Returns:
        float32 (vocab_size,) behind each pass.
    """
    embeds: dict[str, ImageEmbeds] = {}
    found: list[NDArray[np.float32]] = []
    cache = language.new_cache()
    try:
        for one in history:
            run: list[Prefillable] = []
            for item in one.items:
                if isinstance(item, str):
                    assert vision is not None
                    if item not in embeds:
                        embeds[item] = vision.encode(units[item])
                    run.append(embeds[item])
                else:
                    run.append(TextChunk(item, 0))
            if one.is_decode:
                token = one.items[0]
                assert isinstance(token, tuple)
                logits: NDArray[np.float32] | None = language.decode(cache, token[0])
            else:
                logits = language.prefill(cache, run)
            assert logits is not None
            found.append(logits)
            if one.num_kept < one.num_tokens:
                cache.trim(cache.num_tokens - one.num_tokens + one.num_kept)
    finally:
        cache.close()
    return found
