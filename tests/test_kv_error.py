"""Errors of attention logits, against a loop over every query and entry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_vl.kv_error import attention_logit_error


def by_loops(
    queries: NDArray[np.float32],
    positions: NDArray[np.intp],
    num_compressed: NDArray[np.intp],
    errors: NDArray[np.float32],
    scale: float,
) -> float:
    group = queries.shape[1] // errors.shape[1]
    squares = []
    for query, position, seen in zip(queries, positions, num_compressed, strict=True):
        for head in range(queries.shape[1]):
            changes = np.zeros(position + 1)
            for entry in range(seen):
                changes[entry] = scale * float(query[head].astype(np.float64) @ errors[entry, head // group])
            squares += list((changes - changes.mean())[:seen] ** 2)
    return float(np.sqrt(np.mean(squares))) if squares else 0.0


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 3), st.integers(1, 2))
def test_the_error_is_that_of_a_loop_over_queries_heads_and_entries(
    seed: int, num_queries: int, group: int, kv_heads: int
) -> None:
    random = np.random.default_rng(seed)
    positions = np.sort(random.integers(0, 12, num_queries))
    num_compressed = np.array([random.integers(0, position + 1) for position in positions])
    queries = random.standard_normal((num_queries, group * kv_heads, 4)).astype(np.float32)
    errors = random.standard_normal((12, kv_heads, 4)).astype(np.float32)

    found = attention_logit_error(queries, positions, num_compressed, errors, 0.5)

    assert found == pytest.approx(by_loops(queries, positions, num_compressed, errors, 0.5), rel=1e-4, abs=1e-6)


def test_what_is_added_to_all_entries_alike_is_no_error() -> None:
    random = np.random.default_rng(0)
    queries = random.standard_normal((3, 2, 8)).astype(np.float32)
    shift = np.tile(random.standard_normal((1, 2, 8)), (10, 1, 1)).astype(np.float32)
    positions = np.array([9, 9, 9])

    for_all = attention_logit_error(queries, positions, np.array([10, 10, 10]), shift, 1.0)
    for_some = attention_logit_error(queries, positions, np.array([5, 5, 5]), shift, 1.0)

    assert for_all < 1e-5
    assert for_some > 0.1, "entries that are seen as they came are not shifted"


def test_without_compressed_entries_there_is_no_error() -> None:
    errors = np.ones((4, 1, 2), np.float32)
    assert attention_logit_error(np.ones((1, 1, 2), np.float32), np.array([3]), np.array([0]), errors, 1.0) == 0
