"""Memory of caches, counted and measured."""

from __future__ import annotations

import pytest

from benchmarks import kv_memory
from benchmarks.kv_memory import GEOMETRIES, SCHEMES, cache_format, float16_bytes, run


def test_float16_is_two_bytes_for_every_key_and_value() -> None:
    assert float16_bytes(GEOMETRIES[0], 4096) == 30 * 3 * 64 * 2 * 2 * 4096


def test_guarded_layers_are_the_first_and_the_last() -> None:
    layers = cache_format(GEOMETRIES[1], SCHEMES[2]).pages[0].layers

    assert [layer.keys for layer in layers] == ["int8", *["int4"] * 26, "int8"]
    assert [layer.values for layer in layers] == ["int8", *["int4"] * 26, "int8"]


def test_every_scheme_keeps_its_bars_and_the_pool_counts_what_the_process_takes() -> None:
    result = run(True)

    assert len(result.bars) == 2 * len(SCHEMES)
    assert result.ok, result.bars
    assert [row["scheme"] for row in result.table] == [scheme.name for scheme in SCHEMES]


def test_a_pool_that_counts_too_little_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_memory, "anonymous_kib", iter(range(0, 10**9, 10**6)).__next__)

    assert not run(True).ok
