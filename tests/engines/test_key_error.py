"""What compressing a KV cache does to each layer, measured on the bundled model and on one that is made hard for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.biased_model import make_biased_model
from edge_vl.engine import ImageEmbeds, LaneOptions, Prefillable
from edge_vl.kv_error import KVErrors, KVMeter
from edge_vl.kv_policy import MAX_LOGIT_ERROR, parse_kv_policy
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import TextChunk
from edge_vl_onnxruntime.cut_language import CutLanguageModel
from edge_vl_onnxruntime.key_error import key_errors
from tests.engines.cut_models import load_in_pieces, noise, write_cut_model

UNGUARDED = "text=int4,first_layers=none,last_layers=none"


@contextmanager
def loaded(model: ModelSpec, cache_dir: Path, kv: str) -> Iterator[CutLanguageModel]:
    language = load_in_pieces(model, LaneOptions(threads=1, kv=parse_kv_policy(kv)), cache_dir)
    try:
        yield language
    finally:
        language.close()


def errors_of(model: ModelSpec, cache_dir: Path, kv: str, run: list[Prefillable]) -> KVErrors:
    with loaded(model, cache_dir, kv) as language:
        assert isinstance(language, KVMeter)
        return language.layer_errors(run)


def text(count: int) -> list[Prefillable]:
    random = np.random.default_rng(4)
    return [TextChunk(tuple(int(token) for token in random.integers(10, 500, count)), 0)]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = tmp_path_factory.mktemp("biased")
    make_biased_model(folder)
    return find_model(folder)


def test_an_uncompressed_cache_has_no_errors(cache_dir: Path) -> None:
    found = errors_of(find_model("bundled"), cache_dir, "f32", text(200))

    assert (found.num_tokens, found.num_compressed, len(found.layers)) == (200, 0, 4)
    for layer in found.layers:
        assert (layer.keys.error, layer.values.error, layer.logit_error) == (0, 0, 0)


def test_errors_grow_as_bits_get_fewer_and_nothing_is_outside_the_range_of_its_codes(cache_dir: Path) -> None:
    run = text(4 + 3 * 64 + 30)
    found = {kv: errors_of(find_model("bundled"), cache_dir, kv, run) for kv in ("f16", "int8", "k8v4", UNGUARDED)}

    assert [one.num_compressed for one in found.values()] == [0, 192, 192, 192]
    for half, eight, mixed, four in zip(*(one.layers for one in found.values()), strict=True):
        assert half.logit_error < eight.logit_error / 5
        assert eight.logit_error < four.logit_error / 5
        assert half.keys.error < eight.keys.error / 5 < four.keys.error / 5
        assert eight.values.error < four.values.error / 5
        assert mixed.keys.error == pytest.approx(eight.keys.error, rel=0.2)
        assert mixed.values.error == pytest.approx(four.values.error, rel=0.2)
        assert {side.coverage for layer in (half, eight, mixed, four) for side in (layer.keys, layer.values)} == {1.0}


def test_image_tokens_have_the_errors_of_their_own_precision(cache_dir: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((200, 256)).astype(np.float32)
    pictures: list[Prefillable] = [ImageEmbeds(rows, "")]
    fine, coarse, mixed = (
        errors_of(find_model("bundled"), cache_dir, kv, pictures)
        for kv in ("int8", UNGUARDED, "text=int8,image=int4,first_layers=none,last_layers=none")
    )

    assert mixed.layers[0] == coarse.layers[0] != fine.layers[0]


def test_keys_are_compared_as_they_are_attended_to_where_the_kernels_turn_them(tmp_path: Path, cache_dir: Path) -> None:
    model = write_cut_model(tmp_path / "turned")
    with loaded(model, cache_dir, "f32") as language:
        assert language.kernels.rope is not None, "a graph whose attention turns keys itself"
        run = noise(np.random.default_rng(1), 150, language.spec.hidden_size)
        found = language.layer_errors(run)
    assert len(run) > 1
    assert found.num_tokens == 150
    assert max(layer.keys.error for layer in found.layers) < 1e-6
    assert max(layer.values.error for layer in found.layers) == 0


def test_what_is_measured_at_load_is_what_a_cache_in_4_bits_then_does(cache_dir: Path) -> None:
    """The first layer is given the same in both cases; the others get what compressed layers led to."""
    from edge_vl_onnxruntime import key_error

    model = find_model("bundled")
    with loaded(model, cache_dir, "auto") as language:
        foretold = key_errors(language, ("int4", "int8"))
        ids = language.tokenizer.encode_text(key_error._TEXT)
    run: list[Prefillable] = [TextChunk(tuple((ids * 9)[: key_error._PROBE_TOKENS]), 0)]
    for errors, kv in zip(foretold, (UNGUARDED, "int8"), strict=True):
        found = [layer.logit_error for layer in errors_of(model, cache_dir, kv, run).layers]
        assert found[0] == pytest.approx(errors[0], rel=1e-3)
        assert found == pytest.approx(errors, rel=0.3)


def test_layers_of_a_healthy_model_are_not_guarded(cache_dir: Path) -> None:
    with loaded(find_model("bundled"), cache_dir, "int4") as language:
        assert len(language.spec.notes) == 1
        assert {layer.keys for layer in language.kernels.cache_format.pages[0].layers} == {"int4"}


def test_layers_whose_keys_have_a_large_bias_are_guarded_and_the_model_says_so(
    biased: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_dir, measured = tmp_path, []

    def measure(*arguments: Any) -> Any:
        measured.append(arguments)
        return key_errors(*arguments)

    monkeypatch.setattr("edge_vl_onnxruntime.key_error.key_errors", measure)
    for _ in range(3):
        with loaded(biased, cache_dir, "int4") as language:
            layers = language.kernels.cache_format.pages[0].layers
            assert [layer.keys for layer in layers] == ["int8", "int4", "int4", "int8"]
            assert "layers 0, 3 in int8" in language.spec.notes[1]
    assert len(measured) == 1, "once for a file"
    guarded, unguarded = (errors_of(biased, cache_dir, kv, text(300)).layers for kv in ("int4", UNGUARDED))
    for place in (0, 3):
        assert unguarded[place].logit_error > 2 * MAX_LOGIT_ERROR
        assert guarded[place].logit_error < MAX_LOGIT_ERROR


def test_a_guard_that_was_not_asked_for_is_not_set(biased: ModelSpec, cache_dir: Path) -> None:
    with loaded(biased, cache_dir, UNGUARDED) as language:
        assert {layer.keys for layer in language.kernels.cache_format.pages[0].layers} == {"int4"}
        assert len(language.spec.notes) == 1


def test_a_context_too_short_for_two_blocks_is_measured_all_the_same(cache_dir: Path) -> None:
    options = LaneOptions(threads=1, context_length=40)
    language = load_in_pieces(find_model("bundled"), options, cache_dir)
    try:
        assert key_errors(language, ("int4",)) == ((0.0,) * 4,)
    finally:
        language.close()


def test_the_observer_that_was_there_before_is_there_again(cache_dir: Path) -> None:
    seen: list[int] = []
    with loaded(find_model("bundled"), cache_dir, "auto") as language:
        language.observer = lambda layer, *rows: seen.append(layer)
        key_errors(language, ("int8",))
        assert not seen
        cache = language.new_cache()
        language.prefill(cache, text(3))
        cache.close()
    assert seen == [0, 1, 2, 3]
