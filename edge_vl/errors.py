"""Every error that edge_vl raises on purpose.

EdgeVLError
 +- ConfigError           path, key, expected, got
 |   +- ProfileError
 +- EngineError           engine
 |   +- EngineNotFound       known
 |   +- EngineUnavailable    missing, install
 |   +- EngineFault          stage, cause
 |   +- CacheFull            num_tokens
 +- ModelError            file
 +- ImageError            index, detected
 +- RequestError          field
 +- ContextLengthError    num_tokens, max_context
 +- MemoryBudgetError     needed_bytes, budget_bytes
 +- QueueFull             num_waiting, max_waiting
 +- Interrupted           stage, text
 |   +- DeadlineExceeded     deadline_s
 |   +- Cancelled
 +- SourceError
 +- SinkError
 |   +- BrokerError          reason
 +- RemoteError           type, param
 +- Aborted               reason, text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

__all__ = [
    "Aborted",
    "BrokerError",
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
    "RemoteError",
    "RequestError",
    "SinkError",
    "SourceError",
]

BrokerReason = Literal["unreachable", "lost", "refused", "unheard", "taken_over", "tls", "unsupported"]


class EdgeVLError(Exception):
    """Base of every error that edge_vl raises on purpose."""

    def again(self) -> Self:
        """Return an equal error to raise.

        An error that is kept and raised itself would hold, through its traceback, everything that its raisers know.
        """
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        copy.__cause__ = self.__cause__
        return copy


class ConfigError(EdgeVLError):
    """A configuration file says something that cannot be used."""

    def __init__(self, message: str, *, path: str, key: str, expected: str, got: str) -> None:
        """Keep where in which file the trouble is."""
        super().__init__(message)
        self.path = path
        self.key = key
        self.expected = expected
        self.got = got


class ProfileError(ConfigError):
    """A device profile says something that cannot be used."""


class EngineError(EdgeVLError):
    """Something about one engine."""

    def __init__(self, message: str, *, engine: str) -> None:
        """Keep the engine's name."""
        super().__init__(message)
        self.engine = engine


class EngineNotFound(EngineError):
    """No installed package offers an engine of that name."""

    def __init__(self, engine: str, known: Sequence[str]) -> None:
        """Name the engines that are known."""
        super().__init__(f"no engine named {engine!r}; known engines: {', '.join(known) or 'none'}", engine=engine)
        self.known = tuple(known)


class EngineUnavailable(EngineError):
    """The engine is known, but what it needs is missing on this machine."""

    def __init__(self, engine: str, missing: str, install: str = "") -> None:
        """Say what is missing and, where there is one, the command that installs it."""
        hint = f"; install it with: {install}" if install else ""
        super().__init__(f"engine {engine!r} is not available: {missing}{hint}", engine=engine)
        self.missing = missing
        self.install = install


class EngineFault(EngineError):
    """An engine failed while working: its result cannot be used."""

    def __init__(self, engine: str, stage: str, cause: BaseException | str) -> None:
        """Keep the stage (load, encode, prefill, decode) and the cause."""
        super().__init__(f"engine {engine!r} failed in {stage}: {cause}", engine=engine)
        self.stage = stage
        self.cause = cause


class CacheFull(EngineError):
    """The memory that all KV caches of a language model share, or that of the system, is used up."""

    def __init__(self, engine: str, num_tokens: int, *, is_system: bool = False) -> None:
        """Keep how many entries there was no room for; 0: for one more cache.

        Args:
            engine: whose caches.
            num_tokens: entries that there was no room for; 0: one more cache.
            is_system: it is the system that has no more memory.
        """
        what = f"{num_tokens} more entries" if num_tokens else "one more cache"
        remedy = "with a KV cache of fewer bits, such as kv='int8'" if is_system else "with a larger context_length"
        super().__init__(
            f"engine {engine!r} has no room for {what} in its KV cache; close conversations that are not needed, or "
            f"open the runtime {remedy}",
            engine=engine,
        )
        self.num_tokens = num_tokens


class ModelError(EdgeVLError):
    """A model's files do not fit together or cannot be read."""

    def __init__(self, message: str, *, file: str) -> None:
        """Keep the file that does not match."""
        super().__init__(message)
        self.file = file


