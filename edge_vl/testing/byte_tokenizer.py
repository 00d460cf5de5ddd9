"""A tokenizer without a vocabulary file: one token per byte, then the markers."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ByteTokenizer"]

_MARKERS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<end_of_utterance>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)


class ByteTokenizer:
    """Ids 0 to 255 are bytes; markers of the Idefics3 family and any `more` follow."""

    def __init__(self, more: Iterable[str] = (), *, eos: str = "<end_of_utterance>") -> None:
        """Number the markers; `eos` ends an answer."""
        self._special = {text: 256 + index for index, text in enumerate(dict.fromkeys((*_MARKERS, *more, eos)))}
        self._eos = frozenset({self._special[eos]})

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return 256 + len(self._special)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return self._eos

    @property
    def special_tokens(self) -> dict[str, int]:
        """Every marker, by its text."""
        return dict(self._special)

    def encode_text(self, text: str) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode("utf-8", "surrogatepass"))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte that a token stands for; nothing for a marker."""
        return bytes((token_id,)) if 0 <= token_id < 256 else b""
