"""What a client is told about an error. Pure."""

from __future__ import annotations

from edge_vl.errors import (
    ContextLengthError,
    DeadlineExceeded,
    EdgeVLError,
    ImageError,
    MemoryBudgetError,
    QueueFull,
    RequestError,
    SourceError,
)
from edge_vl.mqtt.messages import ErrorFacts, ErrorType

__all__ = ["MAX_MESSAGE_CHARS", "error_facts", "late"]

MAX_MESSAGE_CHARS = 600
"""Of an error's message on the wire; a broker or a log that cuts it elsewhere would cut it worse."""

_TYPES: tuple[tuple[type[EdgeVLError], ErrorType], ...] = (
    (RequestError, "invalid_request"),
    (ImageError, "image"),
    (SourceError, "image"),
    (ContextLengthError, "context_length"),
    (MemoryBudgetError, "memory_budget"),
    (DeadlineExceeded, "deadline_exceeded"),
    (QueueFull, "overloaded"),
)

_PARAMS = {
    "deadline_s": "deadline_ms",
    "max_frame_age_s": "max_frame_age_ms",
}
"""How fields of the Python interface are called on the wire."""


def error_facts(error: BaseException) -> ErrorFacts:
    """Return what a client is told about an error.

    Args:
        error: one of ours is told as it is; of any other only its kind is told, since its words may hold anything.
    """
    if not isinstance(error, EdgeVLError):
        return ErrorFacts("engine", f"the gateway failed at this request ({type(error).__name__}); its log says more")
    kind: ErrorType = next((type for kind, type in _TYPES if isinstance(error, kind)), "engine")
    return ErrorFacts(kind, _shortened(str(error)), _param(error))


def late(deadline_ms: int, stage: str) -> ErrorFacts:
    """Return what a client is told whose own deadline has passed."""
    message = f"the deadline of {deadline_ms} ms passed during {stage}"
    return ErrorFacts("deadline_exceeded", message, "deadline_ms")


def _param(error: EdgeVLError) -> str | None:
    if isinstance(error, RequestError):
        return _PARAMS.get(error.field, error.field)
    if isinstance(error, ImageError):
        return f"images[{error.index}]"
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 3] + "..."
