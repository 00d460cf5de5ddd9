"""The serial loop: encode, prefill, decode, one after the other. What every faster path is measured against."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_vl.answer import Token
from edge_vl.decoding import Decoding, check_logits
from edge_vl.engine import LanguageModel, Prefillable, VisionEncoder
from edge_vl.passes import passes, pieces_of
from edge_vl.plan import ImageChunk, Plan
from edge_vl.request import Event, Generation, Request

__all__ = ["SerialAnswer", "answer_serially"]


@dataclass(slots=True)
class SerialAnswer:
    """What the serial loop made.

    Attributes:
        token_ids: tokens of the answer.
        text: the answer.
        finish_reason: why it ended.
        logits: float32 (vocab_size,) behind the prompt, then behind each token that was appended.
        tokens: what was streamed.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)


def answer_serially(
    vision: VisionEncoder | None, language: LanguageModel, plan: Plan, generation: Generation | None = None
) -> SerialAnswer:
    """Answer a plan with nothing kept, nothing reused and nothing at the same time.

    Both models are called from this thread. The specification of the co-scheduler: with the same borders of passes it
    must choose the same tokens from the same logits.

    Raises:
        EngineFault: a result cannot be used.
    """
    answer = SerialAnswer()

    def emit(event: Event) -> None:
        if isinstance(event, Token):
            answer.tokens.append(event)

    decoding = Decoding(Request(generation or Generation(), emit), plan, language)
    embeds = {}
    for chunk in plan.images:
        assert vision is not None
        embeds[chunk.unit.key] = vision.encode(chunk.unit)
    cache = language.new_cache()
    try:
        logits: NDArray[np.float32] | None = None
        todo = passes(pieces_of(plan.chunks))
        for number, pieces in enumerate(todo):
            items: list[Prefillable] = [
                embeds[piece.chunk.unit.key] if isinstance(piece.chunk, ImageChunk) else piece.text for piece in pieces
            ]
            logits = language.prefill(cache, items, want_logits=number == len(todo) - 1)
        answer.logits.append(check_logits(logits, language))
        while decoding.choose(answer.logits[-1]):
            answer.logits.append(language.decode(cache, decoding.token_ids[-1]))
    finally:
        cache.close()
    answer.token_ids, answer.text, answer.finish_reason = decoding.token_ids, decoding.text, decoding.finish_reason
    return answer
