"""Joins small pieces of text where the link is slow, so that a stream is fewer and larger messages. Pure."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Coalescer", "Piece"]

_PATIENCE_S = 0.05


@dataclass(frozen=True, slots=True)
class Piece:
    """Text for one message.

    Attributes:
        text: one or several pieces, joined.
        num_tokens: that made it.
    """

    text: str
    num_tokens: int


class Coalescer:
    """Decides when the text of one stream is sent.

    The first piece never waits. After it:

    * While the window is 0 (a fast link) no piece waits, as long as confirmations come within 50 ms.
    * Otherwise text is joined until the window since the last message has passed *and* that message is confirmed. Of
      the two, the later makes fewer and larger messages: the window alone sends several within one round trip and goes
      on while the broker is away; confirmation alone sends small ones while the window says that the link is slow. So
      at most one message of a stream is under way on a slow link, and while the broker is away the text grows in one
      piece instead of filling the outbox.

    Whoever uses it tells it of each message that is confirmed or given up, asks again when `due_in_s` has passed, and
    takes the rest at the end.
    """

    def __init__(self, window_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """Begin a stream.

        Args:
            window_s: for how long text is joined now, in seconds, such as `LinkModel.window_s`.
            clock: seconds that never go back.
        """
        self._window_s = window_s
        self._clock = clock
        self._texts: list[str] = []
        self._num_tokens = 0
        self._sent_s: float | None = None
        self._unconfirmed: deque[float] = deque()

    def add(self, text: str, num_tokens: int = 1) -> Piece | None:
        """Take in more text; return what is to be sent now, None: nothing yet."""
        self._texts.append(text)
        self._num_tokens += num_tokens
        return self.poll()

    def acknowledged(self) -> Piece | None:
        """Hear that the oldest message under way was confirmed, or given up; return what is to be sent now."""
        if self._unconfirmed:
            self._unconfirmed.popleft()
        return self.poll()

    def poll(self) -> Piece | None:
        """Return what is to be sent now; None: nothing, or not yet."""
        return self._take() if self._texts and self._may_send() else None

    def flush(self) -> Piece | None:
        """Return what was not sent, at the end of the stream; None: everything was."""
        return self._take() if self._texts else None

    def due_in_s(self) -> float | None:
        """Return after how many seconds to `poll`; None: there is nothing, or first a confirmation must come."""
        if not self._texts or self._sent_s is None:
            return None
        now_s, window_s = self._clock(), self._window_s()
        if self._unconfirmed and (window_s > 0 or now_s - self._unconfirmed[0] > _PATIENCE_S):
            return None
        return max(0.0, self._sent_s + window_s - now_s)

    def _may_send(self) -> bool:
        return self._sent_s is None or self.due_in_s() == 0.0

    def _take(self) -> Piece:
        piece = Piece("".join(self._texts), self._num_tokens)
        self._texts.clear()
        self._num_tokens = 0
        self._sent_s = self._clock()
        self._unconfirmed.append(self._sent_s)
        return piece
