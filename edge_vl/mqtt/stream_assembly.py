"""Messages of one stream, as they come in: put into order, told once, and the text mended from the last one. Pure."""

from __future__ import annotations

from edge_vl.mqtt.messages import Aborted, Delta, End, ErrorMessage, Start, StreamMessage

__all__ = ["MAX_CHARACTERS", "StreamAssembly"]

MAX_CHARACTERS = 1 << 20
"""Of a stream's text that is taken before its end: 32 for each of the most tokens that a request may ask for."""

_MAX_HELD = 4096


class StreamAssembly:
    """What is known of a stream. A message may come twice, too late or never.

    Text is given away in order and without gaps: the text behind a message that is missing waits for it, or for the
    terminal message, which has the whole text. So does what would make the text longer than `MAX_CHARACTERS`.

    Attributes:
        start: the first message, once it is in.
        terminal: the last message, once it is in; nothing counts any more then.
        is_consistent: False: the terminal message has another text than the one that was given away before.
    """

    def __init__(self) -> None:
        self.start: Start | None = None
        self.terminal: End | ErrorMessage | Aborted | None = None
        self.is_consistent = True
        self._pieces: list[str] = []
        self._next_seq = 0
        self._held: dict[int, Start | Delta] = {}
        self._num_characters = 0

    @property
    def text(self) -> str:
        """What was given away so far."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    @property
    def has_begun(self) -> bool:
        """Whether a message of it came in."""
        return self.start is not None or self._next_seq > 0 or bool(self._held) or self.terminal is not None

    def take(self, message: StreamMessage) -> str:
        """Take one message in.

        Args:
            message: of this request; from anywhere in the stream.

        Returns:
            The text that may be given away now; often empty.
        """
        if self.terminal is not None:
            return ""
        if isinstance(message, (End, ErrorMessage, Aborted)):
            return self._finish(message)
        seq, num_characters = message.seq, _num_characters(message)
        if seq is None or seq < self._next_seq or seq in self._held or len(self._held) >= _MAX_HELD:
            return ""
        if self._num_characters + num_characters > MAX_CHARACTERS:
            return ""
        self._num_characters += num_characters
        self._held[seq] = message
        if isinstance(message, Start):
            self.start = message
        pieces: list[str] = []
        while (held := self._held.pop(self._next_seq, None)) is not None:
            self._next_seq += 1
            if isinstance(held, Delta):
                pieces.append(held.text)
        return self._give("".join(pieces))

    def _finish(self, message: End | ErrorMessage | Aborted) -> str:
        self.terminal = message
        self._held.clear()
        text = self.text
        if message.text.startswith(text):
            return self._give(message.text.removeprefix(text))
        # Whoever ends another's stream does not know its text.
        self.is_consistent = not isinstance(message, End)
        return ""

    def _give(self, text: str) -> str:
        if text:
            self._pieces.append(text)
        return text


def _num_characters(message: Start | Delta) -> int:
    if isinstance(message, Delta):
        return len(message.text)
    return len(message.node) + len(message.boot_id) + len(message.model)
