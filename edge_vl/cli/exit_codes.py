"""Exit codes of the command line."""

from __future__ import annotations

from edge_vl.errors import (
    Aborted,
    BrokerError,
    Cancelled,
    ConfigError,
    ContextLengthError,
    DeadlineExceeded,
    EdgeVLError,
    EngineError,
    ImageError,
    MemoryBudgetError,
    ModelError,
    QueueFull,
    RemoteError,
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
    (ConfigError, USAGE),
    (ImageError, BAD_INPUT),
    (ContextLengthError, BAD_INPUT),
    (SourceError, BAD_INPUT),
    (EngineError, UNAVAILABLE),
    (ModelError, UNAVAILABLE),
    (QueueFull, UNAVAILABLE),
    (BrokerError, UNAVAILABLE),
    (MemoryBudgetError, MEMORY),
    (DeadlineExceeded, DEADLINE),
    (Cancelled, CANCELLED),
)

_REMOTE_CODES = {
    "invalid_request": USAGE,
    "image": BAD_INPUT,
    "context_length": BAD_INPUT,
    "memory_budget": MEMORY,
    "deadline_exceeded": DEADLINE,
}
"""By the kind of a gateway's error; the others are `UNAVAILABLE`."""


def exit_code(error: EdgeVLError) -> int:
    """Return the exit code that tells a script what went wrong."""
    if isinstance(error, RemoteError):
        return _REMOTE_CODES.get(error.type, UNAVAILABLE)
    if isinstance(error, Aborted):
        return CANCELLED if error.reason == "cancelled" else UNAVAILABLE
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)
