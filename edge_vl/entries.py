"""What the entries of a prompt or of a cache are, so that equal ones are found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edge_vl.plan import Chunk, TextChunk

__all__ = ["Entries", "entries_of", "num_common"]

Entries = NDArray[np.int64]
"""int64 (num_tokens, 2): 0 and the id of a text token, or two halves of an image token's content key and row."""


def entries_of(chunks: Iterable[Chunk]) -> Entries:
    """Return the entries of chunks, int64 (num_tokens, 2)."""
    parts = [
        _text(chunk.token_ids) if isinstance(chunk, TextChunk) else _image(chunk.unit.key, chunk.num_tokens)
        for chunk in chunks
    ]
    return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)


def num_common(one: Entries, other: Entries) -> int:
    """Return the length of the longest common beginning."""
    count = min(len(one), len(other))
    differs = (one[:count, 0] != other[:count, 0]) | (one[:count, 1] != other[:count, 1])
    place = int(differs.argmax()) if count else 0
    return place if count and differs[place] else count


def _text(token_ids: tuple[int, ...]) -> Entries:
    entries = np.zeros((len(token_ids), 2), np.int64)
    entries[:, 1] = token_ids
    return entries


def _image(key: str, num_tokens: int) -> Entries:
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    halves = np.frombuffer(digest, np.int64)
    entries = np.empty((num_tokens, 2), np.int64)
    entries[:, 0] = halves[0] or 1
    entries[:, 1] = halves[1] ^ np.arange(num_tokens, dtype=np.int64)
    return entries
