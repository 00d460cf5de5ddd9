"""Tests of how a plan is cut into passes and what a cache may keep of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.engine import LaneOptions
from edge_vl.model_spec import read_model_spec
from edge_vl.plan import Chunk, ExactnessRules, ImageChunk, ImageUnit, Plan, TextChunk
from edge_vl.resident import Resident
from edge_vl.serial import MAX_PREFILL_TOKENS, prefill_runs
from edge_vl.testing import FakeEngine

ANY = ExactnessRules("tile", "any", True, "thumbnail_last", "any")


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


def flat(chunks: list[Chunk]) -> list[object]:
    return [
        entry
        for chunk in chunks
        for entry in (
            chunk.token_ids
            if isinstance(chunk, TextChunk)
            else [(chunk.unit.key, row) for row in range(chunk.num_tokens)]
        )
    ]


def test_an_image_goes_in_with_the_text_before_it() -> None:
    chunks: list[Chunk] = [text(1, 2), image(1), text(3), image(2), text(4)]
    runs = list(prefill_runs(chunks))
    assert [[type(chunk).__name__ for chunk in run] for run in runs] == [
        ["TextChunk", "ImageChunk"],
        ["TextChunk", "ImageChunk"],
        ["TextChunk"],
    ]


@given(CHUNKS, st.integers(0, 900))
def test_passes_keep_order_and_bound(chunks: list[Chunk], num_more: int) -> None:
    if num_more:
        chunks = [*chunks, text(*range(num_more))]
    runs = list(prefill_runs(chunks))
    assert flat([chunk for run in runs for chunk in run]) == flat(chunks)
    for run in runs:
        num_text = sum(chunk.num_tokens for chunk in run if isinstance(chunk, TextChunk))
        assert run
        assert num_text <= MAX_PREFILL_TOKENS
        assert sum(isinstance(chunk, ImageChunk) for chunk in run) <= 1


@given(CHUNKS, CHUNKS, st.booleans())
def test_what_is_kept_and_what_is_left_make_up_the_plan(before: list[Chunk], after: list[Chunk], is_any: bool) -> None:
    """After rewinding, kept entries plus the rest are the new plan, and something is left to compute."""
    folder = Path(__file__).parent.parent / "edge_vl" / "bundled_model"
    language = FakeEngine().load_language(read_model_spec(folder), LaneOptions())
    rules = ANY if is_any else ExactnessRules()
    resident = Resident()
    for chunks in (before, after):
        rest = resident.rewind(language, Plan(tuple(chunks), rules))
        kept = flat(chunks)[: len(flat(chunks)) - len(flat(rest))]
        assert flat(rest)
        assert resident.cache.num_tokens == len(kept)
        assert kept + flat(rest) == flat(chunks)
        for run in prefill_runs(rest):
            language.prefill(
                resident.cache,
                [text(*(0 for _ in range(chunk.num_tokens))) for chunk in run],
                want_logits=False,
            )
            resident.note(run)
        assert resident.cache.num_tokens == len(flat(chunks))
    resident.drop()
