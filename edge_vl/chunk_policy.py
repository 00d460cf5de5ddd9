"""How many tokens one prefill pass takes: a pure choice from a measured table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_vl.costs import Costs

__all__ = [
    "ANSWERING_CHUNK_TOKENS",
    "COST_TOLERANCE",
    "DEFAULT_CHUNK_TOKENS",
    "LEAST_CHUNK_TOKENS",
    "ChunkCost",
    "chunk_tokens",
]

DEFAULT_CHUNK_TOKENS = 256
"""Tokens of a pass where nothing was measured, and the most that any pass takes."""

ANSWERING_CHUNK_TOKENS = 64
"""Most tokens of a pass while an answer is running: it waits for the whole pass."""

LEAST_CHUNK_TOKENS = 16
"""Fewest tokens of a pass, however short it ought to be: below, the passes themselves are most of the work."""

COST_TOLERANCE = 1.2
"""A chunk is cheap enough if its tokens cost at most this many times what those of the best chunk do."""


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """One row of the chunk table: what passes of one size cost on this device.

    Attributes:
        num_tokens: tokens of a pass.
        token_s: seconds per token, passes of this size one after the other.
        utilisation: throughput as a share of the best size's at the same `past`, above 0, at most 1.
        alignment_tokens: tokens that wait, on average, between the end of an image unit and the next border of a chunk.
        logits_error: largest deviation of the last logits from those of one pass, relative to their range.
        past: entries that the cache held when the passes began.
    """

    num_tokens: int
    token_s: float
    utilisation: float
    alignment_tokens: float
    logits_error: float
    past: int = 0


def chunk_tokens(
    costs: Costs,
    *,
    sequence_tokens: int,
    image_tokens: int,
    text_tokens: int,
    is_answering: bool,
    max_stall_s: float,
) -> int:
    """Choose how many tokens a prefill pass takes.

    The smallest size whose tokens are cheap enough, so that whoever waits or cancels does not wait longer than it
    pays; then stretched so that passes end where an image unit ends, or cut a long text evenly.

    Args:
        costs: what was measured; without a chunk table the size is `DEFAULT_CHUNK_TOKENS`.
        sequence_tokens: entries that the cache holds; the rows measured nearest to it count.
        image_tokens: tokens of one image unit of the prompt; 0: there is none.
        text_tokens: text tokens that are to go in.
        is_answering: whether an answer is running that waits meanwhile.
        max_stall_s: the longest that a pass may take; infinity: any time.

    Returns:
        At least `LEAST_CHUNK_TOKENS` and at most `DEFAULT_CHUNK_TOKENS`. A pass of the least size may take longer than
        `max_stall_s`: something must go on.

    Source:
        The rule gcd(image tokens, text tokens, 256) for adaptive chunks. Differs: it is 1 for odd lengths, so the
        measured cost sets the least size, and units are divided evenly instead of by a common divisor. The tolerance of
        20 % follows the choice of chunk sizes in Sarathi-Serve, section 4 (arXiv 2403.02310).
    """
    rows = _rows_near(costs.chunk_table, sequence_tokens)
    most = ANSWERING_CHUNK_TOKENS if is_answering else DEFAULT_CHUNK_TOKENS
    most = max(LEAST_CHUNK_TOKENS, min(most, _tokens_within(costs, rows, max_stall_s)))
    if not rows:
        return most
    best_s = min(row.token_s for row in rows)
    cheap = min(row.num_tokens for row in rows if row.token_s <= COST_TOLERANCE * best_s)
    least = min(max(cheap, LEAST_CHUNK_TOKENS), most)
    return _aligned(least, most, image_tokens or text_tokens)


def _rows_near(table: Sequence[ChunkCost], sequence_tokens: int) -> list[ChunkCost]:
    """Return the rows of the `past` nearest to a length, smallest size first."""
    if not table:
        return []
    past = min({row.past for row in table}, key=lambda past: (abs(past - sequence_tokens), past))
    return sorted((row for row in table if row.past == past), key=lambda row: row.num_tokens)


def _tokens_within(costs: Costs, rows: Sequence[ChunkCost], limit_s: float) -> int:
    """Return how many tokens a pass of at most `limit_s` has."""
    if math.isinf(limit_s):
        return DEFAULT_CHUNK_TOKENS
    if rows:
        # Between two sizes, and beyond them, the smaller one's cost per token holds: never too low.
        fitting = [row for row in rows if row.num_tokens * row.token_s <= limit_s]
        row = fitting[-1] if fitting else rows[0]
        return int(limit_s / row.token_s)
    if costs.prefill_base_s is None or not costs.prefill_token_s:
        return DEFAULT_CHUNK_TOKENS
    return int(max(0.0, limit_s - costs.prefill_base_s) / costs.prefill_token_s)


def _aligned(least: int, most: int, unit_tokens: int) -> int:
    """Return a size from `least` to `most` whose borders meet the borders of units, where there is one.

    A unit larger than `least` is cut into equal parts; several smaller ones go in together.
    """
    if unit_tokens <= 0:
        return least
    if unit_tokens < least:
        together = math.ceil(least / unit_tokens) * unit_tokens
        return together if together <= most else least
    num_parts = unit_tokens // least
    even = math.ceil(unit_tokens / num_parts)
    return even if even <= most else least
