"""From the bytes of tokens to text that can be shown at once."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["TextPiece", "TextStream"]

_OPEN = "<think>"
_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is final.

    Attributes:
        text: never empty.
        kind: part of the answer, or of a reasoning model's `<think>` block.
    """

    text: str
    kind: Literal["text", "reasoning"]


class TextStream:
    """Joins bytes into characters, finds stop strings and separates reasoning.

    What is given out never changes later: bytes wait until their character is complete, and text waits while it could
    still turn out to be the beginning of a stop string or of a `<think>` tag. White space around the tags and at the
    beginning of the answer is left out. Stop strings end the answer, not the reasoning.
    """

    def __init__(self, stop: Sequence[str] = (), *, opens_reasoning: bool = False) -> None:
        """Start with nothing.

        Args:
            stop: strings that end the answer and are not part of it; none of them empty.
            opens_reasoning: the prompt ended in `<think>`.
        """
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._stop = tuple(stop)
        self._kind: Literal["text", "reasoning"] = "reasoning" if opens_reasoning else "text"
        self._skips_space = True
        self.is_stopped = False

    def push(self, data: bytes) -> list[TextPiece]:
        """Take a token's bytes and return the text that has become final."""
        return [] if self.is_stopped else self._take(self._decoder.decode(data))

    def finish(self) -> list[TextPiece]:
        """Return what was held back: no more bytes will come."""
        if self.is_stopped:
            return []
        pieces = self._take(self._decoder.decode(b"", final=True))
        rest, self._pending = self._pending, ""
        return pieces if self.is_stopped else pieces + self._piece(rest)

    def _take(self, text: str) -> list[TextPiece]:
        self._pending += text
        pieces: list[TextPiece] = []
        while True:
            needles = (_CLOSE,) if self._kind == "reasoning" else (_OPEN, *self._stop)
            found = [(at, needle) for needle in needles if (at := self._pending.find(needle)) >= 0]
            if not found:
                break
            # The one that is complete first, so that it does not matter how the text came in pieces.
            at, needle = min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            pieces += self._piece(self._pending[:at])
            self._pending = self._pending[at + len(needle) :]
            if needle in self._stop and self._kind == "text":
                self.is_stopped = True
                self._pending = ""
                return pieces
            self._kind = "text" if self._kind == "reasoning" else "reasoning"
            self._skips_space = True
        held = _held_back(self._pending, needles)
        pieces += self._piece(self._pending[: len(self._pending) - held])
        self._pending = self._pending[len(self._pending) - held :]
        return pieces

    def _piece(self, text: str) -> list[TextPiece]:
        if self._skips_space:
            text = text.lstrip()
        if not text:
            return []
        self._skips_space = False
        return [TextPiece(text, self._kind)]


def _held_back(text: str, needles: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that a needle begins with."""
    longest = max(map(len, needles)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(len(needle) > length and needle.startswith(end) for needle in needles):
            return length
    return 0
