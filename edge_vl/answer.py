"""What comes out: tokens while they are chosen, and the whole answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edge_vl.trace import Timings

__all__ = ["Answer", "Token", "Usage"]


@dataclass(frozen=True, slots=True)
class Token:
    """Text that a token brought. Tokens that complete no character bring none and are not shown.

    Attributes:
        id: the token that completed the text.
        text: never empty; all texts of kind `text` joined are the answer's text.
        kind: part of the answer, or of a reasoning model's `<think>` block; or `early`: what the model would say if the
            picture ended here, no part of the answer.
        index: which token of the answer it was, from 0.
    """

    id: int
    text: str
    kind: Literal["text", "reasoning", "early"]
    index: int


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens it took.

    Attributes:
        prompt_tokens: the whole prompt, pictures included.
        image_tokens: those of its pictures.
        completion_tokens: tokens chosen, the end token not counted.
    """

    prompt_tokens: int
    image_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer.

    Attributes:
        text: without reasoning, stop string and leading white space.
        reasoning: what a reasoning model thought first; usually empty.
        finish_reason: `stop`: the model or a stop string ended it; `length`: `max_tokens` or the context did.
        model: name of the model.
        vision_engine: engine of the vision lane; empty when the model has none.
        language_engine: engine of the language lane.
        dtypes: precision of each lane's weights, by lane; `kv`: that of the KV cache, where the engine tells.
        usage: token counts.
        timings: the trace.
        reused: what was not computed again: `kv_tokens` of the cache, `image_units` that were not encoded, among them
            `similar_units` that only look the same, and `grafted_tokens` of the cache behind a changed tile.
        profile: id of the device profile.
        notes: what is not as the profile wants it, such as an engine that is missing and what runs instead.
        degraded: what was done less well than asked for, and why; empty: nothing.
        dropped: frames that were passed over before this one.
        frame_age_s: seconds from when its oldest picture was taken to the end of the answer; None without a picture.
    """

    text: str
    reasoning: str
    finish_reason: Literal["stop", "length"]
    model: str
    vision_engine: str
    language_engine: str
    dtypes: Mapping[str, str]
    usage: Usage
    timings: Timings
    reused: Mapping[str, int]
    profile: str = ""
    notes: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    dropped: int = 0
    frame_age_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "finish_reason": self.finish_reason,
            "model": self.model,
            "vision_engine": self.vision_engine,
            "language_engine": self.language_engine,
            "dtypes": dict(self.dtypes),
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "image_tokens": self.usage.image_tokens,
                "completion_tokens": self.usage.completion_tokens,
            },
            "timings": self.timings.to_dict(),
            "reused": dict(self.reused),
            "profile": self.profile,
            "notes": list(self.notes),
            "degraded": list(self.degraded),
            "dropped": self.dropped,
            "frame_age_s": None if self.frame_age_s is None else round(self.frame_age_s, 6),
        }
