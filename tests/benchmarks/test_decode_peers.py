"""The decoders that ours is compared with: all of them compute the same from the same made-up cache."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks.decode_models import WEIGHTS, DecodeModels, make_decode_models
from benchmarks.decode_peers import Decoder, Growing, LlamaCpp, SharedBuffers, llama_state, token_embeds
from benchmarks.kv_rows import KVRowsSource
from tests.made_models.small_shapes import SMALL_SMOLVLM

ROWS = KVRowsSource(2, 1, 64, max_entries=700)
TOKEN = 1000


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> DecodeModels:
    text = dataclasses.replace(SMALL_SMOLVLM.text, head_dim=64, ffn_size=192, is_tied=True, max_positions=1024)
    return make_decode_models(dataclasses.replace(SMALL_SMOLVLM, text=text), tmp_path_factory.mktemp("models"))


def opened(models: DecodeModels, weights: str) -> list[Decoder]:
    file = f"decoder_model_merged{'' if weights == 'fp32' else '_q4'}.onnx"
    embeds, vocab_size = token_embeds(models.gqa, TOKEN), models.config()["vocab_size"]
    return [
        SharedBuffers(
            "whole",
            models.gqa / "onnx" / file,
            ROWS,
            capacity=720,
            threads=1,
            embeds=embeds,
            vocab_size=vocab_size,
        ),
        Growing("plain", models.plain / "onnx" / file, ROWS, threads=1, embeds=embeds, vocab_size=vocab_size),
    ]


def error(decoders: list[Decoder], num_entries: int) -> float:
    """Return the relative difference of the logits of the third token."""
    logits = []
    for decoder in decoders:
        decoder.fill(num_entries)
        for _ in range(2):
            decoder.step()
        logits.append(decoder.step().copy())
        decoder.close()
    return float(np.linalg.norm(logits[1] - logits[0]) / np.linalg.norm(logits[0]))


# Activations in 8 bits: a difference of rounding alone may flip one of them.
@pytest.mark.parametrize(("weights", "largest"), [("fp32", 1e-5), ("q4", 0.05)])
@pytest.mark.parametrize("num_entries", [0, 1, 650])
def test_both_graphs_compute_the_same(models: DecodeModels, weights: str, largest: float, num_entries: int) -> None:
    assert error(opened(models, weights), num_entries) < largest


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize(("weights", "largest"), [("fp32", 0.02), ("q4", 0.4)])
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_llama_cpp_computes_the_same_from_the_same_cache(
    models: DecodeModels, weights: str, largest: float, kv: str
) -> None:
    whole, plain = opened(models, weights)
    plain.close()
    llama = LlamaCpp("llama.cpp", models.gguf(weights), ROWS, kv=kv, capacity=768, threads=1, token_id=TOKEN)

    assert error([whole, llama], 650) < largest


def test_what_the_cache_holds_matters(models: DecodeModels) -> None:
    one, other = opened(models, "fp32")
    other.close()
    logits = []
    for num_entries in (0, 650):
        one.fill(num_entries)
        logits.append(one.step().copy())
    one.close()

    assert np.linalg.norm(logits[1] - logits[0]) > 0.1 * np.linalg.norm(logits[0])


def test_a_quantised_state_for_heads_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="q8_0 for heads of 32 channels, not 64"):
        llama_state(KVRowsSource(1, 1, 32, max_entries=10), 4, "q8_0")


def test_models_have_every_form(models: DecodeModels) -> None:
    for folder in (models.plain, models.gqa):
        names = {path.name for path in (folder / "onnx").iterdir()}
        assert names == {"embed_tokens.onnx", "decoder_model_merged.onnx", "decoder_model_merged_q4.onnx"}
    assert all(models.gguf(weights).is_file() for weights in WEIGHTS)
    assert models.config()["tie_word_embeddings"] is True
    assert Path(models.plain / "tokenizer.json").is_file()
