"""Passes: how what is to be prefilled is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge_vl.plan import Chunk, ImageChunk, TextChunk

__all__ = ["MAX_PREFILL_TOKENS", "Piece", "next_pass", "passes", "pieces_of"]

MAX_PREFILL_TOKENS = 256
"""Text tokens of one prefill pass: a deadline or a cancel waits for no more than one pass."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive tokens of a chunk.

    Attributes:
        chunk: which.
        start: first of its tokens.
        stop: behind the last.
        is_graft: its entries are taken from another cache and not computed.
    """

    chunk: Chunk
    start: int
    stop: int
    is_graft: bool = False

    @property
    def num_tokens(self) -> int:
        """Cache entries it will take."""
        return self.stop - self.start

    @property
    def text(self) -> TextChunk:
        """Its text tokens as a chunk."""
        chunk = self.chunk
        assert isinstance(chunk, TextChunk)
        if self.num_tokens == chunk.num_tokens:
            return chunk
        return TextChunk(chunk.token_ids[self.start : self.stop], chunk.position + self.start)


def pieces_of(chunks: Iterable[Chunk], start: int = 0) -> list[Piece]:
    """Return chunks as pieces, without the first `start` tokens of all."""
    pieces: list[Piece] = []
    for chunk in chunks:
        skipped = min(start, chunk.num_tokens)
        start -= skipped
        if skipped < chunk.num_tokens:
            pieces.append(Piece(chunk, skipped, chunk.num_tokens))
    return pieces


def next_pass(
    rest: Sequence[Piece], *, max_text_tokens: int = MAX_PREFILL_TOKENS, max_image_tokens: int | None = None
) -> tuple[list[Piece], list[Piece]]:
    """Take the next pass: an image with the text before it, or long text in pieces.

    An image and its markers in one pass cost one reading of the weights. The borders depend on the pieces and the two
    limits alone, so that every mode of execution computes the same passes. A graft is a pass of its own.

    Args:
        rest: what is to be prefilled, not empty.
        max_text_tokens: most text tokens of a pass.
        max_image_tokens: most tokens of an image in one pass; None: images are whole.

    Returns:
        The pass and what is left.
    """
    taken: list[Piece] = []
    room = max_text_tokens
    for place, piece in enumerate(rest):
        behind = rest[place + 1 :]
        if piece.is_graft:
            return (taken, [piece, *behind]) if taken else ([piece], list(behind))
        if isinstance(piece.chunk, ImageChunk):
            head, tail = _cut(piece, max_image_tokens or piece.num_tokens)
            return [*taken, head], [*tail, *behind]
        if piece.num_tokens <= room:
            taken.append(piece)
            room -= piece.num_tokens
            continue
        if not room:
            return taken, [piece, *behind]
        head, tail = _cut(piece, room)
        return [*taken, head], [*tail, *behind]
    return taken, []


def passes(rest: Sequence[Piece]) -> list[list[Piece]]:
    """Return all passes."""
    taken: list[list[Piece]] = []
    left = list(rest)
    while left:
        one, left = next_pass(left)
        taken.append(one)
    return taken


def _cut(piece: Piece, num_tokens: int) -> tuple[Piece, list[Piece]]:
    """Cut a piece behind at most so many tokens."""
    middle = piece.start + num_tokens
    if middle >= piece.stop:
        return piece, []
    return Piece(piece.chunk, piece.start, middle), [Piece(piece.chunk, middle, piece.stop)]
