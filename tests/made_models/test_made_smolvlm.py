"""A made model of SmolVLM's kind: the same weights in transformers, in stock ONNX Runtime and in stock llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from transformers import Idefics3Config, Idefics3ForConditionalGeneration

import edge_vl
from edge_vl.made_models.idefics3_onnx import FILES, decoder
from edge_vl.made_models.parameters import idefics3_parameters
from edge_vl.made_models.weights import RandomWeights
from tests.made_models.small_shapes import SMALL_SMOLVLM
from tests.made_models.stock_llama import StockLlama

Array = NDArray[np.float32]
IDS = [1, 11126, 42, 1780, 314, 357, 47, 49279, 198, 9519, 9531, 42]
TILE = SMALL_SMOLVLM.vision.tile_side


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def decoder_feeds(session: Any, embeds: Array) -> dict[str, Any]:
    """Feed a prompt to an empty cache; the logits of its last token are wanted."""
    caches = [entry for entry in session.get_inputs() if entry.name.startswith("past_key_values.")]
    return {
        "inputs_embeds": embeds,
        "attention_mask": np.ones(embeds.shape[:2], np.int64),
        "position_ids": np.arange(embeds.shape[1])[None],
        "num_logits_to_keep": np.array(1),
        **{entry.name: np.zeros((1, entry.shape[1], 0, entry.shape[3]), np.float32) for entry in caches},
    }


class Onnx:
    """The three graphs in stock ONNX Runtime."""

    def __init__(self, folder: Path) -> None:
        self.vision, self.embed, self.decoder = (session(folder / "onnx" / name) for name in FILES)

    def image_embeds(self, tiles: NDArray[np.uint8]) -> Array:
        pixels = tiles.transpose(0, 3, 1, 2)[None].astype(np.float32) / 127.5 - 1
        mask = np.ones((1, len(tiles), TILE, TILE), bool)
        embeds: Array = self.vision.run(None, {"pixel_values": pixels, "pixel_attention_mask": mask})[0]
        return embeds

    def logits(self, ids: list[int]) -> Array:
        embeds = self.embed.run(None, {"input_ids": np.array([ids])})[0]
        logits: Array = self.decoder.run(None, decoder_feeds(self.decoder, embeds))[0][0, -1]
        return logits


@pytest.fixture(scope="module")
def model(smolvlm: Path) -> Onnx:
    return Onnx(smolvlm)


@pytest.fixture(scope="module")
def config(smolvlm: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((smolvlm / "config.json").read_text())
    return contents


@pytest.fixture(scope="module")
def oracle(config: dict[str, Any]) -> Any:
    weights = RandomWeights(idefics3_parameters(config))
    with torch.device("meta"):
        model = Idefics3ForConditionalGeneration(Idefics3Config(**config))
    state = {name: torch.from_numpy(weights.values(name)) for name in weights.names()}
    model.load_state_dict(state, assign=True)
    # Buffers are no part of the state: those of the rotary embedding must be computed again.
    rotary = model.model.text_model.rotary_emb
    model.model.text_model.rotary_emb = type(rotary)(model.config.text_config)
    embeddings = model.model.vision_model.embeddings
    embeddings.position_ids = torch.arange(embeddings.num_positions).expand((1, -1))
    return model.eval()


@pytest.fixture(scope="module")
def picture() -> NDArray[np.uint8]:
    """Twice as large as a tile: no scaling on the way to four tiles."""
    return np.random.default_rng(3).integers(0, 256, (2 * TILE, 2 * TILE, 3), np.uint8)


def four_tiles(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack([picture[y : y + TILE, x : x + TILE] for y in (0, TILE) for x in (0, TILE)])


def correlation(one: Array, other: Array) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def test_the_decoder_computes_what_transformers_computes(model: Onnx, oracle: Any) -> None:
    with torch.no_grad():
        expected = oracle(input_ids=torch.tensor([IDS])).logits[0, -1].numpy()
    assert np.abs(model.logits(IDS) - expected).max() < 1e-4
    assert 0.5 < expected.std() < 2


def test_the_vision_encoder_computes_what_transformers_computes(
    model: Onnx, oracle: Any, picture: NDArray[np.uint8]
) -> None:
    tiles = four_tiles(picture)
    pixels = torch.from_numpy(tiles.transpose(0, 3, 1, 2)[None].astype(np.float32) / 127.5 - 1)
    with torch.no_grad():
        expected = np.concatenate([part.numpy() for part in oracle.model.get_image_features(pixels).pooler_output])
    expected = expected.reshape(4, SMALL_SMOLVLM.vision.tokens_per_tile, -1)
    assert np.abs(model.image_embeds(tiles) - expected).max() < 1e-4
    assert 0.2 < expected.std() < 5


# Largest relative error of logits whose standard deviation is 1, and least correlation.
@pytest.mark.parametrize(
    ("precision", "largest", "least"), [("f16", 0.03, 0.9999), ("q8_0", 0.3, 0.999), ("q4_0", 3, 0.9)]
)
def test_llama_cpp_computes_the_same_logits(
    smolvlm: Path, model: Onnx, precision: str, largest: float, least: float
) -> None:
    with StockLlama(smolvlm / "gguf" / f"small-smolvlm-text-{precision}.gguf") as llama:
        logits = llama.logits(IDS)
        parameters = idefics3_parameters(json.loads((smolvlm / "config.json").read_text()))
        text = [size for name, size in parameters.items() if name.startswith(("model.text_model.", "lm_head."))]
        assert llama.num_parameters == sum(int(np.prod(size)) for size in text)
    expected = model.logits(IDS)
    assert np.abs(logits - expected).max() < largest * expected.std()
    assert correlation(logits, expected) > least


@pytest.mark.parametrize(("precision", "least"), [("f16", 0.99999), ("q8_0", 0.999)])
def test_llama_cpp_computes_the_same_image_embeds_and_reads_them(
    smolvlm: Path, model: Onnx, picture: NDArray[np.uint8], precision: str, least: float
) -> None:
    text = smolvlm / "gguf" / "small-smolvlm-text-f16.gguf"
    with StockLlama(text, smolvlm / "gguf" / f"mmproj-small-smolvlm-{precision}.gguf") as llama:
        embeds, logits = llama.read("<|im_start|>User:<image>What?<end_of_utterance>\nAssistant:", picture)
    assert len(embeds) == 5
    assert correlation(np.stack(embeds[:4]), model.image_embeds(four_tiles(picture))) > least
    assert np.isfinite(logits).all()


def test_both_engines_of_a_runtime_answer_with_it(smolvlm: Path, picture: NDArray[np.uint8]) -> None:
    with edge_vl.Runtime.open(smolvlm, vision_engine="onnxruntime", language_engine="onnxruntime") as runtime:
        answer = runtime.ask(picture, "What is it?", max_tokens=4)
    assert answer.usage.completion_tokens == 4
    assert answer.usage.image_tokens == 5 * SMALL_SMOLVLM.vision.tokens_per_tile


@pytest.mark.parametrize("name", FILES)
def test_graphs_pass_the_checker(smolvlm: Path, name: str) -> None:
    onnx.checker.check_model(str(smolvlm / "onnx" / name), full_check=True)


def test_weights_in_a_file_of_their_own_give_the_same_logits(
    tmp_path: Path, config: dict[str, Any], model: Onnx
) -> None:
    graph = decoder(RandomWeights(idefics3_parameters(config)), config)
    graph.save(tmp_path / "decoder.onnx", max_inline_bytes=1000)
    assert (tmp_path / "decoder.onnx").stat().st_size < 200_000
    onnx.checker.check_model(str(tmp_path / "decoder.onnx"), full_check=True)
    apart = session(tmp_path / "decoder.onnx")
    embeds = model.embed.run(None, {"input_ids": np.array([IDS])})[0]
    assert np.array_equal(apart.run(None, decoder_feeds(apart, embeds))[0][0, -1], model.logits(IDS))


@pytest.mark.parametrize("precision", ["f16", "q8_0", "q4_0"])
def test_each_tensor_is_stored_as_llama_cpp_stores_it(smolvlm: Path, precision: str) -> None:
    kinds = gguf.GGMLQuantizationType
    reader = gguf.GGUFReader(smolvlm / "gguf" / f"small-smolvlm-text-{precision}.gguf")
    matrix = kinds[precision.upper()]
    for tensor in reader.tensors:
        expected = matrix
        if len(tensor.shape) == 1:
            expected = kinds.F32
        elif tensor.name == "output.weight" and precision == "q4_0":
            expected = kinds.Q8_0
        assert tensor.tensor_type == expected, tensor.name
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType[f"MOSTLY_{precision.upper()}"]


def test_rows_that_are_no_whole_blocks_stay_in_half_precision(smolvlm: Path) -> None:
    reader = gguf.GGUFReader(smolvlm / "gguf" / "mmproj-small-smolvlm-q8_0.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["v.blk.0.ffn_up.weight"] == "Q8_0"
    assert kinds["v.blk.0.ffn_down.weight"] == kinds["v.patch_embd.weight"] == "F16"
    assert kinds["v.position_embd.weight"] == kinds["v.blk.0.ln1.weight"] == "F32"
    assert reader.fields["clip.vision.preproc_image_size"].contents() == SMALL_SMOLVLM.longest_edge
    assert reader.fields["clip.vision.projector.scale_factor"].contents() == 4
