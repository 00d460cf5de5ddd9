"""The JSON files beside the weights of an Idefics3 model, as transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge_vl.made_models.shapes import ModelShape
from edge_vl.made_models.smollm2_tokenizer import BOS, EOS, IMAGE, PAD, UNK

__all__ = ["CHAT_TEMPLATE", "idefics3_config", "write_configurations"]

CHAT_TEMPLATE = (
    "<|im_start|>"
    "{% for turn in messages %}"
    "{% set parts = turn.content %}"
    "{{ turn.role | capitalize }}:"
    "{% if parts is string %}{{ ' ' ~ parts }}{% else %}"
    "{% for part in parts %}"
    "{% if loop.first and part.type != 'image' %}{{ ' ' }}{% endif %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}"
    "<end_of_utterance>{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""SmolVLM's turns: the role, a space unless a picture follows, the parts, the end of the utterance."""


def idefics3_config(shape: ModelShape, token_ids: dict[str, int]) -> dict[str, Any]:
    """Return the contents of `config.json`.

    Args:
        shape: of the family `idefics3`.
        token_ids: by token, with the named ones.
    """
    text, vision = shape.text, shape.vision
    ids = {"bos_token_id": token_ids[BOS], "eos_token_id": token_ids[EOS], "pad_token_id": token_ids[PAD]}
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "torch_dtype": "float32",
        "image_token_id": token_ids[IMAGE],
        **ids,
        "scale_factor": vision.shuffle,
        "tie_word_embeddings": text.is_tied,
        "use_cache": True,
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.ffn_size,
            "num_hidden_layers": vision.num_layers,
            "num_attention_heads": vision.num_heads,
            "num_channels": 3,
            "image_size": vision.tile_side,
            "patch_size": vision.patch_side,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": vision.norm_eps,
            "attention_dropout": 0.0,
        },
        "text_config": {
            "model_type": "llama",
            "hidden_size": text.hidden_size,
            "intermediate_size": text.ffn_size,
            "num_hidden_layers": text.num_layers,
            "num_attention_heads": text.num_heads,
            "num_key_value_heads": text.num_kv_heads,
            "head_dim": text.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": text.rms_eps,
            "rope_theta": text.rope_theta,
            "max_position_embeddings": text.max_positions,
            "vocab_size": text.vocab_size,
            "attention_bias": text.has_qkv_bias,
            "mlp_bias": False,
            "tie_word_embeddings": text.is_tied,
            **ids,
        },
    }


def write_configurations(folder: Path, shape: ModelShape, tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Write every JSON file and the template into a folder.

    Args:
        folder: where they go.
        shape: of the family `idefics3`, with the longest edge that pictures are scaled to.
        tokenizer: the contents of `tokenizer.json`.

    Returns:
        The contents of `config.json`.
    """
    added = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    config = idefics3_config(shape, added)
    named = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "unk_token": UNK}
    files: dict[str, dict[str, Any]] = {
        "config.json": config,
        "preprocessor_config.json": {
            "image_processor_type": "Idefics3ImageProcessor",
            "processor_class": "Idefics3Processor",
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"longest_edge": shape.longest_edge},
            "resample": 1,
            "do_image_splitting": True,
            "max_image_size": {"longest_edge": shape.vision.tile_side},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "do_pad": True,
        },
        "processor_config.json": {
            "processor_class": "Idefics3Processor",
            "image_seq_len": shape.vision.tokens_per_tile,
        },
        "generation_config.json": {
            "_from_model_config": True,
            **{f"{name}_id": added[token] for name, token in named.items() if name != "unk_token"},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer",
            "processor_class": "Idefics3Processor",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": shape.text.max_positions,
            **named,
            "chat_template": CHAT_TEMPLATE,
        },
        "special_tokens_map.json": {**named, "additional_special_tokens": list(added)},
    }
    for name, contents in files.items():
        (folder / name).write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return config
