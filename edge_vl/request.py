"""A request on its way through the runtime."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from edge_vl.answer import Answer, Token
from edge_vl.errors import Cancelled, DeadlineExceeded, EdgeVLError, RequestError
from edge_vl.option_checks import require_number, require_whole_number
from edge_vl.sampling import Sampling
from edge_vl.trace import Stage, Trace

__all__ = ["CancelFlag", "Event", "Generation", "Progress", "Request", "Reuse", "Settled"]

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_DEADLINE_S = 10_000_000
"""A third of a year; whoever has no deadline leaves it out."""


Reuse = Literal["exact", "perceptual", "approximate"]
"""What may be reused of the frame before: what is equal; also tiles that look the same; also the KV behind them."""

MAX_NAME_CHARS = 200
MAX_EARLY_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request has come.

    Attributes:
        fraction: share of its device time that is behind it, 0 to 1; 0 where costs are not known yet.
        remaining_s: device time that it still needs; None: not known.
    """

    fraction: float
    remaining_s: float | None


class CancelFlag(Protocol):
    """Anything that says whether to stop; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """Say whether to stop."""
        ...


@dataclass(frozen=True, slots=True)
class Generation:
    """How an answer is to be made.

    Attributes:
        sampling: how tokens are chosen.
        max_tokens: most tokens of the answer, at least 1.
        stop: strings that end the answer and are not part of it.
        deadline_s: seconds from the call until the whole answer must be there; None: no limit.
        cancel: looked at between units of work; once set, the request ends.
        max_frame_age_s: most seconds from the moment the picture was taken until the whole answer; None: no limit.
        reuse: what of the frame before may be reused.
        stream: name of the stream of frames it belongs to; its requests share one account of device time.
        share: weight of that stream.
        early_tokens: most tokens that may be shown before the whole picture is in, each labelled `early`.
        degrade: whether the picture may be seen in fewer tiles where the deadline would not hold otherwise.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    deadline_s: float | None = None
    cancel: CancelFlag | None = None
    max_frame_age_s: float | None = None
    reuse: Reuse = "exact"
    stream: str = ""
    share: float = 1.0
    early_tokens: int = 0
    degrade: bool = True

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            RequestError: naming the field and its range.
        """
        require_whole_number(self.max_tokens, "max_tokens", 1)
        if self.deadline_s is not None:
            require_number(
                self.deadline_s, "deadline_s", 1e-9, MAX_DEADLINE_S, "above 0 (leave it out for no deadline)"
            )
        if self.max_frame_age_s is not None:
            require_number(
                self.max_frame_age_s, "max_frame_age_s", 1e-9, MAX_DEADLINE_S, "above 0 (leave it out for no limit)"
            )
        require_number(self.share, "share", 0.01, 100, "from 0.01 to 100")
        require_whole_number(self.early_tokens, "early_tokens", 0)
        if self.early_tokens > MAX_EARLY_TOKENS:
            raise RequestError(f"early_tokens is at most {MAX_EARLY_TOKENS}", field="early_tokens")
        if not isinstance(self.reuse, str) or self.reuse not in get_args(Reuse):
            raise RequestError(f"reuse is {', '.join(get_args(Reuse))}, not {self.reuse!r:.60}", field="reuse")
        if not isinstance(self.stream, str) or len(self.stream) > MAX_NAME_CHARS:
            raise RequestError(f"stream is a name of at most {MAX_NAME_CHARS} characters", field="stream")
        if not isinstance(self.degrade, bool):
            raise RequestError(f"degrade is True or False, not {self.degrade!r:.60}", field="degrade")
        if self.cancel is not None and not callable(getattr(self.cancel, "is_set", None)):
            raise RequestError("cancel must have is_set(), as a threading.Event has", field="cancel")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"at most {MAX_STOP_STRINGS} stop strings, not {len(self.stop)}", field="stop")
        for text in self.stop:
            if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_CHARS:
                raise RequestError(
                    f"a stop string has 1 to {MAX_STOP_CHARS} characters, not {text!r:.60}", field="stop"
                )


Event = Token | Answer | EdgeVLError


class Settled(Exception):
    """The request has its outcome already; stop working on it."""


class Request:
    """One question on its way: its clock, its outcome and everybody who may decide it.

    The worker, the caller's own deadline clock and `cancel` all may settle it; the first one wins and the others see
    that it is settled. Events arrive at `emit` in order: tokens, then exactly one answer or error.
    """

    def __init__(self, generation: Generation, emit: Callable[[Event], None]) -> None:
        """Start the clock.

        Args:
            generation: how the answer is to be made.
            emit: takes events; called from several threads, never at the same time, and must not block.
        """
        self.generation = generation
        self.trace = Trace()
        self.stage: Stage = "queue"
        self.captured_s: float | None = None  # of its oldest picture, on the monotonic clock
        self.num_similar = 0  # units that were replaced by ones that look the same
        self.degraded: tuple[str, ...] = ()
        self.estimate: Callable[[], Progress] | None = None
        self._emit = emit
        self._lock = threading.RLock()  # a stream may be dropped, and so cancel, in the middle of `add_tokens`
        self._texts: list[str] = []
        self._is_settled = False
        self._has_left = False
        self._on_left: Callable[[], object] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the outcome is decided."""
        return self._is_settled

    @property
    def has_left(self) -> bool:
        """Whether the runtime has let go of it: no unit of work of it runs any more, and its room is free."""
        return self._has_left

    def leave(self) -> None:
        """Note that the runtime has let go of it. From any thread."""
        with self._lock:
            self._has_left = True
            on_left = self._on_left
        if on_left is not None:
            on_left()

    def when_left(self, call: Callable[[], object]) -> None:
        """Have something called when the runtime lets go of it, from any thread; at once if it has."""
        with self._lock:
            self._on_left = call
            has_left = self._has_left
        if has_left:
            call()

    @property
    def limit_s(self) -> float | None:
        """Moment on the monotonic clock at which the answer is too late; None: never."""
        generation = self.generation
        if generation.deadline_s is None and generation.max_frame_age_s is None:
            return None
        limits = []
        if generation.deadline_s is not None:
            limits.append(self.trace.started_s + float(generation.deadline_s))
        if generation.max_frame_age_s is not None and self.captured_s is not None:
            limits.append(self.captured_s + float(generation.max_frame_age_s))
        return min(limits, default=None)

    @property
    def remaining_s(self) -> float | None:
        """Seconds left until the limit, maybe negative; None without one."""
        limit_s = self.limit_s
        return None if limit_s is None else limit_s - time.monotonic()

    def note_captured(self, captured_s: float) -> None:
        """Note when a picture was taken, on the monotonic clock; the oldest one counts."""
        self.captured_s = captured_s if self.captured_s is None else min(self.captured_s, captured_s)

    @property
    def frame_age_s(self) -> float | None:
        """Seconds since its oldest picture was taken; None without one."""
        return None if self.captured_s is None else time.monotonic() - self.captured_s

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        if self._is_settled:
            return Progress(1.0, 0.0)
        return Progress(0.0, None) if self.estimate is None else self.estimate()

    def check(self) -> None:
        """Settle the request if its deadline has passed or it was cancelled. Called between units of work.

        Raises:
            Settled: there is nothing left to do for it.
        """
        if not self._is_settled:
            flag = self.generation.cancel
            remaining_s = self.remaining_s
            if flag is not None and self._is_set(flag):
                self.cancel()
            elif remaining_s is not None and remaining_s <= 0:
                self.expire()
        if self._is_settled:
            raise Settled

    def _is_set(self, flag: CancelFlag) -> bool:
        """Ask the caller's flag; if that fails, it is the caller's error and no engine's."""
        try:
            return bool(flag.is_set())
        except BaseException as error:  # whatever a caller's flag raises must not end what others asked for
            self.settle(RequestError(f"cancel.is_set() failed: {error!r}", field="cancel"))
            return False

    def begin(self, stage: Stage) -> None:
        """Note the stage reached, then check."""
        self.stage = stage
        self.check()

    def add_tokens(self, tokens: Sequence[Token]) -> None:
        """Stream tokens, unless the request is settled."""
        with self._lock:
            if not self._is_settled:
                for token in tokens:
                    if token.kind == "text":
                        self._texts.append(token.text)
                    self._emit(token)

    def settle(self, outcome: Answer | EdgeVLError, before: Callable[[], None] | None = None) -> bool:
        """Decide the outcome.

        Args:
            outcome: the answer or the error.
            before: called first if this call is the one that decides, while nobody can see the outcome yet.

        Returns:
            Whether this call was the one that decided.
        """
        with self._lock:
            if self._is_settled:
                return False
            if before is not None:
                before()
            self._is_settled = True
            self._emit(outcome)
            return True

    def cancel(self) -> None:
        """Settle as cancelled. From any thread; does nothing when it is settled already."""
        self.settle(Cancelled(stage=self.stage, text="".join(self._texts)))

    def expire(self) -> None:
        """Settle as too late."""
        limit_s, generation = self.limit_s, self.generation
        if limit_s is None:
            return
        text = "".join(self._texts)
        if generation.deadline_s is not None and limit_s >= self.trace.started_s + float(generation.deadline_s):
            self.settle(DeadlineExceeded(generation.deadline_s, stage=self.stage, text=text))
        elif generation.max_frame_age_s is not None:
            self.settle(
                DeadlineExceeded(generation.max_frame_age_s, stage=self.stage, text=text, what="the age of its frame")
            )
