"""Messages of a conversation, as a family lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edge_vl.plan import ImageGrid

__all__ = ["Message"]


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One turn's contribution.

    Attributes:
        role: who speaks.
        parts: texts and pictures, in order. Text of a user or an answer never becomes a marker token.
    """

    role: Literal["system", "user", "assistant"]
    parts: tuple[str | ImageGrid, ...]
