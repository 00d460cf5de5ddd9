"""Tests of the choice of chunk sizes, from made-up tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.chunk_policy import (
    ANSWERING_CHUNK_TOKENS,
    DEFAULT_CHUNK_TOKENS,
    LEAST_CHUNK_TOKENS,
    ChunkCost,
    chunk_tokens,
)
from edge_vl.costs import Costs

SIZES = (16, 32, 64, 128, 256)


def table(*token_s: float, past: int = 0, sizes: tuple[int, ...] = SIZES) -> tuple[ChunkCost, ...]:
    best_s = min(token_s)
    return tuple(
        ChunkCost(size, cost_s, best_s / cost_s, 0.0, 0.0, past) for size, cost_s in zip(sizes, token_s, strict=True)
    )


def choose(costs: Costs, **changes: object) -> int:
    facts = {"sequence_tokens": 0, "image_tokens": 0, "text_tokens": 0, "is_answering": False, "max_stall_s": math.inf}
    return chunk_tokens(costs, **(facts | changes))  # type: ignore[arg-type]


STEEP = Costs(chunk_table=table(10.0, 5.0, 2.4, 2.1, 2.0))
FLAT = Costs(chunk_table=table(1.1, 1.0, 1.0, 1.0, 1.0))


def test_without_a_table_the_chunk_is_256() -> None:
    assert choose(Costs()) == 256


def test_without_a_table_an_answer_waits_for_64_tokens_at_most() -> None:
    assert choose(Costs(), is_answering=True) == 64


def test_without_a_table_the_fit_keeps_the_stall() -> None:
    assert choose(Costs(prefill_base_s=0.1, prefill_token_s=0.01), max_stall_s=1.1) == 100


def test_the_smallest_chunk_within_a_fifth_of_the_best_is_taken() -> None:
    assert choose(STEEP) == 64
    assert choose(Costs(chunk_table=table(10.0, 5.0, 2.41, 2.1, 2.0))) == 128
    assert choose(FLAT) == 16


def test_a_longer_sequence_has_its_own_rows() -> None:
    costs = Costs(chunk_table=(*STEEP.chunk_table, *table(1.0, 1.0, 1.0, 1.0, 1.0, past=1000)))

    assert choose(costs, sequence_tokens=400) == 64
    assert choose(costs, sequence_tokens=700) == 16


def test_a_unit_larger_than_the_chunk_is_cut_into_equal_parts() -> None:
    assert choose(STEEP, image_tokens=169) == 85
    assert choose(FLAT, image_tokens=64) == 16


def test_a_unit_a_little_larger_than_the_chunk_goes_in_whole() -> None:
    assert choose(STEEP, image_tokens=81) == 81


def test_units_smaller_than_the_chunk_go_in_together() -> None:
    assert choose(STEEP, image_tokens=25) == 75


def test_a_text_is_cut_evenly_instead_of_leaving_a_rest() -> None:
    assert choose(STEEP, text_tokens=130) == 65


def test_odd_lengths_do_not_bring_the_chunk_down_to_one_token() -> None:
    """The greatest common divisor of 63, 37 and 256 is 1."""
    assert choose(STEEP, image_tokens=63, text_tokens=37) == 126


def test_while_an_answer_runs_the_chunk_is_64_at_most_whatever_is_cheapest() -> None:
    costs = Costs(chunk_table=table(100.0, 50.0, 20.0, 10.0, 1.0))

    assert choose(costs) == 256
    assert choose(costs, is_answering=True) == 64
    assert choose(costs, is_answering=True, image_tokens=256) == 64


def test_a_pass_takes_no_longer_than_may_be_waited_for() -> None:
    costs = Costs(chunk_table=table(3.0, 3.0, 2.4, 2.1, 2.0))

    assert choose(costs, max_stall_s=33 * 3.0) == 33
    assert choose(costs, max_stall_s=0.0) == LEAST_CHUNK_TOKENS


ROWS = st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5).map(lambda costs: table(*costs))


@given(
    ROWS,
    st.integers(0, 8192),
    st.integers(0, 4096),
    st.integers(0, 8192),
    st.booleans(),
    st.one_of(st.just(math.inf), st.floats(0, 100)),
)
def test_chunks_keep_their_bounds_and_the_stall(
    rows: tuple[ChunkCost, ...], sequence: int, image: int, text: int, is_answering: bool, stall_s: float
) -> None:
    chosen = choose(
        Costs(chunk_table=rows),
        sequence_tokens=sequence,
        image_tokens=image,
        text_tokens=text,
        is_answering=is_answering,
        max_stall_s=stall_s,
    )

    assert LEAST_CHUNK_TOKENS <= chosen <= (ANSWERING_CHUNK_TOKENS if is_answering else DEFAULT_CHUNK_TOKENS)
    if chosen > LEAST_CHUNK_TOKENS and not math.isinf(stall_s):
        assert any(chosen * row.token_s <= stall_s * (1 + 1e-9) for row in rows)


@given(ROWS, st.integers(0, 4096), st.integers(0, 8192))
def test_with_time_enough_no_chunk_is_smaller_than_the_smallest_cheap_one(
    rows: tuple[ChunkCost, ...], image: int, text: int
) -> None:
    cheap = min(row.num_tokens for row in rows if row.utilisation >= 1 / 1.2)

    assert choose(Costs(chunk_table=rows), image_tokens=image, text_tokens=text) >= cheap


@pytest.mark.parametrize("image", range(1, 257))
def test_units_and_chunks_meet_at_their_borders_where_there_is_room(image: int) -> None:
    chosen = choose(STEEP, image_tokens=image)

    if image < 64:
        assert chosen % image == 0
    else:
        parts = math.ceil(image / chosen)
        assert parts * chosen - image < parts, "no part is more than one token shorter than the others"
