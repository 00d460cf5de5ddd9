"""Ask vision-language models about what a camera sees, on the device that sees it.

Example:
    >>> from edge_vl import Runtime
    >>> with Runtime.open() as runtime:
    ...     for token in runtime.stream("door.jpg", "What is at the top left?"):
    ...         print(token.text, end="", flush=True)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_vl.answer import Answer, Token, Usage
    from edge_vl.answer_stream import AnswerStream
    from edge_vl.asking import AskOptions
    from edge_vl.async_answer_stream import AsyncAnswerStream
    from edge_vl.async_watch import AsyncWatch
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
    from edge_vl.sources.motion_gate import MotionGate
    from edge_vl.sources.open import open_source
    from edge_vl.sources.pushed import PushedFrames
    from edge_vl.trace import Span, Timings
    from edge_vl.watch import Watch
    from edge_vl.watch_counts import WatchCounts

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

# Nothing is imported before somebody asks for it: the command line has to follow signals before NumPy is loaded, and
# what needs asyncio or is for cameras is seldom wanted.
_HOMES = {
    "edge_vl.answer": ("Answer", "Token", "Usage"),
    "edge_vl.answer_stream": ("AnswerStream",),
    "edge_vl.asking": ("AskOptions",),
    "edge_vl.async_answer_stream": ("AsyncAnswerStream",),
    "edge_vl.async_watch": ("AsyncWatch",),
    "edge_vl.conversation": ("Conversation",),
    "edge_vl.errors": (
        "CacheFull",
        "Cancelled",
        "ConfigError",
        "ContextLengthError",
        "DeadlineExceeded",
        "EdgeVLError",
        "EngineError",
        "EngineFault",
        "EngineNotFound",
        "EngineUnavailable",
        "ImageError",
        "Interrupted",
        "MemoryBudgetError",
        "ModelError",
        "ProfileError",
        "QueueFull",
        "RequestError",
        "SinkError",
        "SourceError",
    ),
    "edge_vl.frame": ("Frame",),
    "edge_vl.runtime": ("Runtime",),
    "edge_vl.sources.motion_gate": ("MotionGate",),
    "edge_vl.sources.open": ("open_source",),
    "edge_vl.sources.pushed": ("PushedFrames",),
    "edge_vl.trace": ("Span", "Timings"),
    "edge_vl.watch": ("Watch",),
    "edge_vl.watch_counts": ("WatchCounts",),
}


def __getattr__(name: str) -> object:
    """Import what somebody asks for: a name of `__all__`, or a module."""
    from importlib import import_module
    from importlib.util import find_spec

    for home, names in _HOMES.items():
        if name in names:
            found: object = getattr(import_module(home), name)
            globals()[name] = found
            return found
    if name.isidentifier() and not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name what can be imported from here."""
    return sorted({*globals(), *__all__})
