"""The two GGUF files of an InternVL3 model that llama.cpp's multimodal library loads.

Source:
    conversion/qwen.py and conversion/internvl.py of ggml-org/llama.cpp, and tools/mtmd/clip.cpp: names and metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf

from edge_vl.made_models.filler_tokenizer import BOS, EOS, PAD
from edge_vl.made_models.gguf_file import Tensor, describe_precision, stored_type, write
from edge_vl.made_models.parameters import internvl3_text_parameters, internvl3_vision_parameters
from edge_vl.made_models.shapes import ModelShape
from edge_vl.made_models.tokenizer_gguf import describe_tokenizer
from edge_vl.made_models.weights import Shape, Weights

__all__ = ["CHAT_TEMPLATE", "write_text", "write_vision"]

CHAT_TEMPLATE = (
    "{% for turn in messages %}"
    "<|im_start|>{{ turn.role }}{{ '\\n' }}"
    "{% if turn.content is string %}{{ turn.content }}{% else %}"
    "{% for part in turn.content %}"
    "{% if part.type == 'image' %}<image>{{ '\\n' }}{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}"
    "<|im_end|>{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)

_IMAGE_MEAN = [0.485, 0.456, 0.406]
_IMAGE_STD = [0.229, 0.224, 0.225]
_MIN_TILES, _MAX_TILES = 1, 12


def write_text(
    path: Path, title: str, weights: Weights, shape: ModelShape, tokenizer: dict[str, Any], precision: str
) -> None:
    """Write the text model's file.

    Args:
        path: of the file.
        title: what the model calls itself.
        weights: parameters under llama.cpp's names.
        shape: of the family `internvl3`.
        tokenizer: with `<img>`, `</img>` and the tokens of a turn.
        precision: a key of `gguf_file.FILE_TYPES`.
    """
    text = shape.text
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name(title)
    writer.add_context_length(text.max_positions)
    writer.add_embedding_length(text.hidden_size)
    writer.add_block_count(text.num_layers)
    writer.add_feed_forward_length(text.ffn_size)
    writer.add_head_count(text.num_heads)
    writer.add_head_count_kv(text.num_kv_heads)
    writer.add_rope_freq_base(text.rope_theta)
    writer.add_layer_norm_rms_eps(text.rms_eps)
    describe_precision(writer, precision)
    added = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    describe_tokenizer(writer, tokenizer, pre="qwen2", bos=added[BOS], eos=added[EOS], pad=added[PAD], unk=added[PAD])
    writer.add_chat_template(CHAT_TEMPLATE)
    write(writer, _tensors(weights, internvl3_text_parameters(shape), precision))


def write_vision(path: Path, title: str, weights: Weights, shape: ModelShape, precision: str) -> None:
    """Write the vision encoder's file (mmproj); see `write_text`."""
    vision = shape.vision
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name(f"{title}, vision")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("internvl")
    writer.add_vision_projector_scale_factor(vision.shuffle)
    writer.add_vision_projection_dim(shape.text.hidden_size)
    writer.add_vision_image_size(vision.tile_side)
    writer.add_vision_patch_size(vision.patch_side)
    writer.add_vision_embedding_length(vision.hidden_size)
    writer.add_vision_feed_forward_length(vision.ffn_size)
    writer.add_vision_block_count(vision.num_layers)
    writer.add_vision_head_count(vision.num_heads)
    writer.add_vision_attention_layernorm_eps(vision.norm_eps)
    writer.add_vision_image_mean(_IMAGE_MEAN)
    writer.add_vision_image_std(_IMAGE_STD)
    writer.add_vision_use_gelu(True)
    writer.add_uint32("clip.vision.preproc_min_tiles", _MIN_TILES)
    writer.add_uint32("clip.vision.preproc_max_tiles", _MAX_TILES)
    describe_precision(writer, precision)
    write(writer, _tensors(weights, internvl3_vision_parameters(shape), precision))


def _tensors(weights: Weights, parameters: dict[str, Shape], precision: str) -> Iterator[Tensor]:
    for name, size in parameters.items():
        kind = stored_type(name, size, precision, is_head=name == "token_embd.weight")
        yield Tensor(name, size, kind, partial(weights.values, name))
