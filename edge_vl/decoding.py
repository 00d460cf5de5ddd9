"""Decoding one answer: from logits to tokens to text, step by step."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_vl.answer import Token
from edge_vl.engine import LanguageModel
from edge_vl.errors import EngineFault
from edge_vl.plan import Plan
from edge_vl.request import Request
from edge_vl.sampling import Sampler
from edge_vl.text_stream import TextPiece, TextStream

__all__ = ["Decoding", "check_logits"]


class Decoding:
    """What has been said so far, and what may still be said.

    Attributes:
        token_ids: the tokens chosen.
        finish_reason: why it ended; None while it goes on.
    """

    def __init__(self, request: Request, plan: Plan, language: LanguageModel) -> None:
        """Begin with nothing said."""
        generation = request.generation
        self.token_ids: list[int] = []
        self.finish_reason: Literal["stop", "length"] | None = None
        self._request = request
        self._language = language
        self._end_ids = language.tokenizer.eos_token_ids
        self._most = min(generation.max_tokens, language.spec.context_length - plan.num_tokens)
        self._sampler = Sampler(generation.sampling)
        self._stream = TextStream(generation.stop, opens_reasoning=plan.opens_reasoning)
        self._texts: dict[str, list[str]] = {"text": [], "reasoning": []}

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._texts["text"])

    @property
    def reasoning(self) -> str:
        """What was thought before it."""
        return "".join(self._texts["reasoning"])

    def choose(self, logits: NDArray[np.float32] | None) -> bool:
        """Choose and stream the next token.

        Returns:
            Whether the answer goes on: the token is to be appended, and the next chosen from the logits behind it.

        Raises:
            EngineFault: these are no logits.
        """
        logits = check_logits(logits, self._language)
        token_id = self._sampler.choose(logits)
        if token_id in self._end_ids:
            return self._finish("stop")
        self._request.trace.add_token()
        self.token_ids.append(token_id)
        self._show(self._stream.push(self._language.tokenizer.token_bytes(token_id)))
        if self._stream.is_stopped:
            return self._finish("stop")
        if len(self.token_ids) >= self._most:
            return self._finish("length")
        return True

    def _finish(self, reason: Literal["stop", "length"]) -> bool:
        self._show(self._stream.finish())
        self.finish_reason = reason
        return False

    def _show(self, pieces: list[TextPiece]) -> None:
        token_id, index = (self.token_ids[-1], len(self.token_ids) - 1) if self.token_ids else (-1, 0)
        for piece in pieces:
            self._texts[piece.kind].append(piece.text)
        self._request.add_tokens([Token(token_id, piece.text, piece.kind, index) for piece in pieces])


def check_logits(logits: NDArray[np.float32] | None, language: LanguageModel) -> NDArray[np.float32]:
    """Return logits that can be chosen from.

    Raises:
        EngineFault: there are none, they have the wrong shape, or they are not finite.
    """
    engine = language.spec.engine
    if logits is None:
        raise EngineFault(engine, "decode", "no logits came back")
    expected = (language.spec.vocab_size,)
    if logits.shape != expected:
        raise EngineFault(engine, "decode", f"logits have shape {logits.shape}, expected {expected}")
    if not np.isfinite(logits.max()):  # catches NaN and +inf anywhere; -inf forbids a token and is fine
        raise EngineFault(engine, "decode", "logits are not finite")
    return logits
