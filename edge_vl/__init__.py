"""Ask vision-language models about what a camera sees, on the device that sees it.

Example:
    >>> from edge_vl import Runtime
    >>> with Runtime.open() as runtime:
    ...     for token in runtime.stream("door.jpg", "What is at the top left?"):
    ...         print(token.text, end="", flush=True)
"""

from typing import TYPE_CHECKING

from edge_vl.answer import Answer, Token, Usage
from edge_vl.answer_stream import AnswerStream
from edge_vl.asking import AskOptions
from edge_vl.conversation import Conversation
from edge_vl.errors import (
    CacheFull,
    Cancelled,
    ConfigError,
    ContextLengthError,
    DeadlineExceeded,
    EdgeVLError,
    EngineError,
    EngineFault,
    EngineNotFound,
    EngineUnavailable,
    ImageError,
    Interrupted,
    MemoryBudgetError,
    ModelError,
    ProfileError,
    QueueFull,
    RequestError,
    SinkError,
    SourceError,
)
from edge_vl.frame import Frame
from edge_vl.runtime import Runtime
from edge_vl.trace import Span, Timings
from edge_vl.watch import Watch
from edge_vl.watch_counts import WatchCounts

if TYPE_CHECKING:
    from edge_vl.async_answer_stream import AsyncAnswerStream
    from edge_vl.async_watch import AsyncWatch
    from edge_vl.sources.motion_gate import MotionGate
    from edge_vl.sources.open import open_source
    from edge_vl.sources.pushed import PushedFrames

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AnswerStream",
    "AskOptions",
    "AsyncAnswerStream",
    "AsyncWatch",
    "CacheFull",
    "Cancelled",
    "ConfigError",
    "ContextLengthError",
    "Conversation",
    "DeadlineExceeded",
    "EdgeVLError",
    "EngineError",
    "EngineFault",
    "EngineNotFound",
    "EngineUnavailable",
    "Frame",
    "ImageError",
    "Interrupted",
    "MemoryBudgetError",
    "ModelError",
    "MotionGate",
    "ProfileError",
    "PushedFrames",
    "QueueFull",
    "RequestError",
    "Runtime",
    "SinkError",
    "SourceError",
    "Span",
    "Timings",
    "Token",
    "Usage",
    "Watch",
    "WatchCounts",
    "__version__",
    "open_source",
]


def __getattr__(name: str) -> object:
    """Import what needs asyncio, or is for cameras, only when somebody asks for it."""
    if name == "AsyncAnswerStream":
        from edge_vl.async_answer_stream import AsyncAnswerStream

        return AsyncAnswerStream
    if name == "AsyncWatch":
        from edge_vl.async_watch import AsyncWatch

        return AsyncWatch
    if name == "MotionGate":
        from edge_vl.sources.motion_gate import MotionGate

        return MotionGate
    if name == "PushedFrames":
        from edge_vl.sources.pushed import PushedFrames

        return PushedFrames
    if name == "open_source":
        from edge_vl.sources.open import open_source

        return open_source
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
