"""Tests of the serial loop, which defines what is right, and of how a plan is cut into passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.entries import entries_of, num_common
from edge_vl.passes import MAX_PREFILL_TOKENS, Piece, next_pass, passes, pieces_of
from edge_vl.plan import Chunk, ImageChunk, ImageUnit, TextChunk


def text(*ids: int) -> TextChunk:
    return TextChunk(ids, 0)


def image(seed: int, num_tokens: int = 4) -> ImageChunk:
    pixels = np.full((2, 2, 3), seed, np.uint8)
    return ImageChunk(ImageUnit.of(pixels, "tile", 1, 1), 0, num_tokens, 0, num_tokens)


CHUNKS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 3), min_size=1, max_size=6).map(lambda ids: text(*ids)),
        st.integers(0, 2).map(image),
    ),
    min_size=1,
    max_size=6,
)


def flat(pieces: list[Piece]) -> list[object]:
    found: list[object] = []
    for piece in pieces:
        if isinstance(piece.chunk, TextChunk):
            found += piece.text.token_ids
        else:
            found += [(piece.chunk.unit.key, row) for row in range(piece.start, piece.stop)]
    return found


def test_an_image_goes_in_with_the_text_before_it() -> None:
    chunks: list[Chunk] = [text(1, 2), image(1), text(3), image(2), text(4)]
    names = [[type(piece.chunk).__name__ for piece in one] for one in passes(pieces_of(chunks))]
    assert names == [["TextChunk", "ImageChunk"], ["TextChunk", "ImageChunk"], ["TextChunk"]]


@given(CHUNKS, st.integers(0, 900), st.integers(0, 12))
def test_passes_keep_order_and_bound(chunks: list[Chunk], num_more: int, start: int) -> None:
    if num_more:
        chunks = [*chunks, text(*range(num_more))]
    pieces = pieces_of(chunks, start)
    taken = passes(pieces)
    assert flat([piece for one in taken for piece in one]) == flat(pieces) == flat(pieces_of(chunks))[start:]
    for one in taken:
        assert one
        assert sum(piece.num_tokens for piece in one if isinstance(piece.chunk, TextChunk)) <= MAX_PREFILL_TOKENS
        assert sum(isinstance(piece.chunk, ImageChunk) for piece in one) <= 1


@given(CHUNKS, st.integers(1, 8), st.integers(1, 8))
def test_slices_keep_order_and_both_bounds(chunks: list[Chunk], most_text: int, most_image: int) -> None:
    rest, seen = pieces_of(chunks), []
    while rest:
        one, rest = next_pass(rest, max_text_tokens=most_text, max_image_tokens=most_image)
        assert sum(piece.num_tokens for piece in one if isinstance(piece.chunk, TextChunk)) <= most_text
        assert sum(piece.num_tokens for piece in one if isinstance(piece.chunk, ImageChunk)) <= most_image
        seen += one
    assert flat(seen) == flat(pieces_of(chunks))


def test_a_graft_is_a_pass_of_its_own() -> None:
    chunk = image(1, 8)
    pieces = [Piece(text(1), 0, 1), Piece(chunk, 0, 2), Piece(chunk, 2, 8, is_graft=True), Piece(text(2), 0, 1)]
    assert [[piece.is_graft for piece in one] for one in passes(pieces)] == [[False, False], [True], [False]]


@given(CHUNKS, CHUNKS)
def test_common_entries_are_those_that_begin_both(one: list[Chunk], other: list[Chunk]) -> None:
    left, right = flat(pieces_of(one)), flat(pieces_of(other))
    expected = next(
        (place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )
    assert num_common(entries_of(one), entries_of(other)) == expected


@pytest.mark.parametrize("token_id", [0, 1, 49279])
def test_a_text_token_is_never_taken_for_an_image_token(token_id: int) -> None:
    entries: Any = entries_of([image(0, 4)])
    assert not (entries == entries_of([text(token_id)])).all(axis=1).any()
