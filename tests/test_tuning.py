"""Tests of the chunk table: the bundled model on real engines, and a fake engine with a fake clock."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.cost_store import CostStore
from edge_vl.costs import Costs
from edge_vl.engine import LaneOptions
from edge_vl.errors import Cancelled, EngineFault, RequestError
from edge_vl.models import find_model
from edge_vl.plan import Chunk, ExactnessRules, ImageChunk, ImageUnit, Plan, TextChunk
from edge_vl.registry import engine_named
from edge_vl.runtime import Runtime
from edge_vl.testing import FakeEngine, FakeFault, FakeLatencies
from edge_vl.tuning import CHUNK_SIZES, measure_chunks, tune, waiting_tokens


def image(num_tokens: int) -> ImageChunk:
    return ImageChunk(ImageUnit.of(np.zeros((2, 2, 3), np.uint8), "tile", 1, 1), 0, num_tokens, 0, num_tokens)


def text(num_tokens: int) -> TextChunk:
    return TextChunk(tuple(range(num_tokens)), 0)


def plan_of(*chunks: Chunk) -> Plan:
    return Plan(chunks, ExactnessRules())


PLAN = plan_of(text(5), image(64), text(3), image(64), text(20))


class FakeClock:
    """Goes forward when an engine sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def test_tokens_wait_from_the_end_of_a_unit_to_the_next_border() -> None:
    """The units end at 69 and 136; the prompt at 156."""
    assert waiting_tokens(PLAN, 16) == ((80 - 69) + (144 - 136)) / 2
    assert waiting_tokens(PLAN, 64) == ((128 - 69) + (156 - 136)) / 2, "the last chunk ends with the prompt"
    assert waiting_tokens(PLAN, 256) == ((156 - 69) + (156 - 136)) / 2
    assert waiting_tokens(PLAN, 1) == 0
    assert waiting_tokens(plan_of(text(5)), 16) == 0


@given(
    st.lists(st.one_of(st.integers(1, 90).map(text), st.integers(1, 90).map(image)), min_size=1, max_size=9),
    st.integers(1, 300),
)
def test_nothing_waits_longer_than_a_chunk(chunks: list[Chunk], num_tokens: int) -> None:
    assert 0 <= waiting_tokens(plan_of(*chunks), num_tokens) < num_tokens


def test_the_table_has_what_a_made_up_device_costs(model_folder: Path) -> None:
    """Passes of 10 ms and 1 ms a token: a token costs 1 + 10 / size ms."""
    clock = FakeClock()
    engine = FakeEngine(latencies=FakeLatencies(prefill_s=0.010, prefill_token_s=0.001), sleep=clock.advance)
    language = engine.load_language(find_model(model_folder), LaneOptions())
    shares: list[float] = []

    rows = measure_chunks(language, PLAN, num_rounds=2, clock=clock, on_progress=shares.append)

    assert [(row.past, row.num_tokens) for row in rows] == [(past, size) for past in (0, 1024) for size in CHUNK_SIZES]
    for row in rows:
        assert row.token_s == pytest.approx(0.001 + 0.010 / row.num_tokens)
        assert row.utilisation == pytest.approx((0.001 + 0.010 / 256) / row.token_s)
        assert row.alignment_tokens == waiting_tokens(PLAN, row.num_tokens)
        assert row.logits_error == pytest.approx(0.0, abs=1e-6)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) == 2 * 3 * 5
    language.close()
    assert engine.num_open == 0


def test_the_first_round_does_not_count(model_folder: Path) -> None:
    clock = FakeClock()
    calls = 0

    def slow_first(seconds: float) -> None:
        nonlocal calls
        calls += 1
        clock.advance(seconds * (100 if calls <= 31 else 1))  # 16 + 8 + 4 + 2 + 1 passes

    engine = FakeEngine(latencies=FakeLatencies(prefill_token_s=0.001), sleep=slow_first)
    language = engine.load_language(find_model(model_folder), LaneOptions())

    rows = measure_chunks(language, PLAN, num_rounds=1, clock=clock)

    assert [row.token_s for row in rows] == pytest.approx([0.001] * 10)
    language.close()


class PassBlind:
    """A language model whose logits are up by as many thousandths of their range as a pass has tokens."""

    def __init__(self, folder: Path) -> None:
        self.language = FakeEngine().load_language(find_model(folder), LaneOptions())
        self.spec, self.tokenizer, self.new_cache = self.language.spec, self.language.tokenizer, self.language.new_cache

    def prefill(self, cache: object, run: list[TextChunk], *, want_logits: bool = True) -> object:
        self.language.prefill(cache, run, want_logits=want_logits)  # type: ignore[arg-type]
        logits = np.linspace(0, 1, self.spec.vocab_size, dtype=np.float32)
        logits[7] += run[0].num_tokens / 1000
        return logits if want_logits else None


def test_logits_are_compared_with_those_of_one_pass(model_folder: Path) -> None:
    rows = measure_chunks(PassBlind(model_folder), PLAN, num_rounds=1)  # type: ignore[arg-type]

    for row in rows:
        assert row.logits_error == pytest.approx((256 - row.num_tokens) / 1000, abs=1e-6)


@pytest.mark.parametrize(("context", "sizes", "pasts"), [(300, 5, 1), (600, 5, 2), (100, 3, 1), (40, 2, 1)])
def test_what_does_not_fit_into_the_context_is_left_out(
    model_folder: Path, context: int, sizes: int, pasts: int
) -> None:
    language = FakeEngine(context_length=context).load_language(find_model(model_folder), LaneOptions())

    rows = measure_chunks(language, PLAN, num_rounds=1)

    assert len(rows) == sizes * pasts
    assert all(row.past + max(row.num_tokens for row in rows) <= context for row in rows)
    language.close()


