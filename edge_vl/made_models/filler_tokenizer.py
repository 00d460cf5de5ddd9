"""A made-up tokenizer of Qwen2.5's size, for a model whose real one is not at hand.

It is a byte-level BPE: all 256 bytes, pairs of lower-case letters, letters after a space, and pairs of pairs until the
vocabulary is full. English takes about two letters a token. The added tokens are those of Qwen2.5 and InternVL3, at
the ids that they have there.
"""

from __future__ import annotations

from itertools import islice, product
from string import ascii_letters, ascii_lowercase
from typing import Any

from edge_vl.errors import RequestError

__all__ = ["BOS", "EOS", "PAD", "filler_tokenizer"]

PAD, BOS, EOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

_SPACE = "\u0120"  # what the byte-level alphabet writes for a space
_PRINTABLE = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))
_QWEN = (
    PAD, BOS, EOS, "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>",
    "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
_INTERNVL = ("<img>", "</img>", "<IMG_CONTEXT>", "<quad>", "</quad>", "<ref>", "</ref>", "<box>", "</box>")


def filler_tokenizer(vocab_size: int) -> dict[str, Any]:
    """Build the part of a `tokenizer.json` that `describe_tokenizer` reads.

    Args:
        vocab_size: entries in all.

    Raises:
        RequestError: the size is below 1024 or above what pairs of pairs can fill.
    """
    added = (*_QWEN, *_INTERNVL)
    letters = [(first, second) for first, second in product(ascii_lowercase, repeat=2)]
    spaced = [(_SPACE, letter) for letter in ascii_letters]
    alphabet = _byte_alphabet()
    num_filler = vocab_size - len(alphabet) - len(letters) - len(spaced) - len(added)
    pairs = [first + second for first, second in letters]
    if not 0 <= num_filler <= len(pairs) ** 2:
        raise RequestError(f"a vocabulary of {vocab_size} cannot be made up", field="vocab_size")
    merges = [*letters, *spaced, *islice(product(pairs, repeat=2), num_filler)]
    tokens = [*alphabet, *(first + second for first, second in merges)]
    return {
        "model": {"vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges},
        "added_tokens": [{"id": index, "content": token} for index, token in enumerate(added, len(tokens))],
    }


def _byte_alphabet() -> list[str]:
    """Return the character that stands for each byte.

    Source:
        GPT-2's byte-level BPE: printable Latin-1 characters stand for themselves, all others, in order, for those from
        256 on.
    """
    printable = {code for codes in _PRINTABLE for code in codes}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
