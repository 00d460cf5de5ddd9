"""A model spec from GGUF files alone: their metadata holds what a folder in the Hugging Face layout has as JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from edge_vl.errors import ModelError
from edge_vl.gguf_header import GGUFHeader, read_gguf_header
from edge_vl.model_spec import GGUF_FAMILY, ModelSpec

__all__ = ["gguf_files", "read_gguf_spec"]

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")
_MAX_TEMPLATE_BYTES = 1 << 20


def gguf_files(folder: Path) -> tuple[Path, ...]:
    """Return the GGUF files of a model folder, `gguf/` first; of a split file only the first part."""
    found = (path for place in (folder / "gguf", folder) if place.is_dir() for path in sorted(place.glob("*.gguf")))
    return tuple(path for path in found if path.is_file() and not _LATER_PART.search(path.stem))


def read_gguf_spec(path: Path, *, name: str = "") -> ModelSpec:
    """Read a model that is nothing but GGUF files.

    Args:
        path: a folder with a text model's file and, for a model that sees, an mmproj file; or the text model's file.
        name: how to call it; by default as the file calls itself.

    Raises:
        ModelError: there is no text model, or its file cannot be used.
    """
    headers = [read_gguf_header(file) for file in gguf_files(path.parent if path.is_file() else path)]
    projector = next((header for header in headers if header.is_projector), None)
    if path.is_file():
        header = read_gguf_header(path)
        if header.is_projector:
            raise ModelError(f"{path} is a vision encoder (mmproj); name the text model's file", file=str(path))
        folder, only = path.parent, path
    else:
        texts = [header for header in headers if not header.is_projector]
        if not texts:
            raise ModelError(f"{path} has no GGUF file of a text model", file=str(path))
        names = {text.architecture for text in texts}
        if len(names) > 1:
            raise ModelError(
                f"{path} has text models of several kinds ({', '.join(sorted(names))}); name one file", file=str(path)
            )
        for other in texts[1:]:
            if _are_different(texts[0], other):
                raise ModelError(
                    f"{path} has different text models ({texts[0].path.name}, {other.path.name}); name one file",
                    file=str(path),
                )
        header, folder, only = texts[0], path, None
    return ModelSpec(
        name=name or (path.stem if only else path.resolve().name),
        path=folder,
        family=GGUF_FAMILY,
        config={
            "model_type": header.architecture,
            "text_config": _text_config(header),
            "vision_config": {} if projector is None else _vision_config(projector),
        },
        preprocessor={},
        generation={},
        chat_template=_chat_template(folder, header),
        tokenizer_file=header.path,
        tokenizer_config=_token_texts(header),
        file=only,
    )


def _are_different(header: GGUFHeader, other: GGUFHeader) -> bool:
    """Whether two text models are not quantisations of one.

    Two that do not give their names must at least differ in precision to be that.
    """
    if _text_config(header) != _text_config(other):
        return True
    is_named = False
    for key in ("general.basename", "general.name"):
        name, other_name = header.metadata.get(key), other.metadata.get(key)
        if name and other_name:
            is_named = True
            if name != other_name:
                return True
    key = "general.file_type"
    return not is_named and (header.dtype, header.metadata.get(key)) == (other.dtype, other.metadata.get(key))


def _text_config(header: GGUFHeader) -> dict[str, int]:
    """Return the dimensions under transformers' names; 0 where the file does not say."""
    heads, width = header.number("attention.head_count"), header.number("embedding_length")
    head_dim = header.number("attention.key_length") or (width // heads if heads else 0)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return {
        "hidden_size": width,
        "num_hidden_layers": header.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.number("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "intermediate_size": header.number("feed_forward_length"),
        "max_position_embeddings": header.number("context_length"),
        "vocab_size": len(tokens) if isinstance(tokens, list) else header.number("vocab_size"),
    }


def _vision_config(header: GGUFHeader) -> dict[str, int]:
    """Return the dimensions of a vision encoder under transformers' names; 0 where the file does not say."""
    return {
        "hidden_size": header.number("vision.embedding_length"),
        "num_hidden_layers": header.number("vision.block_count"),
        "num_attention_heads": header.number("vision.attention.head_count"),
        "image_size": header.number("vision.image_size"),
        "patch_size": header.number("vision.patch_size"),
    }


def _chat_template(folder: Path, header: GGUFHeader) -> str:
    """Return the template of the file; one beside it wins."""
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        try:
            if beside.stat().st_size > _MAX_TEMPLATE_BYTES:
                raise ModelError(f"{beside} is too large for a chat template", file=str(beside))
            return beside.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{beside} cannot be read: {error}", file=str(beside)) from error
    template = header.metadata.get("tokenizer.chat_template")
    if not isinstance(template, str) or not template:
        raise ModelError(
            f"{header.path} has no chat template; put a chat_template.jinja beside it", file=str(header.path)
        )
    return template


def _token_texts(header: GGUFHeader) -> dict[str, Any]:
    """Return the texts of the named tokens, which templates use."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    texts: dict[str, Any] = {}
    if not isinstance(tokens, list):
        return texts
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        token_id = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            texts[name] = tokens[token_id]
    return texts
