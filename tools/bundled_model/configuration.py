"""The JSON files beside the weights, as transformers writes them for an Idefics3 model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.bundled_model.tiling import LONGEST_EDGE, TILE
from tools.bundled_model.tokenizer import CHAT_TEMPLATE, END, FAKE, GLOBAL, IMAGE, IMAGE_TOKENS, MARKERS, load_tokenizer

CONTEXT = 2048


def configurations(folder: Path) -> dict[str, dict[str, Any]]:
    """Return file names and contents; token ids come from the folder's `tokenizer.json`."""
    tokenizer = load_tokenizer(folder)
    ids = {token: tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>", END, IMAGE)}
    bos, pad, eos = ids["<|im_start|>"], ids["<|im_end|>"], ids[END]
    return {
        "config.json": {
            "architectures": ["Idefics3ForConditionalGeneration"],
            "model_type": "idefics3",
            "torch_dtype": "float32",
            "image_token_id": ids[IMAGE],
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": pad,
            "scale_factor": 2,
            "tie_word_embeddings": True,
            "use_cache": True,
            "vision_config": {
                "model_type": "idefics3_vision",
                "hidden_size": 160,
                "intermediate_size": 640,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_channels": 3,
                "image_size": TILE,
                "patch_size": 8,
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-06,
                "attention_dropout": 0.0,
            },
            "text_config": {
                "model_type": "llama",
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 32,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-05,
                "rope_theta": 10000.0,
                "max_position_embeddings": CONTEXT,
                "vocab_size": tokenizer.get_vocab_size(),
                "attention_bias": False,
                "mlp_bias": False,
                "tie_word_embeddings": True,
                "bos_token_id": bos,
                "eos_token_id": eos,
                "pad_token_id": pad,
            },
        },
        "preprocessor_config.json": {
            "image_processor_type": "Idefics3ImageProcessor",
            "processor_class": "Idefics3Processor",
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"longest_edge": LONGEST_EDGE},
            "resample": 1,
            "do_image_splitting": True,
            "max_image_size": {"longest_edge": TILE},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "do_pad": True,
        },
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": IMAGE_TOKENS},
        "generation_config.json": {
            "_from_model_config": True,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": pad,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer",
            "processor_class": "Idefics3Processor",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
            "bos_token": "<|im_start|>",
            "eos_token": END,
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "additional_special_tokens": [FAKE, IMAGE, END],
            "chat_template": CHAT_TEMPLATE,
        },
        "special_tokens_map.json": {
            "bos_token": "<|im_start|>",
            "eos_token": END,
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "additional_special_tokens": [GLOBAL, *MARKERS, FAKE, IMAGE, END],
        },
    }


def write_configurations(folder: Path) -> dict[str, Any]:
    """Write every file, the chat template among them, and return the contents of `config.json`."""
    files = configurations(folder)
    for name, contents in files.items():
        (folder / name).write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return files["config.json"]
