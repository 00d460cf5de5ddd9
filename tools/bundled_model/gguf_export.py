"""The two GGUF files that llama.cpp's multimodal library loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

TEXT_FILE = "edge-vl-bundled-text-f16.gguf"
VISION_FILE = "mmproj-edge-vl-bundled-f16.gguf"

Weights = dict[str, NDArray[np.float32]]

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


def gguf_tensor(name: str, values: NDArray[np.float32], config: dict[str, Any]) -> NDArray[np.generic]:
    """Return a parameter as llama.cpp stores it: matrices in half precision, norms, biases and positions in single."""
    text = config["text_config"]
    if name.startswith("model.text_model.") and name.endswith(("q_proj.weight", "k_proj.weight")):
        is_query = name.endswith("q_proj.weight")
        values = interleave(values, text["num_attention_heads" if is_query else "num_key_value_heads"])
    return values.astype(np.float16) if values.ndim > 1 and "position_embedding" not in name else values


def export_gguf(weights: Weights, config: dict[str, Any], model_folder: Path, folder: Path) -> None:
    """Write the text and the vision file; the tokenizer comes from `tokenizer.json` of the model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text_writer = gguf.GGUFWriter(folder / TEXT_FILE, "llama")
    _describe_text(text_writer, config, model_folder)
    vision_writer = gguf.GGUFWriter(folder / VISION_FILE, "clip")
    _describe_vision(vision_writer, config, model_folder)
    for name, values in sorted(weights.items()):
        writer = text_writer if name.startswith("model.text_model.") else vision_writer
        writer.add_tensor(gguf_name(name), gguf_tensor(name, values, config))
    for writer in (text_writer, vision_writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _describe_text(writer: gguf.GGUFWriter, config: dict[str, Any], model_folder: Path) -> None:
    text = config["text_config"]
    writer.add_name("edge_vl bundled")
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
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    tokenizer = json.loads((model_folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    special = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    tokens |= special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([tokens[index] for index in range(len(tokens))])
    kinds = (gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL for index in range(len(tokens)))
    writer.add_token_types(list(kinds))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(text["bos_token_id"])
    writer.add_eos_token_id(text["eos_token_id"])
    writer.add_pad_token_id(text["pad_token_id"])
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template((model_folder / "chat_template.jinja").read_text(encoding="utf-8"))


def _describe_vision(writer: gguf.GGUFWriter, config: dict[str, Any], model_folder: Path) -> None:
    vision = config["vision_config"]
    processor = json.loads((model_folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    writer.add_name("edge_vl bundled, vision")
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
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
