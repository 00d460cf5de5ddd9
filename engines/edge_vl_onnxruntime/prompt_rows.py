"""Rows of a prompt: what a run of chunks becomes before the decoder sees it, and what is checked on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import ImageEmbeds, KVCache, LanguageSpec, Prefillable
from edge_vl.errors import EngineFault
from edge_vl.plan import TextChunk
from edge_vl_onnxruntime.embedding import Embedding
from edge_vl_onnxruntime.session import ENGINE, reason

__all__ = ["check_ids", "check_room", "embed_run", "fault", "finite_row", "image_rows"]


def embed_run(run: Sequence[Prefillable], embedding: Embedding, spec: LanguageSpec, dtype: Any) -> NDArray[Any]:
    """Return the embeddings of a run; all its text is looked up in one call.

    Args:
        run: consecutive chunks.
        embedding: looks token ids up.
        spec: of the model.
        dtype: of the embeddings that its decoder takes.

    Returns:
        `dtype` (1, num_tokens, hidden_size).

    Raises:
        EngineFault: a token id is outside the vocabulary.
        ValueError: image embeds have another width.
    """
    token_ids = [token_id for part in run if isinstance(part, TextChunk) for token_id in part.token_ids]
    embeds = np.empty((1, sum(part.num_tokens for part in run), spec.hidden_size), dtype)
    if token_ids:
        check_ids(spec, "prefill", token_ids)
        text = embedding.many(token_ids)[0]
    row = text_row = 0
    for part in run:
        end = row + part.num_tokens
        if isinstance(part, ImageEmbeds):
            if part.values.shape[1:] != (spec.hidden_size,):
                raise ValueError(f"image embeds of shape {part.values.shape} do not fit a width of {spec.hidden_size}")
            embeds[0, row:end] = part.values
        else:
            embeds[0, row:end] = text[text_row : text_row + part.num_tokens]
            text_row += part.num_tokens
        row = end
    return embeds


def image_rows(run: Sequence[Prefillable]) -> NDArray[np.bool_]:
    """Return bool (num_tokens,), true for image tokens."""
    kinds = [isinstance(part, ImageEmbeds) for part in run]
    return np.repeat(np.array(kinds, np.bool_), [part.num_tokens for part in run])


def check_room(spec: LanguageSpec, cache: KVCache, stage: str, num_tokens: int) -> None:
    """Refuse a run that does not fit into the context.

    Raises:
        EngineFault: it does not, or is empty.
    """
    room = spec.context_length - cache.num_tokens
    if not 0 < num_tokens <= room:
        raise EngineFault(ENGINE, stage, f"{num_tokens} tokens where there is room for {room}")


def check_ids(spec: LanguageSpec, stage: str, token_ids: Sequence[int]) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        EngineFault: there is one.
    """
    if min(token_ids) < 0 or max(token_ids) >= spec.vocab_size:
        raise EngineFault(ENGINE, stage, f"a token id is outside the vocabulary of {spec.vocab_size}")


def finite_row(row: NDArray[Any]) -> NDArray[np.float32]:
    """Copy a row of logits, and refuse NaN and infinity; minus infinity forbids a token and is fine.

    Raises:
        ValueError: they are not finite.
    """
    logits = row.astype(np.float32)
    if not math.isfinite(logits.max()):
        raise ValueError("the logits are not finite")
    return logits


def fault(stage: str, error: Exception) -> EngineFault:
    """Return an error as an engine raises it."""
    return error if isinstance(error, EngineFault) else EngineFault(ENGINE, stage, reason(error))
