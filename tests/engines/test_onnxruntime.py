"""The engine as a whole: the contract, and whole-prompt runs of bare ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from edge_vl.engine import Engine, ImageEmbeds, LaneOptions
from edge_vl.errors import EngineFault
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl.testing import EngineContract
from edge_vl_onnxruntime import engine as ort_engine
from edge_vl_onnxruntime.language import OnnxLanguageModel
from tests.engines.tiny_models import (
    CONTEXT,
    EXPORTS,
    HEAD_DIM,
    HIDDEN,
    IMAGE_TOKENS,
    KV_HEADS,
    LAYERS,
    TILE,
    TinyOptions,
    tiny_spec,
    write_tiny_model,
)

ONE_THREAD = LaneOptions(threads=1)


class OnnxContract(EngineContract):
    kind = ""

    @pytest.fixture(autouse=True)
    def _model(self, models: Callable[[str], ModelSpec], tmp_path: Path) -> None:
        self._spec = models(self.kind)
        self._empty = tiny_spec(tmp_path)

    def engine(self) -> Engine:
        return ort_engine

    def model(self) -> ModelSpec:
        return self._spec

    def broken_model(self) -> ModelSpec:
        return self._empty


class TestGrowingCache(OnnxContract):
    kind = "plain"


class TestCacheInPlace(OnnxContract):
    kind = "in-place"


class TestBundledModel(OnnxContract):
    kind = "plain"

    def model(self) -> ModelSpec:
        return find_model("bundled")


def bare_logits(spec: ModelSpec, token_ids: list[int], image: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Run a whole prompt in one go, straight against onnxruntime; the picture stands after the second token."""
    folder = spec.path / "onnx"
    embed = onnxruntime.InferenceSession(folder / "embed_tokens.onnx", providers=["CPUExecutionProvider"])
    decoder = onnxruntime.InferenceSession(folder / "decoder_model_merged.onnx", providers=["CPUExecutionProvider"])
    rows = embed.run(None, {"input_ids": np.array([token_ids])})[0]
    if image is not None:
        rows = np.concatenate([rows[:, :2], image[None], rows[:, 2:]], axis=1)
    length = rows.shape[1]
    feeds: dict[str, Any] = {
        "inputs_embeds": rows,
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.arange(length)[None],
        "num_logits_to_keep": np.array(1),
    }
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            feeds[f"past_key_values.{layer}.{kind}"] = np.zeros((1, KV_HEADS, 0, HEAD_DIM), np.float32)
    wanted = {node.name for node in decoder.get_inputs()}
    logits: NDArray[np.float32] = decoder.run(["logits"], {name: feeds[name] for name in wanted})[0][0, -1]
    return logits


@pytest.mark.parametrize("kind", EXPORTS)
def test_stepwise_logits_equal_a_bare_run_of_the_whole_prompt(models: Callable[[str], ModelSpec], kind: str) -> None:
    spec = models(kind)
    language = ort_engine.load_language(spec, ONE_THREAD)
    image = np.random.default_rng(1).standard_normal((5, HIDDEN)).astype(np.float32)
    token_ids = [3, 1, 4, 1, 5, 9, 2, 6]
    cache = language.new_cache()
    language.prefill(cache, [TextChunk((3, 1), 0), ImageEmbeds(image, "")], want_logits=False)
    logits = language.prefill(cache, [TextChunk((4, 1), 7)])
    assert logits is not None
    np.testing.assert_allclose(logits, bare_logits(spec, token_ids[:4], image), atol=1e-4)
    for step, token_id in enumerate(token_ids[4:]):
        logits = language.decode(cache, token_id)
        np.testing.assert_allclose(logits, bare_logits(spec, token_ids[: 5 + step], image), atol=1e-4)
    language.close()


