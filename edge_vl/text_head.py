"""The text that every prompt of a model begins with."""

from __future__ import annotations

from typing import Literal

import numpy as np

from edge_vl.engine import Tokenizer
from edge_vl.errors import EdgeVLError
from edge_vl.families import Family
from edge_vl.message import Message
from edge_vl.plan import ImageGrid, ImageUnit, Plan, TextChunk

__all__ = ["text_head"]


def text_head(family: Family, tokenizer: Tokenizer, *, has_vision: bool, system: str | None = None) -> TextChunk | None:
    """Return the text before the first picture of a prompt, which can be prefilled before any picture is there.

    Args:
        family: lays prompts out.
        tokenizer: of the model.
        has_vision: whether prompts may have pictures.
        system: instructions that they begin with.

    Returns:
        None where there is no such text, or where a picture changes what comes before it.
    """
    before = [] if system is None else [Message("system", (system,))]
    asked: list[tuple[ImageGrid | str, ...]] = [("a",)]
    if has_vision:
        asked = [(_picture("image"), "a"), (_picture("tile", "thumbnail"), "b")]
    try:
        plans = [family.layout([*before, Message("user", parts)], tokenizer) for parts in (*asked, ("c",))]
    except EdgeVLError:  # the first request says what is wrong
        return None
    if not plans[0].rules.text_prefix_ok:
        return None
    texts = [_first_text(plan) for plan in plans]
    if has_vision and plans[0].rules.rollback == "any":
        del texts[-1]  # what a question without a picture has less is trimmed
    common = texts[0]
    for text in texts[1:]:
        same = [one for one, other in zip(common, text, strict=False) if one == other]
        differs = next(
            (place for place, (one, other) in enumerate(zip(common, text, strict=False)) if one != other), None
        )
        common = common[: len(same) if differs is None else differs]
    return TextChunk(common, 0) if common else None


def _picture(*kinds: Literal["tile", "thumbnail", "image"]) -> ImageGrid:
    """Return a stand-in for a picture: nobody looks at its pixels."""
    pixels, count = np.zeros((1, 1, 3), np.uint8), int(len(kinds) > 1)
    units = tuple(
        ImageUnit(pixels, kind, int(kind == "tile"), int(kind == "tile"), "", num_tokens=1, num_positions=1)
        for kind in kinds
    )
    return ImageGrid(units, count, count, ((),) * (len(units) + 1))


def _first_text(plan: Plan) -> tuple[int, ...]:
    first = plan.chunks[0]
    return first.token_ids if isinstance(first, TextChunk) else ()
