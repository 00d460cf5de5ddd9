"""Exit codes of the command line."""

from __future__ import annotations

from edge_vl.errors import (
    Cancelled,
    ContextLengthError,
    DeadlineExceeded,
    EdgeVLError,
    EngineError,
    ImageError,
    MemoryBudgetError,
    ModelError,
    ProfileError,
    QueueFull,
    RequestError,
    SourceError,
)

__all__ = ["ANSWERED", "CANCELLED", "DIFFERENT", "INTERNAL", "USAGE", "exit_code"]

ANSWERED = 0
USAGE = 2
BAD_INPUT = 3
UNAVAILABLE = 4
MEMORY = 5
DEADLINE = 6
CANCELLED = 7
DIFFERENT = 8
INTERNAL = 70

_CODES: tuple[tuple[type[EdgeVLError], int], ...] = (
    (RequestError, USAGE),
    (ProfileError, USAGE),
    (ImageError, BAD_INPUT),
    (ContextLengthError, BAD_INPUT),
    (SourceError, BAD_INPUT),
    (EngineError, UNAVAILABLE),
    (ModelError, UNAVAILABLE),
    (QueueFull, UNAVAILABLE),
    (MemoryBudgetError, MEMORY),
    (DeadlineExceeded, DEADLINE),
    (Cancelled, CANCELLED),
)


def exit_code(error: EdgeVLError) -> int:
    """Return the exit code that tells a script what went wrong."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)
