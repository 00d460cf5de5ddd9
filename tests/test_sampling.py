"""Tests of sampling."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from edge_vl import RequestError
from edge_vl.sampling import Sampler, Sampling

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], np.float32))


def draw(count: int, **options: float) -> Counter[int]:
    sampler = Sampler(Sampling(**{"temperature": 1.0, **options}))  # type: ignore[arg-type]
    return Counter(sampler.choose(LOGITS) for _ in range(count))


def test_greedy_takes_the_most_likely_token() -> None:
    assert Sampler(Sampling()).choose(LOGITS) == 0


def test_frequencies_follow_the_probabilities() -> None:
    counts = draw(20_000)
    for token, probability in enumerate([0.5, 0.25, 0.15, 0.07, 0.03]):
        assert abs(counts[token] / 20_000 - probability) < 0.02


def test_temperature_sharpens() -> None:
    assert draw(5_000, temperature=0.25)[0] / 5_000 > 0.9


def test_top_k_keeps_k_tokens() -> None:
    assert set(draw(2_000, top_k=2)) == {0, 1}


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, 1), (0.5, 1), (0.74, 2), (0.76, 3), (0.96, 4), (0.98, 5)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: int) -> None:
    assert set(draw(3_000, top_p=top_p)) == set(range(kept))


def test_min_p_drops_tokens_far_below_the_best() -> None:
    assert set(draw(3_000, min_p=0.29)) == {0, 1, 2}


def test_a_repetition_penalty_avoids_what_was_said() -> None:
    sampler = Sampler(Sampling(repetition_penalty=10.0))
    logits = np.array([2.0, 1.5, -1.0], np.float32)
    assert [sampler.choose(logits) for _ in range(2)] == [0, 1]


def test_a_repetition_penalty_lowers_negative_logits_too() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    logits = np.array([-1.0, -1.5], np.float32)
    assert [sampler.choose(logits) for _ in range(2)] == [0, 1]


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    def tokens(seed: int) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.5, top_p=0.95, seed=seed))
        return [sampler.choose(LOGITS) for _ in range(50)]

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)


@given(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-50, 50, width=32)),
    st.floats(0.01, 1.0),
    st.floats(0.1, 5.0),
)
def test_the_short_nucleus_is_the_whole_one(logits: NDArray[np.float32], top_p: float, temperature: float) -> None:
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    order = np.argsort(-weights, kind="stable")
    shares = np.cumsum(weights[order]) / weights.sum()
    whole = set(order[: int(np.searchsorted(shares, top_p - 1e-9, side="left")) + 1])
    sampler = Sampler(Sampling(temperature=temperature, top_p=top_p))
    assert {sampler.choose(logits) for _ in range(20)} <= whole | {int(order[min(len(whole), order.size - 1)])}


@given(hnp.arrays(np.float32, 50, elements=st.floats(-20, 20, width=32)), st.integers(0, 60))
def test_the_logits_are_not_changed(logits: NDArray[np.float32], top_k: int) -> None:
    before = logits.copy()
    sampler = Sampler(Sampling(temperature=1.0, top_k=top_k, top_p=0.9, min_p=0.05, repetition_penalty=1.3))
    for _ in range(3):
        assert 0 <= sampler.choose(logits) < 50
    assert np.array_equal(before, logits)


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = np.array([-np.inf, 0.0, -np.inf], np.float32)
    sampler = Sampler(Sampling(temperature=2.0))
    assert {sampler.choose(logits) for _ in range(100)} == {1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("seed", -1),
        ("seed", True),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        Sampling(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
