"""A byte-level BPE tokenizer as GGUF metadata."""

from __future__ import annotations

from typing import Any

import gguf

__all__ = ["describe_tokenizer"]


def describe_tokenizer(
    writer: gguf.GGUFWriter, tokenizer: dict[str, Any], *, pre: str, bos: int, eos: int, pad: int, unk: int = 0
) -> None:
    """Add the vocabulary and the merges.

    Args:
        writer: of the text model's file.
        tokenizer: the contents of `tokenizer.json`.
        pre: llama.cpp's name of the pre-tokenizer.
        bos: id of the token that begins a text; it is never added by itself.
        eos: id of the token that ends an answer.
        pad: id of the padding token.
        unk: id of the token for what the vocabulary lacks.
    """
    tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    special = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    tokens |= special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([tokens[index] for index in range(len(tokens))])
    kinds = (gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL for index in range(len(tokens)))
    writer.add_token_types(list(kinds))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_pad_token_id(pad)
    writer.add_unk_token_id(unk)
    writer.add_add_bos_token(False)