def test_a_whole_context_fits_and_a_prompt_longer_than_one_run_gives_the_same(
    models: Callable[[str], ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    token_ids = tuple(int(token) for token in np.random.default_rng(2).integers(0, 256, CONTEXT))
    for kind in ("plain", "in-place"):
        language = ort_engine.load_language(models(kind), ONE_THREAD)
        expected = bare_logits(models(kind), list(token_ids))
        for rows in (512, 100):
            monkeypatch.setattr("edge_vl_onnxruntime.language.MAX_ROWS", rows)
            cache = language.new_cache()
            logits = language.prefill(cache, [TextChunk(token_ids, 0)])
            assert logits is not None
            np.testing.assert_allclose(logits, expected, atol=1e-4)
            with pytest.raises(EngineFault, match="room for 0"):
                language.decode(cache, 1)
            cache.close()
        language.close()


def test_the_cache_is_written_in_place_exactly_where_the_graph_can(models: Callable[[str], ModelSpec]) -> None:
    for kind in EXPORTS:
        language = ort_engine.load_language(models(kind), ONE_THREAD)
        assert isinstance(language, OnnxLanguageModel)
        assert language.is_cache_shared == kind.startswith("in-place")
        language.close()


def test_buffers_in_place_grow_in_powers_of_two_up_to_the_context(models: Callable[[str], ModelSpec]) -> None:
    language = ort_engine.load_language(models("in-place"), LaneOptions(threads=1, context_length=150))
    cache = language.new_cache()
    row_bytes = LAYERS * 2 * KV_HEADS * HEAD_DIM * 4
    sizes = []
    for _ in range(150):
        language.decode(cache, 7)
        sizes.append(cache.nbytes // row_bytes)
    assert sorted(set(sizes)) == [64, 128, 150]
    language.close()


def test_a_failed_piece_of_a_long_prompt_leaves_the_cache(
    models: Callable[[str], ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl_onnxruntime.language.MAX_ROWS", 4)
    for kind in ("plain", "in-place"):
        language = ort_engine.load_language(models(kind), ONE_THREAD)
        cache = language.new_cache()
        language.prefill(cache, [TextChunk((1, 2, 3), 0)])
        bad = np.zeros((6, HIDDEN), np.float32)
        bad[5] = np.nan
        with pytest.raises(EngineFault, match="not finite") as caught:
            language.prefill(cache, [ImageEmbeds(bad, "")])
        assert caught.value.stage == "prefill"
        assert cache.num_tokens == 3
        np.testing.assert_allclose(language.decode(cache, 4), bare_logits(models(kind), [1, 2, 3, 4]), atol=1e-4)
        language.close()


@pytest.mark.parametrize(
    "options",
    [
        TinyOptions(pixel_rank=4),
        TinyOptions(pixel_rank=4, pixel_mask=""),
        TinyOptions(pixel_mask="int64", flat_output=True),
        TinyOptions(symbolic_tile=True),
    ],
)
def test_every_shape_of_vision_graph_gives_the_same_embeds(tmp_path: Path, options: TinyOptions) -> None:
    write_tiny_model(tmp_path / "usual")
    write_tiny_model(tmp_path / "other", options)
    pixels = np.random.default_rng(0).integers(0, 256, (TILE, TILE, 3), dtype=np.uint8)
    unit = ImageUnit.of(pixels, "tile")
    embeds = []
    for name in ("usual", "other"):
        vision = ort_engine.load_vision(tiny_spec(tmp_path / name), ONE_THREAD)
        assert vision.spec.tokens_per_unit == IMAGE_TOKENS
        embeds.append(vision.encode(unit).values)
        vision.close()
    np.testing.assert_allclose(embeds[1], embeds[0], atol=1e-5)


def test_pixels_reach_the_graph_rescaled_and_normalised(models: Callable[[str], ModelSpec]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (TILE, TILE, 3), dtype=np.uint8)
    vision = ort_engine.load_vision(models("plain"), ONE_THREAD)
    session = onnxruntime.InferenceSession(vision.spec.file, providers=["CPUExecutionProvider"])
    planar = ((pixels.astype(np.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None, None]
    expected = session.run(None, {"pixel_values": planar, "pixel_attention_mask": np.ones((1, 1, TILE, TILE), bool)})
    np.testing.assert_allclose(vision.encode(ImageUnit.of(pixels, "tile")).values, expected[0][0], atol=1e-5)
