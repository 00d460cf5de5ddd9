"""One fact that a check of a gateway has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from edge_vl.errors import EdgeVLError
from edge_vl.sources.address import masked

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact.

    Attributes:
        level: `ok`; `note`: works, but somebody should know; `problem`: does not work.
        subject: what it is about, such as `broker` or `camera door`.
        text: what was found, and what to do about it; never holds a password.
        error: of a problem; None otherwise.
    """

    level: Literal["ok", "note", "problem"]
    subject: str
    text: str
    error: EdgeVLError | None = None

    @classmethod
    def problem(cls, subject: str, error: EdgeVLError) -> Self:
        """Return what an error says."""
        return cls("problem", subject, masked(" ".join(str(error).split())), error)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        error = None if self.error is None else type(self.error).__name__
        return {"level": self.level, "subject": self.subject, "text": self.text, "error": error}
