from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from edge_vl.engine import Engine, LaneOptions
from edge_vl.errors import EngineFault, EngineUnavailable
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl.testing import EngineContract, FakeEngine, FakeFault, FakeLatencies
from tests.engines.tiny_models import tiny_spec

MODEL = tiny_spec(Path("nowhere"))


class TestFakeEngineContract(EngineContract):
    tolerance = 1e-6

    def engine(self) -> Engine:
        return FakeEngine()

    def model(self) -> ModelSpec:
        return MODEL


def answer(engine: FakeEngine) -> bytes:
    language = engine.load_language(MODEL, LaneOptions())
    cache = language.new_cache()
    logits = language.prefill(cache, [TextChunk((1, 2, 3), 0)])
    said = b""
    while logits is not None and (token_id := int(logits.argmax())) not in language.tokenizer.eos_token_ids:
        said += language.tokenizer.token_bytes(token_id)
        logits = language.decode(cache, token_id)
    cache.close()
    language.close()
    return said


@pytest.mark.parametrize("script", ["a<think>b</think>", "é🙂", b"\xff\xfe", ""])
def test_a_script_is_answered_byte_by_byte(script: str | bytes) -> None:
    expected = script.encode() if isinstance(script, str) else script
    assert answer(FakeEngine(script=script)) == expected


def test_a_script_of_ids_is_answered_as_it_is() -> None:
    assert answer(FakeEngine(script=[104, 105])) == b"hi"


def test_a_script_starts_again_after_trim_and_prefill() -> None:
    engine = FakeEngine(script="xy")
    language = engine.load_language(MODEL, LaneOptions())
    cache = language.new_cache()
    language.prefill(cache, [TextChunk((1, 2, 3), 0)])
    language.decode(cache, ord("x"))
    cache.trim(2)
    logits = language.prefill(cache, [TextChunk((7,), 2)])
    assert logits is not None
    assert int(logits.argmax()) == ord("x")


def test_a_planned_fault_comes_at_its_call_and_leaves_the_cache() -> None:
    engine = FakeEngine(faults=[FakeFault("decode", at=1)])
    language = engine.load_language(MODEL, LaneOptions())
    cache = language.new_cache()
    language.prefill(cache, [TextChunk((1,), 0)])
    language.decode(cache, 1)
    with pytest.raises(EngineFault, match="planned"):
        language.decode(cache, 1)
    assert cache.num_tokens == 2
    language.decode(cache, 1)


def test_results_can_be_spoiled() -> None:
    faults = [FakeFault("encode", kind="nan"), FakeFault("prefill", kind="wrong_shape")]
    engine = FakeEngine(faults=faults)
    vision = engine.load_vision(MODEL, LaneOptions())
    unit = ImageUnit.of(np.zeros((vision.spec.tile_height, vision.spec.tile_width, 3), np.uint8), "tile")
    assert np.isnan(vision.encode(unit).values).all()
    language = engine.load_language(MODEL, LaneOptions())
    logits = language.prefill(language.new_cache(), [TextChunk((1,), 0)])
    assert logits is not None
    assert logits.shape == (language.spec.vocab_size - 1,)


def test_a_call_can_hang_until_it_is_released() -> None:
    fault = FakeFault("prefill", kind="hang")
    engine = FakeEngine(faults=[fault])
    language = engine.load_language(MODEL, LaneOptions())
    cache = language.new_cache()
    worker = threading.Thread(target=lambda: language.prefill(cache, [TextChunk((1,), 0)]))
    worker.start()
    assert fault.reached.wait(10)
    assert cache.num_tokens == 0
    fault.release.set()
    worker.join(10)
    assert cache.num_tokens == 1


def test_latencies_use_the_given_clock_and_calls_are_noted() -> None:
    slept: list[float] = []
    latencies = FakeLatencies(prefill_s=1.0, prefill_token_s=0.5, decode_s=0.25)
    engine = FakeEngine(latencies=latencies, sleep=slept.append)
    language = engine.load_language(MODEL, LaneOptions())
    cache = language.new_cache()
    language.prefill(cache, [TextChunk((1, 2), 0)], want_logits=False)
    language.decode(cache, 3)
    assert slept == [2.0, 0.25]
    assert [(call.stage, call.token_ids) for call in engine.calls[1:]] == [("prefill", (1, 2)), ("decode", (3,))]
    assert engine.calls[-1].thread_id == threading.get_ident()


def test_what_is_open_is_counted_and_an_absent_engine_says_so() -> None:
    engine = FakeEngine()
    language = engine.load_language(MODEL, LaneOptions())
    fork = language.new_cache().fork()
    assert engine.num_open == 3
    fork.close()
    language.close()
    assert engine.num_open == 1
    absent = FakeEngine(unavailable="no fakes today")
    assert absent.status().reason == "no fakes today"
    with pytest.raises(EngineUnavailable, match="no fakes"):
        absent.load_vision(MODEL, LaneOptions())
