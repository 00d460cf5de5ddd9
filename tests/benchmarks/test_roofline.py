"""The machine's limits: how they are combined, and that both ways to measure arithmetic work."""

from __future__ import annotations

import math
import os
import shutil

import pytest

from benchmarks.roofline import Roofline, measure_roofline, run


def test_the_slower_of_reading_and_computing_is_the_limit() -> None:
    limits = Roofline(1, read_bytes_per_s=10.0, flops_per_s=100.0)

    assert (limits.limit_s(20, 100), limits.limited_by(20, 100)) == (2.0, "memory")
    assert (limits.limit_s(20, 400), limits.limited_by(20, 400)) == (4.0, "arithmetic")


def test_both_limits_are_measured_for_several_threads() -> None:
    found = measure_roofline(2, quick=True)

    assert found.threads == 2
    assert found.read_bytes_per_s > 1e8
    assert math.isfinite(found.flops_per_s)
    assert found.flops_per_s > 1e8


def test_without_a_compiler_a_matrix_product_is_measured_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    found = measure_roofline(1, quick=True)

    assert found.flops_from == "a matrix product"
    assert found.flops_per_s > 1e8


def test_a_compiler_that_fails_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: os.devnull if name == "cc" else None)

    assert measure_roofline(1, quick=True).flops_from == "a matrix product"


def test_one_thread_and_all_of_them_are_listed() -> None:
    result = run(True)

    assert result.table[0]["threads"] == 1
    assert not result.bars
