"""Names and shapes of a model's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge_vl.made_models.shapes import ModelShape
from edge_vl.made_models.weights import Shape

__all__ = ["idefics3_parameters", "internvl3_text_parameters", "internvl3_vision_parameters"]


def idefics3_parameters(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Return what an Idefics3 model learns, under transformers' names.

    Args:
        config: the contents of `config.json`.
    """
    return dict([*_idefics3_text(config["text_config"]), *_idefics3_vision(config)])


def _idefics3_text(text: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    width, ffn = text["hidden_size"], text["intermediate_size"]
    queries = text["num_attention_heads"] * text["head_dim"]
    keys = text["num_key_value_heads"] * text["head_dim"]
    yield "model.text_model.embed_tokens.weight", (text["vocab_size"], width)
    for number in range(text["num_hidden_layers"]):
        layer = f"model.text_model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (width,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, width)
        yield f"{layer}.self_attn.k_proj.weight", (keys, width)
        yield f"{layer}.self_attn.v_proj.weight", (keys, width)
        yield f"{layer}.self_attn.o_proj.weight", (width, queries)
        yield f"{layer}.post_attention_layernorm.weight", (width,)
        yield f"{layer}.mlp.gate_proj.weight", (ffn, width)
        yield f"{layer}.mlp.up_proj.weight", (ffn, width)
        yield f"{layer}.mlp.down_proj.weight", (width, ffn)
    yield "model.text_model.norm.weight", (width,)
    if not text["tie_word_embeddings"]:
        yield "lm_head.weight", (text["vocab_size"], width)


def _idefics3_vision(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    vision = config["vision_config"]
    width, ffn, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    embeddings = "model.vision_model.embeddings"
    yield f"{embeddings}.patch_embedding.weight", (width, 3, patch, patch)
    yield f"{embeddings}.patch_embedding.bias", (width,)
    yield f"{embeddings}.position_embedding.weight", ((vision["image_size"] // patch) ** 2, width)
    for number in range(vision["num_hidden_layers"]):
        layer = f"model.vision_model.encoder.layers.{number}"
        for name in ("layer_norm1", "layer_norm2"):
            yield from _with_bias(f"{layer}.{name}", (width,))
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _with_bias(f"{layer}.self_attn.{name}", (width, width))
        yield from _with_bias(f"{layer}.mlp.fc1", (ffn, width))
        yield from _with_bias(f"{layer}.mlp.fc2", (width, ffn))
    yield from _with_bias("model.vision_model.post_layernorm", (width,))
    shuffled = config["scale_factor"] ** 2 * width
    yield "model.connector.modality_projection.proj.weight", (config["text_config"]["hidden_size"], shuffled)


def internvl3_text_parameters(shape: ModelShape) -> dict[str, Shape]:
    """Return what the language model of InternVL3 learns, under llama.cpp's names."""
    return dict(_internvl3_text(shape))


def _internvl3_text(shape: ModelShape) -> Iterator[tuple[str, Shape]]:
    text = shape.text
    width, queries, keys = text.hidden_size, text.num_heads * text.head_dim, text.num_kv_heads * text.head_dim
    yield "token_embd.weight", (text.vocab_size, width)
    for number in range(text.num_layers):
        layer = f"blk.{number}"
        yield f"{layer}.attn_norm.weight", (width,)
        for kind, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield from _with_bias(f"{layer}.attn_{kind}", (rows, width))
        yield f"{layer}.attn_output.weight", (width, queries)
        yield f"{layer}.ffn_norm.weight", (width,)
        yield f"{layer}.ffn_gate.weight", (text.ffn_size, width)
        yield f"{layer}.ffn_up.weight", (text.ffn_size, width)
        yield f"{layer}.ffn_down.weight", (width, text.ffn_size)
    yield "output_norm.weight", (width,)


def internvl3_vision_parameters(shape: ModelShape) -> dict[str, Shape]:
    """Return what the vision encoder of InternVL3 and its projector learn, under llama.cpp's names."""
    return dict(_internvl3_vision(shape))


def _internvl3_vision(shape: ModelShape) -> Iterator[tuple[str, Shape]]:
    vision = shape.vision
    width = vision.hidden_size
    yield "v.class_embd", (width,)
    yield from _with_bias("v.patch_embd", (width, 3, vision.patch_side, vision.patch_side))
    yield "v.position_embd.weight", (vision.num_patches + 1, width)
    for number in range(vision.num_layers):
        layer = f"v.blk.{number}"
        for name in ("ln1", "ln2"):
            yield from _with_bias(f"{layer}.{name}", (width,))
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            yield from _with_bias(f"{layer}.{name}", (width, width))
        yield f"{layer}.ls1.weight", (width,)
        yield f"{layer}.ls2.weight", (width,)
        yield from _with_bias(f"{layer}.ffn_up", (vision.ffn_size, width))
        yield from _with_bias(f"{layer}.ffn_down", (width, vision.ffn_size))
    shuffled = vision.shuffle**2 * width
    yield from _with_bias("mm.model.mlp.0", (shuffled,))
    yield from _with_bias("mm.model.mlp.1", (shape.text.hidden_size, shuffled))
    yield from _with_bias("mm.model.mlp.3", (shape.text.hidden_size, shape.text.hidden_size))


def _with_bias(name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
