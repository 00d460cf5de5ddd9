"""Names and dimensions, held against transformers' own classes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    Qwen2Config,
)

from edge_vl.made_models.configuration import idefics3_config
from edge_vl.made_models.parameters import (
    idefics3_parameters,
    internvl3_text_parameters,
    internvl3_vision_parameters,
)
from edge_vl.made_models.shapes import SHAPES
from edge_vl.made_models.smollm2_tokenizer import BOS, EOS, IMAGE, PAD

IDS = {BOS: 1, EOS: 49279, PAD: 2, IMAGE: 49190}


@pytest.mark.parametrize("name", ["smolvlm-256m", "smolvlm-500m", "smolvlm-2.2b"])
def test_every_parameter_of_transformers_idefics3_is_made_in_its_shape(name: str) -> None:
    config: dict[str, Any] = idefics3_config(SHAPES[name], IDS)
    with torch.device("meta"):
        model = Idefics3ForConditionalGeneration(Idefics3Config(**config))
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert idefics3_parameters(config) == expected


@pytest.mark.parametrize(
    ("name", "text", "vision", "tokens"),
    [
        ("smolvlm-256m", (30, 576, 9, 3, 64, 1536, 49280), (12, 768, 12, 3072, 512, 16), 64),
        ("smolvlm-500m", (32, 960, 15, 5, 64, 2560, 49280), (12, 768, 12, 3072, 512, 16), 64),
        ("smolvlm-2.2b", (24, 2048, 32, 32, 64, 8192, 49280), (27, 1152, 16, 4304, 384, 14), 81),
        ("internvl3-1b", (24, 896, 14, 2, 64, 4864, 151674), (24, 1024, 16, 4096, 448, 14), 256),
    ],
)
def test_dimensions_are_the_published_ones(
    name: str, text: tuple[int, ...], vision: tuple[int, ...], tokens: int
) -> None:
    t, v = SHAPES[name].text, SHAPES[name].vision
    assert (t.num_layers, t.hidden_size, t.num_heads, t.num_kv_heads, t.head_dim, t.ffn_size, t.vocab_size) == text
    assert (v.num_layers, v.hidden_size, v.num_heads, v.ffn_size, v.tile_side, v.patch_side) == vision
    assert v.tokens_per_tile == tokens


def test_internvl3_has_the_shapes_of_transformers_internvl() -> None:
    shape = SHAPES["internvl3-1b"]
    text, vision = shape.text, shape.vision
    config = InternVLConfig(
        vision_config=InternVLVisionConfig(
            hidden_size=vision.hidden_size,
            num_hidden_layers=vision.num_layers,
            num_attention_heads=vision.num_heads,
            intermediate_size=vision.ffn_size,
            image_size=[vision.tile_side] * 2,
            patch_size=[vision.patch_side] * 2,
            attention_bias=True,
            use_absolute_position_embeddings=True,
        ),
        text_config=Qwen2Config(
            hidden_size=text.hidden_size,
            num_hidden_layers=text.num_layers,
            num_attention_heads=text.num_heads,
            num_key_value_heads=text.num_kv_heads,
            intermediate_size=text.ffn_size,
            vocab_size=text.vocab_size,
            tie_word_embeddings=True,
        ),
    )
    with torch.device("meta"):
        model = InternVLForConditionalGeneration(config)
    state = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    for kind, made in (
        ("language_model.", internvl3_text_parameters(shape)),
        ("vision_tower.|multi_modal_projector.", internvl3_vision_parameters(shape)),
    ):
        theirs = [size for key, size in state.items() if any(part in key for part in kind.split("|"))]
        # Theirs have leading dimensions of one for the class embedding, the positions and nothing else.
        squeezed = sorted(tuple(side for side in size if side != 1) for size in theirs)
        assert sorted(made.values()) == squeezed
        assert sum(map(math.prod, made.values())) == sum(map(math.prod, theirs))
