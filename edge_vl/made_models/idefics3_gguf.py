"""The two GGUF files of an Idefics3 model that llama.cpp's multimodal library loads.

Source:
    conversion/llama.py and conversion/smolvlm.py of ggml-org/llama.cpp: names, metadata, and the order of the rows of
    query and key projections.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edge_vl.made_models.gguf_file import Tensor, describe_precision, stored_type, write
from edge_vl.made_models.tokenizer_gguf import describe_tokenizer
from edge_vl.made_models.weights import Weights

__all__ = ["gguf_name", "gguf_tensor", "interleave", "text_tensors", "vision_tensors", "write_text", "write_vision"]

TEXT_PREFIXES = ("model.text_model.", "lm_head.")

#: llama.cpp's names of the parameters, by the name that follows the prefix of a layer or of the model.
_TEXT_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_VISION_LAYER = {
    "layer_norm1": "ln1", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out", "layer_norm2": "ln2", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
_OUTSIDE = {
    "lm_head.weight": "output.weight",
    "model.text_model.embed_tokens.weight": "token_embd.weight",
    "model.text_model.norm.weight": "output_norm.weight",
    "model.vision_model.embeddings.patch_embedding.weight": "v.patch_embd.weight",
    "model.vision_model.embeddings.patch_embedding.bias": "v.patch_embd.bias",
    "model.vision_model.embeddings.position_embedding.weight": "v.position_embd.weight",
    "model.vision_model.post_layernorm.weight": "v.post_ln.weight",
    "model.vision_model.post_layernorm.bias": "v.post_ln.bias",
    "model.connector.modality_projection.proj.weight": "mm.model.fc.weight",
}


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a parameter.

    Raises:
        KeyError: the parameter has no counterpart.
    """
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    is_text = name.startswith("model.text_model.layers.")
    number, _, rest = name.partition(".layers.")[2].partition(".")
    module, _, kind = rest.rpartition(".")
    table, block = (_TEXT_LAYER, "blk") if is_text else (_VISION_LAYER, "v.blk")
    return f"{block}.{number}.{table[module]}.{kind}"


def interleave(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Reorder the rows of a query or key projection from halves (transformers) to pairs (llama.cpp) per head."""
    heads = rows.reshape(num_heads, 2, -1, rows.shape[1])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def gguf_tensor(weights: Weights, name: str, config: dict[str, Any], precision: str) -> Tensor:
    """Return a parameter as llama.cpp stores it."""
    text = config["text_config"]
    is_head = name == ("model.text_model.embed_tokens.weight" if text["tie_word_embeddings"] else "lm_head.weight")
    shape, stored_name = weights.shape(name), gguf_name(name)

    def make() -> NDArray[np.float32]:
        values = weights.values(name)
        if name.startswith("model.text_model.") and name.endswith(("q_proj.weight", "k_proj.weight")):
            is_query = name.endswith("q_proj.weight")
            values = interleave(values, text["num_attention_heads" if is_query else "num_key_value_heads"])
        return values

    return Tensor(stored_name, shape, stored_type(stored_name, shape, precision, is_head=is_head), make)


def text_tensors(weights: Weights, config: dict[str, Any], precision: str) -> Iterator[Tensor]:
    """Yield the tensors of the text file."""
    for name in sorted(weights.names()):
        if name.startswith(TEXT_PREFIXES):
            yield gguf_tensor(weights, name, config, precision)


def vision_tensors(weights: Weights, config: dict[str, Any], precision: str) -> Iterator[Tensor]:
    """Yield the tensors of the vision file."""
    for name in sorted(weights.names()):
        if not name.startswith(TEXT_PREFIXES):
            yield gguf_tensor(weights, name, config, precision)


def write_text(
    path: Path, title: str, weights: Weights, config: dict[str, Any], model_folder: Path, precision: str
) -> None:
    """Write the text model's file.

    Args:
        path: of the file.
        title: what the model calls itself.
        weights: parameters under transformers' names.
        config: the contents of `config.json`.
        model_folder: has `tokenizer.json` and `chat_template.jinja`.
        precision: a key of `gguf_file.FILE_TYPES`.
    """
    text = config["text_config"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(title)
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_key_length(text["head_dim"])
    writer.add_value_length(text["head_dim"])
    writer.add_rope_dimension_count(text["head_dim"])
    writer.add_rope_freq_base(text["rope_theta"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_vocab_size(text["vocab_size"])
    describe_precision(writer, precision)
    tokenizer = json.loads((model_folder / "tokenizer.json").read_text(encoding="utf-8"))
    describe_tokenizer(
        writer, tokenizer, pre="smollm", bos=text["bos_token_id"], eos=text["eos_token_id"], pad=text["pad_token_id"]
    )
    writer.add_chat_template((model_folder / "chat_template.jinja").read_text(encoding="utf-8"))
    write(writer, text_tensors(weights, config, precision))


def write_vision(
    path: Path, title: str, weights: Weights, config: dict[str, Any], model_folder: Path, precision: str
) -> None:
    """Write the vision encoder's file (mmproj); see `write_text`. `model_folder` has `preprocessor_config.json`."""
    vision = config["vision_config"]
    processor = json.loads((model_folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name(f"{title}, vision")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("idefics3")
    writer.add_vision_projector_scale_factor(config["scale_factor"])
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_preproc_image_size(processor["size"]["longest_edge"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(vision["layer_norm_eps"])
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    writer.add_vision_use_gelu(True)
    describe_precision(writer, precision)
    write(writer, vision_tensors(weights, config, precision))