class ImageError(EdgeVLError):
    """A picture cannot be used."""

    def __init__(self, message: str, *, index: int = 0, detected: str = "") -> None:
        """Keep which picture of the request it was and what was found instead."""
        super().__init__(message)
        self.index = index
        self.detected = detected


class RequestError(EdgeVLError, ValueError):
    """A request's own values make no sense (a negative temperature, an empty question)."""

    def __init__(self, message: str, *, field: str) -> None:
        """Keep the name of the value."""
        super().__init__(message)
        self.field = field


class ContextLengthError(EdgeVLError):
    """The prompt leaves no room for an answer in the model's context."""

    def __init__(self, num_tokens: int, max_context: int, *, num_answer_tokens: int = 1) -> None:
        """Keep both numbers, and say how much of the context is for the answer."""
        part = "one" if num_answer_tokens == 1 else num_answer_tokens
        super().__init__(
            f"the prompt has {num_tokens} tokens and the context holds {max_context}, {part} of them for the answer; "
            "use fewer or smaller pictures, a shorter question, or a new conversation"
        )
        self.num_tokens = num_tokens
        self.max_context = max_context


class MemoryBudgetError(EdgeVLError):
    """What was asked for does not fit into the memory it may use."""

    def __init__(self, message: str, *, needed_bytes: int, budget_bytes: int) -> None:
        """Keep both numbers."""
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes


class QueueFull(EdgeVLError):
    """Too many requests wait already; this one was not taken."""

    def __init__(self, num_waiting: int, max_waiting: int) -> None:
        """Keep both numbers."""
        super().__init__(f"{num_waiting} requests wait already and at most {max_waiting} may; ask again later")
        self.num_waiting = num_waiting
        self.max_waiting = max_waiting


class Interrupted(EdgeVLError):
    """A request ended before its answer did."""

    def __init__(self, message: str, *, stage: str, text: str = "") -> None:
        """Keep the stage reached (one of `edge_vl.trace.Stage`) and the text so far."""
        super().__init__(message)
        self.stage = stage
        self.text = text


class DeadlineExceeded(Interrupted):
    """The deadline passed first."""

    def __init__(self, deadline_s: float, *, stage: str, text: str = "", what: str = "the deadline") -> None:
        """Keep the limit that was asked for: seconds from the call, or of the age of its frame."""
        reason = (
            f"the deadline of {deadline_s:g} s passed" if what == "the deadline" else f"{what} passed {deadline_s:g} s"
        )
        super().__init__(f"{reason} during {stage}", stage=stage, text=text)
        self.deadline_s = deadline_s


class Cancelled(Interrupted):
    """Somebody cancelled the request."""

    def __init__(self, *, stage: str, text: str = "") -> None:
        """Keep how far the request had come."""
        super().__init__(f"cancelled during {stage}", stage=stage, text=text)


class SourceError(EdgeVLError):
    """A source of frames cannot be opened or read."""


class SinkError(EdgeVLError):
    """An answer cannot be delivered."""


class BrokerError(SinkError):
    """An MQTT broker cannot be used."""

    def __init__(self, message: str, *, reason: BrokerReason) -> None:
        """Keep why: `unreachable`, `lost` and `unheard` may pass, the others will not without somebody's help."""
        super().__init__(message)
        self.reason = reason


class RemoteError(EdgeVLError):
    """A gateway answered a request with an error."""

    def __init__(self, message: str, *, type: str, param: str | None = None) -> None:
        """Keep the kind, one of `edge_vl.mqtt.messages.ErrorType`, and the request's field that it is about."""
        super().__init__(message)
        self.type = type
        self.param = param


class Aborted(EdgeVLError):
    """A gateway gave a request up, or is gone."""

    def __init__(self, reason: str, *, text: str = "", hint: str = "") -> None:
        """Keep why and the text so far.

        Args:
            reason: one of `edge_vl.mqtt.messages.AbortReason`, or `nobody`: there is no gateway to answer.
            text: the answer as far as it came.
            hint: more, for a person.
        """
        super().__init__(f"the request was aborted: {reason}" + (f"; {hint}" if hint else ""))
        self.reason = reason
        self.text = text
