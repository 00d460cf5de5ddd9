"""The engine as a whole: the contract, and the pictures and logits of the other engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.engine import Engine, ImageEmbeds, KVCache, LaneOptions, LanguageModel, Prefillable, VisionEncoder
from edge_vl.errors import CacheFull, EngineFault
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl.testing import EngineContract
from edge_vl_llama_cpp import LlamaCppEngine
from edge_vl_llama_cpp import engine as llama_engine
from edge_vl_onnxruntime import engine as ort_engine
from tests.engines.tiny_models import tiny_spec

ONE_THREAD = LaneOptions(threads=1)
TILE = 64
CELLS = 3e-3
"""Sums over the cache are rounded differently where its entries lie in other places."""


class TestBundledModel(EngineContract):
    tolerance = CELLS

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self._empty = tiny_spec(tmp_path)

    def engine(self) -> Engine:
        return llama_engine

    def model(self) -> ModelSpec:
        return find_model("bundled")

    def broken_model(self) -> ModelSpec:
        return self._empty


@pytest.fixture(scope="module")
def language() -> Iterator[LanguageModel]:
    loaded = llama_engine.load_language(find_model("bundled"), ONE_THREAD)
    yield loaded
    loaded.close()


def noise(seed: int) -> ImageUnit:
    pixels = np.random.default_rng(seed).integers(0, 256, (TILE, TILE, 3), dtype=np.uint8)
    return ImageUnit.of(pixels, "tile", 1, 1)


def encoders() -> tuple[VisionEncoder, VisionEncoder]:
    """Return this engine's encoder and the other's, of the same model."""
    model = find_model("bundled")
    return llama_engine.load_vision(model, ONE_THREAD), ort_engine.load_vision(model, ONE_THREAD)


def distance(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def fill(language: LanguageModel, caches: list[KVCache]) -> None:
    """Open caches until there are no more."""
    while len(caches) < 100:
        caches.append(language.new_cache())


def test_a_tile_is_encoded_pixel_by_pixel_as_the_other_engine_does() -> None:
    ours, other = encoders()
    plain = [ImageUnit.of(np.full((TILE, TILE, 3), value, np.uint8), "tile") for value in (0, 128, 255)]
    single = np.zeros((TILE, TILE, 3), np.uint8)
    single[63, 0] = 255
    for unit in (*(noise(seed) for seed in range(5)), *plain, ImageUnit.of(single, "thumbnail")):
        assert distance(ours.encode(unit).values, other.encode(unit).values) < 3e-3
    ours.close()
    other.close()


def test_logits_are_those_of_the_other_engine(language: LanguageModel) -> None:
    ours, other = encoders()
    onnx = ort_engine.load_language(find_model("bundled"), ONE_THREAD)
    run: list[Prefillable] = [TextChunk((1, 20, 30), 0), other.encode(noise(1)), TextChunk((40, 50), 19)]
    cache, onnx_cache = language.new_cache(), onnx.new_cache()
    found, expected = language.prefill(cache, run), onnx.prefill(onnx_cache, run)
    assert found is not None
    assert expected is not None
    assert distance(found, expected) < 3e-3
    for token_id in (33, 60, 61):
        assert distance(language.decode(cache, token_id), onnx.decode(onnx_cache, token_id)) < 3e-3
    cache.close()
    for lane in (ours, other, onnx):
        lane.close()


def test_a_prompt_longer_than_a_pass_gives_the_same_in_any_pieces(language: LanguageModel) -> None:
    random = np.random.default_rng(3)
    token_ids = tuple(int(token) for token in random.integers(5, 500, 1200))
    rows = random.standard_normal((700, language.spec.hidden_size)).astype(np.float32)
    run: list[Prefillable] = [
        TextChunk(token_ids[:600], 0),
        ImageEmbeds(rows, "long"),
        TextChunk(token_ids[600:], 1300),
    ]
    cache = language.new_cache()
    expected = language.prefill(cache, run)
    assert expected is not None
    assert (cache.num_tokens, cache.next_position) == (1900, 1900)
    cache.trim(0)
    language.prefill(cache, [run[0], ImageEmbeds(rows[:133], "long")], want_logits=False)
    language.prefill(cache, [ImageEmbeds(rows[133:], "long")], want_logits=False)
    found = language.prefill(cache, [run[2]])
    assert found is not None
    assert distance(found, expected) < 1e-3
    cache.close()


def test_logits_that_are_not_wanted_are_not_returned_and_a_later_call_has_its_own(language: LanguageModel) -> None:
    cache = language.new_cache()
    first = language.prefill(cache, [TextChunk((5, 6), 0)])
    assert language.prefill(cache, [TextChunk((7,), 2)], want_logits=False) is None
    second = language.decode(cache, 8)
    assert first is not None
    assert np.abs(first - second).max() > 0
    cache.close()


def test_all_caches_share_one_memory_and_say_when_it_is_used_up() -> None:
    small = llama_engine.load_language(find_model("bundled"), replace(ONE_THREAD, context_length=256))
    one, other = small.new_cache(), small.new_cache()
    small.prefill(one, [TextChunk(tuple([7] * 200), 0)])
    small.prefill(other, [TextChunk((1, 2, 3), 0)])
    with pytest.raises(CacheFull) as caught:
        small.prefill(other, [TextChunk(tuple([9] * 100), 3)])
    assert caught.value.num_tokens == 100
    assert other.num_tokens == 3
    expected = small.decode(other.fork(), 4)
    one.close()
    small.prefill(other, [TextChunk(tuple([9] * 100), 3)])
    other.trim(3)
    assert distance(small.decode(other, 4), expected) < CELLS
    small.close()


def test_a_run_that_fails_after_its_first_pass_is_undone() -> None:
    small = llama_engine.load_language(find_model("bundled"), replace(ONE_THREAD, context_length=1024))
    full, cache = small.new_cache(), small.new_cache()
    small.prefill(full, [TextChunk(tuple([7] * 400), 0)], want_logits=False)
    small.prefill(cache, [TextChunk((1, 2), 0)])
    with pytest.raises(CacheFull):  # the first 512 find room, the rest does not
        small.prefill(cache, [TextChunk(tuple([9] * 800), 2)])
    assert cache.num_tokens == 2
    fresh = small.new_cache()
    expected = small.prefill(fresh, [TextChunk((1, 2, 3), 0)])
    assert expected is not None
    assert distance(small.decode(cache, 3), expected) < CELLS
    small.close()


def test_there_are_only_so_many_caches_and_a_closed_one_makes_room(language: LanguageModel) -> None:
    caches = [language.new_cache()]
    with pytest.raises(CacheFull) as caught:
        fill(language, caches)
    assert caught.value.num_tokens == 0
    with pytest.raises(CacheFull):
        caches[0].fork()
    caches.pop().close()
    caches.append(language.new_cache())
    for cache in caches:
        cache.close()


def test_a_cache_that_nobody_closed_makes_room_as_well(language: LanguageModel) -> None:
    for _ in range(100):
        cache = language.new_cache()
        language.prefill(cache, [TextChunk(tuple([7] * 50), 0)], want_logits=False)


def test_a_fork_of_a_fork_lives_on_without_its_trunk(language: LanguageModel) -> None:
    trunk = language.new_cache()
    language.prefill(trunk, [TextChunk((1, 2, 3, 4), 0)])
    expected = language.decode(trunk, 9)
    trunk.trim(4)
    middle = trunk.fork()
    leaf = middle.fork()
    trunk.close()
    language.decode(middle, 11)
    middle.close()
    assert distance(language.decode(leaf, 9), expected) < CELLS
    leaf.close()


def test_image_embeds_of_a_wrong_type_or_width_never_reach_llama_cpp(language: LanguageModel) -> None:
    cache = language.new_cache()
    width = language.spec.hidden_size
    for values in (
        np.zeros((2, width), np.float16),
        np.zeros((2, width - 1), np.float32),
        np.zeros((2, 2, width), np.float32),
        np.zeros((0, width), np.float32),
    ):
        with pytest.raises(EngineFault):
            language.prefill(cache, [ImageEmbeds(values, "bad"), TextChunk((1,), 2)])  # type: ignore[arg-type]
    with pytest.raises(EngineFault):
        language.prefill(cache, [ImageEmbeds(np.zeros((2, width), np.float32), "bad", np.zeros((3, 3), np.int32))])
    strided = np.zeros((2, 2 * width), np.float32)[:, ::2]
    strided[:] = np.random.default_rng(0).standard_normal((2, width))
    expected = language.prefill(cache, [ImageEmbeds(np.ascontiguousarray(strided), "good")])
    cache.trim(0)
    np.testing.assert_array_equal(language.prefill(cache, [ImageEmbeds(strided, "good")]), expected)
    cache.close()


def test_a_cache_of_another_model_is_refused(language: LanguageModel) -> None:
    other = llama_engine.load_language(find_model("bundled"), ONE_THREAD)
    cache = other.new_cache()
    with pytest.raises(EngineFault, match="another"):
        language.decode(cache, 5)
    other.close()
    cache.close()


def test_both_lanes_share_one_copy_of_the_text_model() -> None:
    engine, model = LlamaCppEngine(), find_model("bundled")
    language = engine.load_language(model, ONE_THREAD)
    vision = engine.load_vision(model, ONE_THREAD)
    pool = engine._models
    assert len(pool._entries) == 1
    language.close()
    assert vision.encode(noise(0)).num_tokens == 16
    assert len(pool._entries) == 1
    vision.close()
    assert not pool._entries
    vision = engine.load_vision(model, ONE_THREAD)
    language = engine.load_language(model, ONE_THREAD)  # the encoder came first and took no weights
    assert len(pool._entries) == 2
    vision.close()
    language.close()
    assert not pool._entries


def test_the_context_is_as_long_as_asked_for_and_never_longer_than_the_model_allows() -> None:
    for wanted, found in ((None, 2048), (100, 100), (1 << 20, 2048)):
        loaded = llama_engine.load_language(find_model("bundled"), replace(ONE_THREAD, context_length=wanted))
        assert loaded.spec.context_length == found
        cache = loaded.new_cache()
        loaded.prefill(cache, [TextChunk(tuple([9] * (found - 1)), 0)], want_logits=False)
        loaded.decode(cache, 5)
        with pytest.raises(EngineFault, match="room for 0"):
            loaded.decode(cache, 5)
        loaded.close()
