"""The text that every prompt of a model begins with."""

from __future__ import annotations

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
    unit = ImageUnit(np.zeros((1, 1, 3), np.uint8), "image", 0, 0, "", num_tokens=1, num_positions=1)
    picture = ImageGrid((unit,), 0, 0, ((), ()))
    try:
        before = [] if system is None else [Message("system", (system,))]
        plain = family.layout([*before, Message("user", ("a",))], tokenizer)
        if not plain.rules.text_prefix_ok:
            return None
        other = family.layout([*before, Message("user", (picture, "b") if has_vision else ("b",))], tokenizer)
    except EdgeVLError:  # the first request says what is wrong
        return None
    seen, said = _first_text(other), _first_text(plain)
    if has_vision and plain.rules.rollback == "any":
        common = len(seen)  # what is too much is trimmed
    else:
        common = next((place for place, (one, two) in enumerate(zip(seen, said, strict=False)) if one != two), 0)
    return TextChunk(seen[:common], 0) if common else None


def _first_text(plan: Plan) -> tuple[int, ...]:
    first = plan.chunks[0]
    return first.token_ids if isinstance(first, TextChunk) else ()
