"""A conversation: several turns about the same or new pictures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from edge_vl.answer import Answer
from edge_vl.answer_stream import AnswerStream
from edge_vl.asking import AskOptions, generation_of
from edge_vl.errors import RequestError
from edge_vl.message import Message
from edge_vl.pictures import Picture
from edge_vl.request import Request
from edge_vl.resident import Resident

if TYPE_CHECKING:
    from edge_vl.async_answer_stream import AsyncAnswerStream
    from edge_vl.runtime import Runtime

__all__ = ["Conversation"]


class Conversation:
    """Remembers its turns and keeps its cache, so that a turn computes only what is new.

    One turn runs at a time. A turn that fails or is cancelled leaves the conversation as it was before it.
    """

    def __init__(self, runtime: Runtime, *, system: str | None = None) -> None:
        """Begin. `Runtime.conversation` is what callers use."""
        self._runtime = runtime
        self._messages: list[Message] = [] if system is None else [Message("system", (system,))]
        self._resident = Resident(is_owned=True)
        self._lock = threading.Lock()
        self._turn: Request | None = None
        self._is_closed = False

    @property
    def resident(self) -> Resident:
        """Its cache, for the language lane."""
        return self._resident

    @property
    def turns(self) -> tuple[tuple[str, str], ...]:
        """Role and text of every message so far."""
        return tuple(
            (message.role, "".join(part for part in message.parts if isinstance(part, str)))
            for message in self._messages
        )

    def stream(
        self,
        question: str,
        pictures: Picture | Sequence[Picture] | None = (),
        **options: Unpack[AskOptions],
    ) -> AnswerStream:
        """Ask the next question, with new pictures or, without any, about the ones so far.

        Takes and raises what `Runtime.stream` does: None is no picture for a model that reads text only, and an error
        for one that sees.
        """
        return AnswerStream(generation_of(options), self._start(question, pictures, options))

    def astream(
        self,
        question: str,
        pictures: Picture | Sequence[Picture] | None = (),
        **options: Unpack[AskOptions],
    ) -> AsyncAnswerStream:
        """Return the asynchronous twin of `stream`."""
        from edge_vl.async_answer_stream import AsyncAnswerStream  # late: it imports asyncio

        return AsyncAnswerStream(generation_of(options), self._start(question, pictures, options))

    def ask(
        self,
        question: str,
        pictures: Picture | Sequence[Picture] | None = (),
        **options: Unpack[AskOptions],
    ) -> Answer:
        """Ask the next question and wait for the answer."""
        return self.stream(question, pictures, **options).answer

    def close(self) -> None:
        """Cancel a running turn and give the cache back. May be called twice, and after the runtime was closed."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            turn = self._turn
        if not was_closed:
            if turn is not None:
                turn.cancel()
            self._runtime.on_language_lane(self._resident.drop)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Give the cache of a forgotten conversation back."""
        if hasattr(self, "_is_closed") and not self._is_closed:
            self.close()

    def _start(
        self,
        question: str,
        pictures: Picture | Sequence[Picture] | None,
        options: AskOptions,
    ) -> Callable[[Request], None]:
        def start(request: Request) -> None:
            asked: list[Message] = []

            def messages() -> list[Message]:
                asked.append(self._runtime.user_message(request, pictures, question, bgr=options.get("bgr", False)))
                return self._messages + asked

            def remember(answer: Answer) -> None:
                self._messages = [*self._messages, asked[0], Message("assistant", (answer.text,))]

            before = self._begin_turn(request)
            try:
                self._runtime.submit(request, messages, self._resident, on_answer=remember)
            except BaseException:
                self._turn = before  # this one never began
                raise

        return start

    def _begin_turn(self, request: Request) -> Request | None:
        """Make this the running turn and return the one before."""
        with self._lock:
            if self._is_closed:
                raise RequestError("the conversation is closed", field="conversation")
            if self._turn is not None and not self._turn.is_settled:
                raise RequestError(
                    "the conversation's last turn still runs; read it to its end or cancel it first",
                    field="conversation",
                )
            before, self._turn = self._turn, request
            return before
