"""What a watch tells while an answer is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edge_vl.answer import Token
from edge_vl.frame import Frame

__all__ = ["AnswerBegan", "AnswerGivenUp", "WatchEvent"]


@dataclass(frozen=True, slots=True)
class AnswerBegan:
    """An answer is being made; its tokens follow, then the answer itself or `AnswerGivenUp`.

    Attributes:
        frame: what it is about.
        dropped: frames that were passed over since the last answer.
    """

    frame: Frame
    dropped: int


@dataclass(frozen=True, slots=True)
class AnswerGivenUp:
    """The answer that had begun will not come.

    Attributes:
        frame: what it was about.
        reason: `newer`: a newer frame took its place; `late`: it was not there in time; `ended`: the watch was closed,
            somebody cancelled it, or an error ended it.
    """

    frame: Frame
    reason: Literal["newer", "late", "ended"]


WatchEvent = AnswerBegan | Token | AnswerGivenUp
