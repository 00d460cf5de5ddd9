"""What the decoding benchmark compares, and that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.decode_turns import Times
from benchmarks.kv_decode import FLOAT16, INT8, OURS, PLAIN, QUICK, WHOLE, Plan, bars, is_measured, max_error, run


def measured(**seconds: float) -> dict[str, Times]:
    names = {"whole": WHOLE, "plain": PLAIN, "f16": FLOAT16, "int8": INT8}
    return {names[name]: Times([took_s] * 3, [took_s] * 3) for name, took_s in seconds.items()}


FOUND = {
    0: measured(whole=1.0, plain=1.0, f16=1.0, int8=1.01),
    8192: measured(whole=5.4, plain=18.0, f16=2.1, int8=2.0),
    16384: measured(f16=4.0, int8=4.1),
    32768: measured(f16=8.0, int8=7.0),
}


def test_bars_are_ratios_of_what_was_measured_together() -> None:
    found = bars("q4 weights, 1 thread", "q4", FOUND)

    values = {name.partition(", ")[2].partition(", ")[2]: bar.value for name, bar in found.items()}
    assert values == {
        "speed at 8192 entries, of the whole graph's": pytest.approx(2.7),
        "time at an empty cache, of the whole graph's": pytest.approx(1.01),
        "time with int8 KV up to 16384 entries, of our f16's": pytest.approx(1.025),
        "time with int8 KV at 32768 entries, of our f16's": pytest.approx(0.875),
        "speed at 8192 entries, of the plain export's": pytest.approx(9.0),
    }
    assert [bar.ok for bar in found.values()] == [True, True, False, True, True]


def test_float32_weights_have_another_limit_and_none_against_the_plain_export() -> None:
    found = bars("fp32 weights, 1 thread", "fp32", FOUND)

    assert found["fp32 weights, 1 thread, speed at 8192 entries, of the whole graph's"].limit == 1.7
    assert not any("plain" in name for name in found)


def test_long_caches_are_for_ours_and_llama_cpp() -> None:
    plan = Plan()

    assert is_measured(WHOLE, 8192, plan)
    assert not is_measured(WHOLE, 16384, plan)
    assert [
        entries for entries in (0, 1024, 4096, 8192, 16384, 32768) if is_measured("llama.cpp f16", entries, plan)
    ] == [
        1024,
        8192,
        16384,
    ]
    assert is_measured(INT8, 32768, plan)
    assert not is_measured("ours f32", 16384, plan)


@pytest.mark.parametrize(
    ("name", "weights", "error"),
    [
        ("ours int8, cut from plain", "fp32", 0.06),
        ("ours f32", "fp32", 1e-4),
        (PLAIN, "fp32", 1e-4),
        ("llama.cpp q8_0", "fp32", 0.1),
        ("llama.cpp q8_0", "q4", 0.3),
    ],
)
def test_how_far_logits_may_be_off_depends_on_both_precisions(name: str, weights: str, error: float) -> None:
    assert max_error(name, weights) == error


def test_the_quick_run_measures_every_decoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_VL_CACHE_DIR", str(tmp_path))

    result = run(True)

    assert not result.bars
    for entries in QUICK.entries:
        systems = {row["system"] for row in result.table if row["entries"] == entries}
        assert {WHOLE, PLAIN, *(f"ours {kv}" for kv in OURS)} <= systems
    assert all(row["loaded_mib"] for row in result.table if row["system"] in (WHOLE, INT8))
