"""A made model of InternVL3's kind in stock llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from edge_vl.made_models.parameters import internvl3_text_parameters
from edge_vl.made_models.weights import RandomWeights
from tests.made_models.small_shapes import SMALL_INTERNVL
from tests.made_models.stock_llama import StockLlama

#: transformers' names of the parameters, by the part of llama.cpp's name.
NAMES = {
    "blk.": "model.layers.", "attn_norm.": "input_layernorm.", "attn_q.": "self_attn.q_proj.",
    "attn_k.": "self_attn.k_proj.", "attn_v.": "self_attn.v_proj.", "attn_output.": "self_attn.o_proj.",
    "ffn_norm.": "post_attention_layernorm.", "ffn_gate.": "mlp.gate_proj.", "ffn_up.": "mlp.up_proj.",
    "ffn_down.": "mlp.down_proj.", "output_norm.": "model.norm.", "token_embd.": "model.embed_tokens.",
}  # fmt: skip


def transformers_name(name: str) -> str:
    for part, theirs in NAMES.items():
        name = name.replace(part, theirs)
    return name


def text_file(folder: Path, precision: str) -> Path:
    return folder / "gguf" / f"small-internvl-text-{precision}.gguf"


@pytest.mark.parametrize(("precision", "least"), [("f16", 0.9999), ("q8_0", 0.998), ("q4_0", 0.9)])
def test_llama_cpp_computes_the_logits_of_transformers_qwen2(internvl: Path, precision: str, least: float) -> None:
    text = SMALL_INTERNVL.text
    oracle = Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=text.hidden_size,
            num_hidden_layers=text.num_layers,
            num_attention_heads=text.num_heads,
            num_key_value_heads=text.num_kv_heads,
            intermediate_size=text.ffn_size,
            vocab_size=text.vocab_size,
            rope_theta=text.rope_theta,
            rms_norm_eps=text.rms_eps,
            tie_word_embeddings=True,
        )
    ).eval()
    weights = RandomWeights(internvl3_text_parameters(SMALL_INTERNVL))
    state = {transformers_name(name): torch.from_numpy(weights.values(name)) for name in weights.names()}
    missing = oracle.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    ids = [300, 7, 1200, 45, 45, 999, 3]
    with torch.no_grad():
        expected = oracle(torch.tensor([ids])).logits[0, -1].numpy()
    with StockLlama(text_file(internvl, precision)) as llama:
        logits = llama.logits(ids)
    assert np.corrcoef(logits, expected)[0, 1] > least


@pytest.mark.parametrize("precision", ["f16", "q8_0"])
def test_a_picture_is_tiled_encoded_and_read(internvl: Path, precision: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    vision = internvl / "gguf" / f"mmproj-small-internvl-{precision}.gguf"
    with StockLlama(text_file(internvl, "f16"), vision) as llama:
        embeds, logits = llama.read("<|im_start|>user\n<image>What?<|im_end|>\n<|im_start|>assistant\n", pixels)
    assert len(embeds) > 2  # tiles, then the thumbnail
    assert {unit.shape for unit in embeds} == {(SMALL_INTERNVL.vision.tokens_per_tile, SMALL_INTERNVL.text.hidden_size)}
    assert np.isfinite(np.stack(embeds)).all()
    assert not np.allclose(embeds[0], embeds[1])
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1


def test_the_tokens_of_a_picture_and_of_a_turn_are_single(internvl: Path) -> None:
    with StockLlama(text_file(internvl, "q4_0"), vocabulary_only=True) as llama:
        ids = llama.tokenize("<img></img><|im_start|><|im_end|>", special=True)
        assert len(ids) == 4
        assert llama.is_end(ids[3])
        assert len(llama.tokenize("a robot sees", special=False)) < len("a robot sees")
