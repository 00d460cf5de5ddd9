"""Answers of a language model, and how another one answers where it is held to them token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_vl.decoding import check_logits
from edge_vl.engine import ImageEmbeds, KVCache, LanguageModel, Prefillable
from edge_vl.entries import entries_of, num_common
from edge_vl.kv_error import CompressedCache
from edge_vl.passes import Piece, passes, pieces_of
from edge_vl.plan import ImageChunk, Plan
from edge_vl.text_stream import TextPiece, TextStream

__all__ = ["PromptAnswers", "Reply", "VerifyPrompt", "answer_prompt", "follow_prompt", "prefillables"]

EmbedsByKey = Mapping[str, ImageEmbeds]


@dataclass(frozen=True, slots=True, eq=False)
class VerifyPrompt:
    """One conversation, with several last questions of which each is asked on its own.

    Attributes:
        questions: the last questions.
        plans: the whole prompt up to each of them.
    """

    questions: tuple[str, ...]
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """One answer.

    Attributes:
        token_ids: that were chosen, the one that ends the answer included.
        text: of the answer.
        logits: float32 (num_rows, vocab_size): behind the prompt and behind each token but the last. Where a model was
            held to another one's answer, its own logits there.
    """

    token_ids: tuple[int, ...]
    text: str
    logits: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class PromptAnswers:
    """The answers to the last questions of one prompt.

    Attributes:
        replies: one for each.
        num_tokens: entries of the cache behind the longest of them.
        num_compressed: how many of these are quantised; None: the cache does not say.
        nbytes: memory of that cache.
    """

    replies: tuple[Reply, ...]
    num_tokens: int
    num_compressed: int | None
    nbytes: int


def answer_prompt(
    language: LanguageModel,
    prompt: VerifyPrompt,
    embeds: EmbedsByKey,
    *,
    max_tokens: int,
    before_step: Callable[[], None] = lambda: None,
) -> PromptAnswers:
    """Answer each last question, always with the most likely token.

    Args:
        language: a loaded model; the caller is on its thread.
        prompt: what to answer.
        embeds: of its pictures, by the key of the unit.
        max_tokens: of each answer.
        before_step: called before every pass and token; what it raises ends it.

    Raises:
        CacheFull: there is no memory for two sequences.
        EngineFault: the backend failed.
    """
    return _Asking(language, embeds, max_tokens, before_step).ask(prompt, [None] * len(prompt.plans))


def follow_prompt(
    language: LanguageModel,
    prompt: VerifyPrompt,
    embeds: EmbedsByKey,
    expected: Sequence[Reply],
    *,
    max_tokens: int,
    before_step: Callable[[], None] = lambda: None,
) -> PromptAnswers:
    """Append the tokens of another model's answers, and say what this one would have chosen there and by itself.

    Args:
        language: a loaded model; the caller is on its thread.
        prompt: as for the other model.
        embeds: likewise.
        expected: the other model's answers.
        max_tokens: of each answer.
        before_step: called before every pass and token; what it raises ends it.

    Returns:
        Replies with the logits along the other model's tokens, and with this model's own tokens and text.

    Raises:
        CacheFull: there is no memory for two sequences.
        EngineFault: the backend failed.
    """
    return _Asking(language, embeds, max_tokens, before_step).ask(prompt, expected)


def prefillables(pieces: Sequence[Piece], embeds: EmbedsByKey) -> list[Prefillable]:
    """Return what a language model is given for pieces of a plan."""
    return [embeds[piece.chunk.unit.key] if isinstance(piece.chunk, ImageChunk) else piece.text for piece in pieces]


@dataclass(frozen=True, slots=True)
class _Asking:
    """A model at work on prompts; see `answer_prompt`."""

    language: LanguageModel
    embeds: EmbedsByKey
    max_tokens: int
    before_step: Callable[[], None]

    def ask(self, prompt: VerifyPrompt, expected: Sequence[Reply | None]) -> PromptAnswers:
        """Answer, or follow what is expected. What the prompts have in common is computed once."""
        replies: list[Reply] = []
        num_tokens, num_compressed, nbytes = 0, None, 0
        base = self.language.new_cache()
        try:
            self._prefill(base, _until(pieces_of(prompt.plans[0].chunks), _num_shared(prompt.plans)), want_logits=False)
            for plan, other in zip(prompt.plans, expected, strict=True):
                with closing(base.fork()) as cache:
                    first = self._first_row(cache, plan)
                    if other is None:
                        reply = self._reply(cache, plan, first)
                    else:
                        reply = Reply(other.token_ids, other.text, self._forced_rows(cache, first, other.token_ids))
                    if cache.num_tokens > num_tokens:
                        num_tokens, nbytes = cache.num_tokens, cache.nbytes
                        num_compressed = cache.num_compressed if isinstance(cache, CompressedCache) else None
                if other is not None and not _chooses(reply.logits, other.token_ids):
                    with closing(base.fork()) as cache:
                        free = self._reply(cache, plan, self._first_row(cache, plan))
                    reply = Reply(free.token_ids, free.text, reply.logits)
                replies.append(reply)
        finally:
            base.close()
        return PromptAnswers(tuple(replies), num_tokens, num_compressed, nbytes)

    def _first_row(self, cache: KVCache, plan: Plan) -> NDArray[np.float32]:
        """Append what a cache lacks of a prompt and return the logits behind it."""
        logits = self._prefill(cache, pieces_of(plan.chunks, cache.num_tokens), want_logits=True)
        return check_logits(logits, self.language)

    def _prefill(self, cache: KVCache, pieces: Sequence[Piece], *, want_logits: bool) -> NDArray[np.float32] | None:
        logits = None
        todo = passes(pieces)
        for number, group in enumerate(todo):
            self.before_step()
            run = prefillables(group, self.embeds)
            logits = self.language.prefill(cache, run, want_logits=want_logits and number == len(todo) - 1)
        return logits

    def _decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        self.before_step()
        return check_logits(self.language.decode(cache, token_id), self.language)

    def _reply(self, cache: KVCache, plan: Plan, logits: NDArray[np.float32]) -> Reply:
        """Choose the most likely token again and again."""
        tokenizer = self.language.tokenizer
        most = min(self.max_tokens, self.language.spec.context_length - plan.num_tokens)
        stream = TextStream((), opens_reasoning=plan.opens_reasoning)
        pieces: list[TextPiece] = []
        token_ids: list[int] = []
        rows = [logits]
        while True:
            token_ids.append(int(rows[-1].argmax()))
            if token_ids[-1] in tokenizer.eos_token_ids:
                break
            pieces += stream.push(tokenizer.token_bytes(token_ids[-1]))
            if len(token_ids) >= most:
                break
            rows.append(self._decode(cache, token_ids[-1]))
        pieces += stream.finish()
        return Reply(tuple(token_ids), "".join(piece.text for piece in pieces), np.stack(rows))

    def _forced_rows(
        self, cache: KVCache, logits: NDArray[np.float32], token_ids: Sequence[int]
    ) -> NDArray[np.float32]:
        return np.stack([logits, *(self._decode(cache, token_id) for token_id in token_ids[:-1])])


def _num_shared(plans: Sequence[Plan]) -> int:
    """Return how many first entries all prompts have in common, the last one of the shortest not counted."""
    first = entries_of(plans[0].chunks)
    shared = min(num_common(first, entries_of(plan.chunks)) for plan in plans)
    return min([shared, *(plan.num_tokens - 1 for plan in plans)])


def _until(pieces: Sequence[Piece], num_tokens: int) -> list[Piece]:
    """Return the pieces up to a number of tokens; a picture that would be torn apart there is left out."""
    taken: list[Piece] = []
    for piece in pieces:
        if piece.num_tokens > num_tokens:
            if num_tokens and not isinstance(piece.chunk, ImageChunk):
                taken.append(Piece(piece.chunk, piece.start, piece.start + num_tokens))
            break
        taken.append(piece)
        num_tokens -= piece.num_tokens
    return taken


def _chooses(rows: NDArray[np.float32], token_ids: Sequence[int]) -> bool:
    return bool((rows.argmax(axis=1) == np.array(token_ids)).all())
