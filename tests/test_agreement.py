from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.agreement import TensorError, compare_logits, compare_tensors, kl_divergence, kv_loss


def rows(seed: int, num_rows: int = 4, vocab_size: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_rows, vocab_size)).astype(np.float32)


def test_equal_logits_agree_in_everything() -> None:
    found = compare_logits(rows(1), rows(1))
    assert (found.num_rows, found.token_agreement, found.kl_mean, found.kl_max, found.error) == (4, 1.0, 0.0, 0.0, 0.0)


def test_a_constant_on_all_logits_of_a_row_is_no_difference() -> None:
    found = compare_logits(rows(1), rows(1) + np.float32(3.0))
    assert found.token_agreement == 1.0
    assert found.kl_max < 1e-6
    assert found.error < 1e-6


def test_agreement_is_the_share_of_rows_with_the_same_token() -> None:
    reference = np.eye(4, dtype=np.float32)
    other = reference[[0, 1, 2, 0]]
    assert compare_logits(reference, other).token_agreement == 0.75


def test_the_divergence_of_two_known_distributions() -> None:
    one = np.log(np.array([0.5, 0.5], np.float32))
    two = np.log(np.array([0.9, 0.1], np.float32))
    assert kl_divergence(one, two) == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1), rel=1e-5)


def test_a_forbidden_token_counts_nothing() -> None:
    one = np.array([0.0, 0.0, -np.inf], np.float32)
    assert kl_divergence(one, one) == 0.0


def test_what_only_the_other_forbids_is_infinitely_far() -> None:
    one = np.zeros(3, np.float32)
    assert kl_divergence(one, np.array([0.0, 0.0, -np.inf], np.float32)) == math.inf


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_divergence_is_never_negative(one: int, two: int) -> None:
    assert kl_divergence(rows(one)[0], rows(two)[0]) >= 0.0


@pytest.mark.parametrize("shape", [(0, 9), (3, 9), (4, 8), (4,)])
def test_logits_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        compare_logits(rows(1) if shape != (0, 9) else np.empty((0, 9), np.float32), np.zeros(shape, np.float32))


def test_the_error_of_a_tensor_is_relative() -> None:
    reference = np.full((2, 3), 4.0, np.float32)
    assert compare_tensors(reference, reference * np.float32(1.25)).error == pytest.approx(0.25)
    assert compare_tensors(np.zeros(3, np.float32), np.zeros(3, np.float32)).error == 0.0
    assert compare_tensors(np.zeros(3, np.float32), np.ones(3, np.float32)).error == math.inf
    with pytest.raises(ValueError, match="cannot be compared"):
        compare_tensors(reference, reference[0])


def test_the_loss_weighs_the_values() -> None:
    assert kv_loss(TensorError(0.1), TensorError(0.2), (0.0, 0.5)) == pytest.approx((0.01, 0.03))
