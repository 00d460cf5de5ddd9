"""A model folder with SmolVLM's markers, template and published settings, and a small tokenizer of the same kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge_vl.model_spec import ModelSpec, read_model_spec

BASE_CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>")
MARKERS = (
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    "<fake_token_around_image>",
    "<image>",
    "<|reserved_special_token_0|>",
    "<end_of_utterance>",
)
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
_CORPUS = (
    "User: What is in the picture?\nAssistant: There is a red circle at the top left of the picture.",
    "How many objects are there? Three objects: two squares and one triangle.\n\nDescribe this scene.",
    "Can you describe the image?\n\n\nIs there a blue square? Yes, there is. Grüße aus München, 画像 😀.",
)


def make_tokenizer_json() -> dict[str, Any]:
    """Train SmolLM2's kind of tokenizer on a few lines: byte-level BPE, digits apart, controls in the vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(BASE_CONTROLS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in MARKERS])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


def write_model_folder(
    folder: Path,
    *,
    longest_edge: int = 2048,
    tile_side: int = 512,
    patch_size: int = 16,
    scale_factor: int = 4,
    model_type: str = "smolvlm",
    preprocessor: dict[str, Any] | None = None,
) -> ModelSpec:
    """Write the files and read them back; `preprocessor` overrides single settings."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer_json()
    ids = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    files: dict[str, dict[str, Any]] = {
        "config.json": {
            "model_type": model_type,
            "scale_factor": scale_factor,
            "vision_config": {"image_size": tile_side, "patch_size": patch_size},
            "text_config": {"eos_token_id": 2},
        },
        "preprocessor_config.json": {
            "do_image_splitting": True,
            "do_resize": True,
            "size": {"longest_edge": longest_edge},
            "max_image_size": {"longest_edge": tile_side},
            "resample": 1,
            "rescale_factor": 1 / 255,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            **(preprocessor or {}),
        },
        "generation_config.json": {"eos_token_id": ids["<end_of_utterance>"]},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "bos_token": "<|im_start|>",
            "eos_token": "<end_of_utterance>",
            "pad_token": {"content": "<|im_end|>"},
            "unk_token": "<|endoftext|>",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return read_model_spec(folder)
