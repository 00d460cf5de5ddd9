"""Tiny random models as GGUF files, one for each way in which llama.cpp's families differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edge_vl.model_spec import ModelSpec, read_model_spec

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 64, 2, 4, 2, 16, 96
CONTEXT = 4096
VISION_HIDDEN, VISION_LAYERS, VISION_HEADS, VISION_FEED_FORWARD = 32, 1, 2, 48
PATCH = 4
TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n"
    "{% if turn.content is string %}{{ turn.content }}{% else %}{% for part in turn.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = (
    *("<unk>", "<s>", "<|im_start|>", "<|im_end|>", "<start_of_image>", "<end_of_image>"),
    *("<|vision_start|>", "<|vision_end|>", "<img>", "</img>"),
)
USER_DEFINED = ("<tool>", "<too", "\n\n\n")
EOS, BOS = CONTROLS.index("<|im_end|>"), CONTROLS.index("<s>")


class Random:
    """Weights with a fixed seed."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def add(self, name: str, *shape: int, half: bool = False, mean: float = 0.0) -> None:
        values: NDArray[Any] = (mean + self._random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        self._writer.add_tensor(name, values.astype(np.float16) if half else values)

    def norm(self, name: str, size: int, *, bias: bool = False) -> None:
        self.add(f"{name}.weight", size, mean=1.0)
        if bias:
            self.add(f"{name}.bias", size)

    def linear(self, name: str, outputs: int, inputs: int) -> None:
        self.add(f"{name}.weight", outputs, inputs, half=True)
        self.add(f"{name}.bias", outputs)


def bytes_alphabet() -> list[str]:
    """Return the 256 characters of byte-level BPE, by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(0x100 + extra)
            extra += 1
    return [table[byte] for byte in range(256)]


def write_vocabulary(writer: gguf.GGUFWriter, *, add_bos: bool, pre: str) -> int:
    """Describe a byte-level vocabulary; return its size."""
    alphabet = bytes_alphabet()
    merges = ["r e", "re d", "Ġ t"]
    tokens = [*CONTROLS, *USER_DEFINED, *alphabet, *(merge.replace(" ", "") for merge in merges)]
    normal = [gguf.TokenType.NORMAL] * (len(alphabet) + len(merges))
    kinds = [gguf.TokenType.CONTROL] * len(CONTROLS) + [gguf.TokenType.USER_DEFINED] * len(USER_DEFINED) + normal
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(add_bos)
    return len(tokens)


def write_text(
    path: Path,
    architecture: str,
    *,
    add_bos: bool = False,
    hidden: int = HIDDEN,
    pre: str = "smollm",
    template: str | None = TEMPLATE,
    seed: int = 0,
    window: int = 0,
) -> None:
    """Write a text model: `llama`, `gemma3`, `qwen2vl` or `lfm2` (a layer with attention, one with a convolution)."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv([0, KV_HEADS] if architecture == "lfm2" else KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    if architecture == "qwen2vl":
        writer.add_rope_dimension_sections([2, 3, 3, 0])
    if architecture == "lfm2":
        writer.add_shortconv_l_cache(3)
    if window:
        writer.add_sliding_window(window)
    vocab_size = write_vocabulary(writer, add_bos=add_bos, pre=pre)
    if template is not None:
        writer.add_chat_template(template)
    random = Random(writer, seed)
    random.add("token_embd.weight", vocab_size, hidden, half=True)
    random.norm("token_embd_norm" if architecture == "lfm2" else "output_norm", hidden)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        random.norm(f"{block}.attn_norm", hidden)
        random.norm(f"{block}.ffn_norm", hidden)
        if architecture == "lfm2" and layer == 0:
            random.add(f"{block}.shortconv.conv.weight", hidden, 3)
            random.add(f"{block}.shortconv.in_proj.weight", 3 * hidden, hidden, half=True)
            random.add(f"{block}.shortconv.out_proj.weight", hidden, hidden, half=True)
        else:
            random.add(f"{block}.attn_q.weight", HEADS * HEAD_DIM, hidden, half=True)
            random.add(f"{block}.attn_k.weight", KV_HEADS * HEAD_DIM, hidden, half=True)
            random.add(f"{block}.attn_v.weight", KV_HEADS * HEAD_DIM, hidden, half=True)
            random.add(f"{block}.attn_output.weight", hidden, HEADS * HEAD_DIM, half=True)
            if architecture == "qwen2vl":
                for name, size in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                    random.add(f"{block}.attn_{name}.bias", size * HEAD_DIM)
            if architecture in ("gemma3", "lfm2"):
                random.norm(f"{block}.attn_q_norm", HEAD_DIM)
                random.norm(f"{block}.attn_k_norm", HEAD_DIM)
        if architecture == "gemma3":
            random.norm(f"{block}.post_attention_norm", hidden)
            random.norm(f"{block}.post_ffw_norm", hidden)
        random.add(f"{block}.ffn_gate.weight", FEED_FORWARD, hidden, half=True)
        random.add(f"{block}.ffn_up.weight", FEED_FORWARD, hidden, half=True)
        random.add(f"{block}.ffn_down.weight", hidden, FEED_FORWARD, half=True)
    finish(writer)


def write_vision(
    path: Path,
    projector: str,
    *,
    hidden: int = HIDDEN,
    image_size: int = 32,
    scale_factor: int = 2,
) -> None:
    """Write a vision encoder: `gemma3`, `qwen2vl_merger` or `internvl`."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(projector)
    writer.add_vision_projection_dim(hidden)
    writer.add_vision_image_size(image_size)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(VISION_HIDDEN)
    writer.add_vision_feed_forward_length(VISION_FEED_FORWARD)
    writer.add_vision_block_count(VISION_LAYERS)
    writer.add_vision_head_count(VISION_HEADS)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    writer.add_vision_projector_scale_factor(scale_factor)
    writer.add_vision_use_gelu(True)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    if projector == "internvl":
        writer.add_uint32("clip.vision.preproc_min_tiles", 1)
        writer.add_uint32("clip.vision.preproc_max_tiles", 6)
    random = Random(writer, 1)
    width, num_patches = VISION_HIDDEN, (image_size // PATCH) ** 2
    random.add("v.patch_embd.weight", width, 3, PATCH, PATCH, half=True)
    if projector == "qwen2vl_merger":
        random.add("v.patch_embd.weight.1", width, 3, PATCH, PATCH, half=True)
    else:
        random.add("v.patch_embd.bias", width)
        random.add("v.position_embd.weight", num_patches + (projector == "internvl"), width)
    if projector == "internvl":
        random.add("v.class_embd", width)
    for layer in range(VISION_LAYERS):
        block = f"v.blk.{layer}"
        random.norm(f"{block}.ln1", width, bias=True)
        random.norm(f"{block}.ln2", width, bias=True)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            random.linear(f"{block}.{name}", width, width)
        random.linear(f"{block}.ffn_up", VISION_FEED_FORWARD, width)
        random.linear(f"{block}.ffn_down", width, VISION_FEED_FORWARD)
        if projector == "internvl":
            random.norm(f"{block}.ls1", width)
            random.norm(f"{block}.ls2", width)
    if projector != "internvl":
        random.norm("v.post_ln", width, bias=True)
    merged = scale_factor**2 * width
    if projector == "gemma3":
        random.add("mm.input_projection.weight", width, hidden, half=True)
        random.norm("mm.soft_emb_norm", width)
    elif projector == "qwen2vl_merger":
        random.linear("mm.0", 4 * width, 4 * width)
        random.linear("mm.2", hidden, 4 * width)
    else:
        random.norm("mm.model.mlp.0", merged, bias=True)
        random.linear("mm.model.mlp.1", hidden, merged)
        random.linear("mm.model.mlp.3", hidden, hidden)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


PAIRS = {"gemma3": ("gemma3", "gemma3"), "qwen2vl": ("qwen2vl", "qwen2vl_merger"), "internvl": ("llama", "internvl")}
"""Text architecture and projector, by family."""


def write_pair(folder: Path, family: str, **vision: Any) -> ModelSpec:
    """Write both files of a family."""
    folder.mkdir(parents=True, exist_ok=True)
    architecture, projector = PAIRS[family]
    write_text(folder / "tiny-text-f16.gguf", architecture)
    write_vision(folder / "mmproj-tiny-f16.gguf", projector, **vision)
    return read_model_spec(folder)


def write_text_model(folder: Path, architecture: str = "llama", **text: Any) -> ModelSpec:
    """Write a text model alone."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "tiny-text-f16.gguf", architecture, **text)
    return read_model_spec(folder)