def test_a_context_too_short_for_any_size_is_refused(model_folder: Path) -> None:
    language = FakeEngine(context_length=15).load_language(find_model(model_folder), LaneOptions())

    with pytest.raises(RequestError, match="15 tokens is too short"):
        measure_chunks(language, PLAN)
    language.close()


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_a_model_that_fails_leaves_no_cache_behind(model_folder: Path, kind: str) -> None:
    engine = FakeEngine(faults=[FakeFault("prefill", at=20, times=99, kind=kind)])  # type: ignore[arg-type]
    language = engine.load_language(find_model(model_folder), LaneOptions())

    with pytest.raises(EngineFault):
        measure_chunks(language, PLAN)
    language.close()
    assert engine.num_open == 0


def test_measuring_can_be_cancelled_between_passes(model_folder: Path) -> None:
    engine = FakeEngine()
    language = engine.load_language(find_model(model_folder), LaneOptions())
    stop = threading.Event()

    with pytest.raises(Cancelled):
        measure_chunks(language, PLAN, on_progress=lambda share: stop.set(), is_cancelled=stop.is_set)
    language.close()
    assert engine.num_open == 0


@pytest.fixture
def store(costs_folder: Path) -> CostStore:
    return CostStore(costs_folder)


@pytest.mark.parametrize("engine", ["onnxruntime", "llama_cpp"])
def test_the_bundled_model_gets_a_table_on_a_real_engine(engine: str) -> None:
    language = engine_named(engine).load_language(find_model("bundled"), LaneOptions(threads=1, context_length=512))
    try:
        rows = measure_chunks(language, PLAN, num_rounds=1, sizes=(16, 64, 128))
    finally:
        language.close()

    assert [(row.past, row.num_tokens) for row in rows] == [(past, size) for past in (0, 384) for size in (16, 64, 128)]
    for past in (0, 384):
        here = [row for row in rows if row.past == past]
        assert max(row.utilisation for row in here) == 1.0
        assert here[-1].logits_error == 0.0
        for row in here:
            assert row.token_s > 0
            assert 0 < row.utilisation <= 1
            assert row.logits_error < 0.02, "half precision, other kernels for small passes"


def test_a_tuned_table_is_kept_and_the_runtime_uses_it(store: CostStore) -> None:
    threads = {"language_engine": "onnxruntime", "vision_engine": "onnxruntime"}
    tuning = tune("bundled", num_rounds=1, threads=1, **threads)  # type: ignore[arg-type]

    assert tuning.file is not None
    assert tuning.file.is_file()
    kept = store.load(tuning.key)
    assert kept is not None
    assert kept.chunk_table == tuning.costs.chunk_table
    assert kept.prefill_token_s is not None
    assert tuning.unit_tokens == 16
    assert tuning.text_tokens > 20
    with Runtime.open("bundled", threads=1, **threads) as runtime:  # type: ignore[arg-type]
        assert runtime._scheduler.book.snapshot().chunk_table == kept.chunk_table


def test_tuning_keeps_other_costs(store: CostStore, model_folder: Path) -> None:
    def once() -> Costs:
        engine = FakeEngine()
        return tune(model_folder, vision_engine=engine, language_engine=engine, num_rounds=1).costs

    first = once()
    [file] = (store.folder or Path()).iterdir()
    key = tune(model_folder, vision_engine=FakeEngine(), language_engine=FakeEngine(), num_rounds=1).key
    assert key.file_name == file.name
    store.save(key, replace(first, decode_s=1.5, answer_tokens=7.0))

    again = once()
    assert (again.decode_s, again.answer_tokens) == (1.5, 7.0)
    assert again.chunk_table


def test_tuning_closes_the_model_when_it_fails(store: CostStore, model_folder: Path) -> None:
    engine = FakeEngine(faults=[FakeFault("prefill", at=3)])

    with pytest.raises(EngineFault):
        tune(model_folder, vision_engine=engine, language_engine=engine)
    assert engine.num_open == 0
    assert store.folder is not None
    assert not store.folder.exists()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_tuning_before_it_is_through(store: CostStore, model_folder: Path) -> None:
    engine = FakeEngine()
    fiftieth = 50 / (2 * 201 * 5)  # by then the main thread waits

    def interrupt(share: float) -> None:
        if share == fiftieth:
            ident = threading.main_thread().ident
            assert ident is not None
            signal.pthread_kill(ident, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tune(
            model_folder,
            vision_engine=engine,
            language_engine=engine,
            num_rounds=200,
            on_progress=interrupt,
        )
    assert engine.num_open == 0
    assert sum(call.stage == "prefill" for call in engine.calls) < 201 * 31


def test_tuning_without_a_place_for_the_table_says_so(
    store: CostStore, model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.folder is not None
    store.folder.write_text("a file")
    engine = FakeEngine()

    tuning = tune(model_folder, vision_engine=engine, language_engine=engine, num_rounds=1)

    assert tuning.file is None
    assert "cannot be kept" in caplog.text


@pytest.mark.parametrize("bad", [{"num_rounds": 0}, {"threads": 0}, {"context_length": -1}])
def test_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(RequestError, match=next(iter(bad))):
        tune("bundled", **bad)  # type: ignore[arg-type]
