"""The messages of one answer: numbered, in order, gathered on a slow link, with exactly one at the end."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from edge_vl.mqtt.coalescer import Coalescer, Piece
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.messages import (
    Aborted,
    AbortReason,
    Delta,
    End,
    ErrorFacts,
    ErrorMessage,
    Start,
    StreamMessage,
)
from edge_vl.mqtt.packet import Outbound

__all__ = ["Post", "StreamWriter"]

Post = Callable[[Outbound, Literal["terminal", "delta", "refusal"]], "asyncio.Future[float]"]
"""Hands a message to the link; the future has its round trip in seconds. It is cancelled where the message was given up
for want of room, and has an error where it cannot be delivered as it is."""

_LEAST_EXPIRY_S = 10


class StreamWriter:
    """Writes one answer to its topic. Belongs to the event loop's thread.

    While it is held, nothing is sent: text is gathered, and the end waits. Numbers are given when a message is made;
    one that is sent again is the same as before.

    An end that the broker does not take, as it is too large, is replaced once by a small one with its number. An end
    that nothing came before is a refusal: it is the first to be given up when there is no room.
    """

    def __init__(
        self,
        post: Post,
        coalescer: Coalescer,
        *,
        id: str,
        topic: str,
        received_s: float,
        expires_s: float,
        correlation: bytes,
        on_terminal: Callable[[StreamMessage, asyncio.Future[float]], object] = lambda message, future: None,
    ) -> None:
        """Write nothing yet.

        Args:
            post: hands a message to the link.
            coalescer: says when text goes out.
            id: of the request.
            topic: where the answer goes.
            received_s: when the request came, on the monotonic clock.
            expires_s: when the client stops waiting, likewise.
            correlation: what the client knows the request by.
            on_terminal: told when the last message was handed to the link, also again after it was taken back.
        """
        self._post_to_link = post
        self._coalescer = coalescer
        self._id = id
        self._topic = topic
        self._received_s = received_s
        self._expires_s = expires_s
        self._correlation = correlation
        self._on_terminal = on_terminal
        self._next_seq = 0
        self._waiting: list[Callable[[], StreamMessage]] = []  # while it is held
        self._held_texts: list[str] = []
        self._num_held_tokens = 0
        self._unacknowledged: dict[asyncio.Future[float], StreamMessage] = {}
        self._round_trips_s: deque[float] = deque(maxlen=64)
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        self._is_over = False
        self._is_replaced = False

    @property
    def is_over(self) -> bool:
        """Whether its end was written, or it was dropped."""
        return self._is_over

    @property
    def publish_s(self) -> float | None:
        """Median time until the broker had confirmed a message of it; None: it has confirmed none."""
        return statistics.median(self._round_trips_s) if self._round_trips_s else None

    def start(self, node: str, boot_id: str, model: str) -> None:
        """Say that the request was taken."""
        self._make(
            lambda: Start(id=self._id, seq=self._seq(), t_ms=self._t_ms(), node=node, boot_id=boot_id, model=model)
        )

    def add(self, text: str) -> None:
        """Add a token's text."""
        if self._is_over:
            return
        if self._is_held:
            self._held_texts.append(text)
            self._num_held_tokens += 1
        else:
            self._send_piece(self._coalescer.add(text, 1))

    def end(self, make: Callable[[int, int], End]) -> None:
        """Write the whole answer; `make` is called with the number and the milliseconds."""
        self._finish(lambda: make(self._seq(), self._t_ms()))

    def error(self, facts: ErrorFacts, text: str = "") -> None:
        """Say that there will be no answer because of an error."""
        self._finish(lambda: ErrorMessage(id=self._id, seq=self._seq(), t_ms=self._t_ms(), error=facts, text=text))

    def abort(self, reason: AbortReason, text: str = "") -> None:
        """Say that the request was given up."""
        self._finish(lambda: Aborted(id=self._id, seq=self._seq(), t_ms=self._t_ms(), reason=reason, text=text))

    def hold(self) -> None:
        """Send nothing until `resume` or `drop`, and take back what the broker has not confirmed."""
        if self._is_held:
            return
        self._is_held = True
        self._stop_timer()
        taken_back, self._unacknowledged = self._unacknowledged, {}
        for future, message in taken_back.items():
            if future.cancel() or future.cancelled():
                self._waiting.append(partial(_as_made, message))
            else:  # it was confirmed or refused just now, and its callback is yet to come
                self._unacknowledged[future] = message
        piece = self._coalescer.flush()
        if piece is not None:
            self._held_texts.append(piece.text)
            self._num_held_tokens += piece.num_tokens

    def resume(self) -> None:
        """Send what was held."""
        if not self._is_held:
            return
        self._is_held = False
        self._keep_held_text()
        waiting, self._waiting = self._waiting, []
        for make in waiting:
            self._post(make())

    def drop(self) -> None:
        """Write nothing more, and take back what the broker has not confirmed: another has ended the stream."""
        self._is_over = True
        self._stop_timer()
        self._waiting.clear()
        self._held_texts.clear()
        self._num_held_tokens = 0
        taken_back, self._unacknowledged = self._unacknowledged, {}
        for future in taken_back:
            future.cancel()

    def _finish(self, make: Callable[[], StreamMessage]) -> None:
        if self._is_over:
            return
        piece = None if self._is_held else self._coalescer.flush()
        if piece is not None:
            self._make(self._delta(piece.text, piece.num_tokens))
        self._is_over = True
        self._stop_timer()
        self._make(make)

    def _make(self, make: Callable[[], StreamMessage]) -> None:
        if self._is_held:
            self._keep_held_text()
            self._waiting.append(make)
        else:
            self._post(make())

    def _keep_held_text(self) -> None:
        if self._held_texts:
            self._waiting.append(self._delta("".join(self._held_texts), self._num_held_tokens))
            self._held_texts, self._num_held_tokens = [], 0

    def _delta(self, text: str, num_tokens: int) -> Callable[[], StreamMessage]:
        return lambda: Delta(id=self._id, seq=self._seq(), t_ms=self._t_ms(), text=text, tokens=num_tokens)

    def _send_piece(self, piece: Piece | None) -> None:
        if piece is not None:
            self._post(self._delta(piece.text, piece.num_tokens)())
        self._set_timer()

    def _poll(self) -> None:
        self._timer = None
        if not self._is_over and not self._is_held:
            self._send_piece(self._coalescer.poll())

    def _set_timer(self) -> None:
        if self._timer is not None or self._is_held:
            return
        due_s = self._coalescer.due_in_s()
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s), self._poll)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _post(self, message: StreamMessage) -> None:
        expiry_s = max(_LEAST_EXPIRY_S, math.ceil(self._expires_s - time.monotonic()))
        outbound = Outbound(
            self._topic,
            encode(message),
            content_type="application/json",
            correlation=self._correlation,
            expiry_s=expiry_s,
        )
        if isinstance(message, Delta):
            future = self._post_to_link(outbound, "delta")
            future.add_done_callback(self._note_delta_done)
        elif isinstance(message, Start):
            future = self._post_to_link(outbound, "terminal")
            future.add_done_callback(self._note_done)
        else:
            future = self._post_to_link(outbound, "refusal" if message.seq == 0 else "terminal")
            future.add_done_callback(partial(self._note_end_done, message))
        self._unacknowledged[future] = message
        if not isinstance(message, (Start, Delta)):
            self._on_terminal(message, future)

    def _note_done(self, future: asyncio.Future[float]) -> None:
        self._unacknowledged.pop(future, None)
        if not future.cancelled() and future.exception() is None:
            self._round_trips_s.append(future.result())

    def _note_end_done(self, message: StreamMessage, future: asyncio.Future[float]) -> None:
        """Send a smaller end where one could not be delivered, if it may be its size."""
        is_dropped = future not in self._unacknowledged
        self._note_done(future)
        if is_dropped or self._is_replaced or future.cancelled() or future.exception() is None:
            return
        smaller = _smaller(message)
        if smaller is not None:
            self._is_replaced = True
            self._make(partial(_as_made, smaller))

    def _note_delta_done(self, future: asyncio.Future[float]) -> None:
        self._note_done(future)
        piece = self._coalescer.acknowledged()
        if piece is not None and not self._is_over:
            self._make(self._delta(piece.text, piece.num_tokens))
        if not self._is_over:
            self._set_timer()

    def _seq(self) -> int:
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        return seq

    def _t_ms(self) -> int:
        return max(0, round((time.monotonic() - self._received_s) * 1000))


def _smaller(message: StreamMessage) -> StreamMessage | None:
    """Return a small end in place of one that the broker does not take; None: it is small."""
    if isinstance(message, End):
        facts = ErrorFacts("engine", "the answer is larger than the broker takes; ask for fewer tokens", "max_tokens")
        return ErrorMessage(id=message.id, seq=message.seq, t_ms=message.t_ms, error=facts)
    if isinstance(message, ErrorMessage | Aborted) and message.text:
        return msgspec.structs.replace(message, text="")
    return None


def _as_made(message: StreamMessage) -> StreamMessage:
    """Return a message that has its number already."""
    return message
