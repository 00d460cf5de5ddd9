"""Small models whose decoders can be cut, and the two ways to load one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edge_vl.engine import ImageEmbeds, LaneOptions, LanguageModel, Prefillable
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import TextChunk
from edge_vl_onnxruntime import OnnxRuntimeEngine
from edge_vl_onnxruntime.cut_language import CutLanguageModel
from tests.decoder_graphs import HEADS, HIDDEN, KV_HEADS, LAYERS, TEXT_CONFIG, VOCAB, write_grouped_query
from tests.engines.tiny_models import GraphBuilder, value

CONTEXT = 1024


def write_cut_model(folder: Path, write_decoder: Callable[[Path], Path] = write_grouped_query) -> ModelSpec:
    """Write a decoder, its embeddings and a tokenizer, and return a spec for them."""
    (folder / "onnx").mkdir(parents=True)
    write_decoder(folder / "onnx" / "decoder_model_merged.onnx")
    graph = GraphBuilder(2)
    table = graph.constant(graph.random.standard_normal((VOCAB, HIDDEN)))
    graph.op("Gather", table, "input_ids", outputs=["inputs_embeds"])
    graph.save(
        folder / "onnx" / "embed_tokens.onnx",
        [value("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [value("inputs_embeds", TensorProto.FLOAT, ["batch", "sequence", HIDDEN])],
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:90]
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end_of_utterance>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "idefics3",
        "eos_token_id": 90,
        "text_config": {**TEXT_CONFIG, "max_position_embeddings": CONTEXT},
    }
    return ModelSpec("cut", folder, "idefics3", config, {}, {}, "", folder / "tokenizer.json", {})


def load(model: ModelSpec, options: LaneOptions, cache_dir: Path) -> LanguageModel:
    """Load a language model with an engine that keeps what it finds out in a folder."""
    return OnnxRuntimeEngine(cache_dir).load_language(model, options)


def load_in_pieces(model: ModelSpec, options: LaneOptions, cache_dir: Path) -> CutLanguageModel:
    """Load one that must have been cut."""
    language = load(model, options, cache_dir)
    assert isinstance(language, CutLanguageModel), language.spec.notes
    return language


def noise(random: np.random.Generator, count: int, hidden_size: int, start: int = 0) -> list[Prefillable]:
    """Return rows of text and image tokens, in runs of a few."""
    run: list[Prefillable] = []
    while count:
        size = min(count, int(random.integers(1, 40)))
        if random.random() < 0.3:
            run.append(ImageEmbeds(random.standard_normal((size, hidden_size)).astype(np.float32), ""))
        else:
            run.append(TextChunk(tuple(int(token) for token in random.integers(0, 90, size)), start))
        start += size
        count -= size
    return run


__all__ = ["CONTEXT", "HEADS", "KV_HEADS", "LAYERS", "load", "load_in_pieces", "noise", "write_cut_model"]
