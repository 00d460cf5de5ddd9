"""The serial loop: encode, prefill, decode, one after the other. What every faster path is measured against."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_vl.answer import Answer, Token, Usage
from edge_vl.engine import ImageEmbeds, LanguageModel, Prefillable
from edge_vl.errors import CacheFull, EdgeVLError, EngineFault
from edge_vl.lanes import Lanes
from edge_vl.plan import Chunk, ImageChunk, Plan, TextChunk
from edge_vl.request import Request, Settled
from edge_vl.resident import Resident, Residents
from edge_vl.sampling import Sampler
from edge_vl.text_stream import TextPiece, TextStream

__all__ = ["MAX_PREFILL_TOKENS", "Job", "SerialScheduler", "prefill_runs"]

Result = TypeVar("Result")

MAX_PREFILL_TOKENS = 256
"""Text tokens of one prefill pass: a deadline or a cancel waits for no more than one pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A request that is ready to run.

    Attributes:
        request: who asks.
        plan: what its prompt is.
        resident: the cache to use; what it holds of the plan's beginning is not computed again.
        on_answer: called with the answer before anybody else sees it, and only if it becomes the outcome.
        on_end: called once, before the outcome is seen, whatever it is.
    """

    request: Request
    plan: Plan
    resident: Resident
    on_answer: Callable[[Answer], None]
    on_end: Callable[[], None]


class SerialScheduler:
    """Runs requests one after the other."""

    def __init__(self, lanes: Lanes) -> None:
        """Keep the lanes; they belong to the runtime."""
        self._lanes = lanes
        self._residents = Residents()

    def submit(self, job: Job) -> None:
        """Queue a request on the language lane."""
        self._lanes.language_lane.submit(self._run, job)

    def _run(self, job: Job) -> None:
        """Bring a request to its end, whatever happens."""
        outcome = self._outcome(job)
        job.on_end()
        if isinstance(outcome, Answer):
            job.request.settle(outcome, before=partial(job.on_answer, outcome))
        elif outcome is not None:
            for error in (outcome, outcome.__cause__):
                if error is not None:  # whoever keeps the error must not keep pictures and caches with it
                    traceback.clear_frames(error.__traceback__)
            job.request.settle(outcome)

    def _outcome(self, job: Job) -> Answer | EdgeVLError | None:
        """Answer a request; return what went wrong if it cannot be, None if its outcome is decided already."""
        request = job.request
        try:
            request.begin("queue")
            request.trace.leave_queue()
            return self._answer(job)
        except Settled:
            return None
        except EdgeVLError as error:
            job.resident.drop()
            return error
        except BaseException as error:  # an engine is somebody else's code: whatever it raises ends its request only
            job.resident.drop()
            fault = EngineFault(self._engine_of(request.stage), request.stage, f"{type(error).__name__}: {error}")
            fault.__cause__ = error
            return fault

    def _engine_of(self, stage: str) -> str:
        vision = self._lanes.vision
        return vision.spec.engine if stage == "encode" and vision is not None else self._lanes.language.spec.engine

    def _answer(self, job: Job) -> Answer:
        request, plan, resident = job.request, job.plan, job.resident
        language = self._lanes.language
        self._residents.note_use(resident)
        rest = self._with_room(lambda: resident.rewind(language, plan))
        num_images = sum(isinstance(chunk, ImageChunk) for chunk in rest)
        reused = {
            "kv_tokens": plan.num_tokens - sum(chunk.num_tokens for chunk in rest),
            "image_units": len(plan.images) - num_images,
        }
        embeds: list[ImageEmbeds] = []
        if num_images:  # all of them in one job: a hop between threads for each would cost more than it gives
            embeds = self._lanes.vision_lane.submit(self._encode, request, rest).result()
        logits = self._prefill(request, resident, rest, embeds)
        text, reasoning, num_tokens, finish_reason = self._decode(request, resident, plan, logits)
        dtypes = {"language": language.spec.dtype}
        if self._lanes.vision is not None:
            dtypes["vision"] = self._lanes.vision.spec.dtype
        return Answer(
            text=text,
            reasoning=reasoning,
            finish_reason=finish_reason,
            model=self._lanes.model,
            vision_engine=self._lanes.vision.spec.engine if self._lanes.vision is not None else "",
            language_engine=language.spec.engine,
            dtypes=dtypes,
            usage=Usage(plan.num_tokens, plan.num_image_tokens, num_tokens),
            timings=request.trace.timings(),
            reused=reused,
            profile=self._lanes.profile,
            notes=self._lanes.notes,
        )

    def _encode(self, request: Request, chunks: Sequence[Chunk]) -> list[ImageEmbeds]:
        """Encode every image chunk, in order. Runs on the vision lane, while the language lane waits for it."""
        embeds: list[ImageEmbeds] = []
        vision = self._lanes.vision
        for chunk in chunks:
            if not isinstance(chunk, ImageChunk):
                continue
            assert vision is not None
            request.begin("encode")
            with request.trace.span("encode", num_tokens=chunk.num_tokens, detail=_unit_name(chunk)):
                result = vision.encode(chunk.unit)
            expected = (chunk.num_tokens, self._lanes.language.spec.hidden_size)
            if result.values.shape != expected:
                raise EngineFault(
                    vision.spec.engine, "encode", f"image embeds have shape {result.values.shape}, expected {expected}"
                )
            if not np.isfinite(result.values).all():
                raise EngineFault(vision.spec.engine, "encode", "image embeds are not finite")
            embeds.append(result)
        return embeds

    def _prefill(
        self, request: Request, resident: Resident, chunks: Sequence[Chunk], embeds: Sequence[ImageEmbeds]
    ) -> NDArray[np.float32]:
        language = self._lanes.language
        logits: NDArray[np.float32] | None = None
        runs = list(prefill_runs(chunks))
        encoded = iter(embeds)
        for number, run in enumerate(runs):
            items: list[Prefillable] = [chunk if isinstance(chunk, TextChunk) else next(encoded) for chunk in run]
            num_tokens = sum(chunk.num_tokens for chunk in run)
            request.begin("prefill")
            with request.trace.span("prefill", num_tokens=num_tokens, detail=_run_name(run)):
                want_logits = number == len(runs) - 1
                logits = self._with_room(partial(language.prefill, resident.cache, items, want_logits=want_logits))
            resident.note(run)
        if logits is None:
            raise EngineFault(language.spec.engine, "prefill", "no logits came back")
        return logits

    def _with_room(self, call: Callable[[], Result]) -> Result:
        """Call the language model; while its caches are full, give back those of idle conversations, oldest first."""
        while True:
            try:
                return call()
            except CacheFull:
                if not self._residents.drop_oldest():
                    raise

    def _decode(
        self, request: Request, resident: Resident, plan: Plan, logits: NDArray[np.float32]
    ) -> tuple[str, str, int, Literal["stop", "length"]]:
        """Choose tokens until something ends the answer; return text, reasoning, number of tokens and reason."""
        language = self._lanes.language
        tokenizer = language.tokenizer
        generation = request.generation
        room = language.spec.context_length - plan.num_tokens
        most = min(generation.max_tokens, room)
        sampler = Sampler(generation.sampling)
        stream = TextStream(generation.stop, opens_reasoning=plan.opens_reasoning)
        texts: dict[str, list[str]] = {"text": [], "reasoning": []}

        def show(pieces: list[TextPiece], token_id: int, index: int) -> None:
            for piece in pieces:
                texts[piece.kind].append(piece.text)
            request.add_tokens([Token(token_id, piece.text, piece.kind, index) for piece in pieces])

        finish_reason: Literal["stop", "length"] = "length"
        num_tokens, token_id = 0, -1
        while True:
            request.begin("decode")
            _check_logits(logits, language)
            chosen = sampler.choose(logits)
            if chosen in tokenizer.eos_token_ids:
                finish_reason = "stop"
                break
            token_id = chosen
            request.trace.add_token()
            show(stream.push(tokenizer.token_bytes(token_id)), token_id, num_tokens)
            num_tokens += 1
            if stream.is_stopped:
                finish_reason = "stop"
                break
            if num_tokens == most:
                break
            with request.trace.span("decode", num_tokens=1):
                logits = self._with_room(partial(language.decode, resident.cache, token_id))
            resident.note([TextChunk((token_id,), plan.num_tokens + num_tokens - 1)])
        show(stream.finish(), token_id, max(0, num_tokens - 1))
        return "".join(texts["text"]), "".join(texts["reasoning"]), num_tokens, finish_reason


def prefill_runs(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Group chunks into passes: each image with the text before it, and long text in pieces.

    An image and its markers in one pass cost one reading of the weights. The borders depend on the chunks alone, so
    that every mode of execution computes the same passes.
    """
    run: list[Chunk] = []
    for chunk in chunks:
        if isinstance(chunk, ImageChunk):
            yield [*run, chunk]
            run = []
            continue
        ids, position = chunk.token_ids, chunk.position
        while sum(part.num_tokens for part in run) + len(ids) > MAX_PREFILL_TOKENS:
            taken = MAX_PREFILL_TOKENS - sum(part.num_tokens for part in run)
            if taken:
                run.append(TextChunk(ids[:taken], position))
            yield run
            run, ids, position = [], ids[taken:], position + taken
        run.append(TextChunk(ids, position))
    if run:
        yield run


def _check_logits(logits: NDArray[np.float32], language: LanguageModel) -> None:
    if logits.shape != (language.spec.vocab_size,):
        expected = (language.spec.vocab_size,)
        raise EngineFault(language.spec.engine, "decode", f"logits have shape {logits.shape}, expected {expected}")
    if not np.isfinite(logits.max()):  # catches NaN and +inf anywhere; -inf forbids a token and is fine
        raise EngineFault(language.spec.engine, "decode", "logits are not finite")


def _unit_name(chunk: ImageChunk) -> str:
    unit = chunk.unit
    where = f"{unit.row},{unit.column}" if unit.row else ""
    return f"picture {chunk.image + 1} {unit.kind} {where}".rstrip()


def _run_name(run: Sequence[Chunk]) -> str:
    num_text = sum(chunk.num_tokens for chunk in run if isinstance(chunk, TextChunk))
    num_image = sum(chunk.num_tokens for chunk in run if isinstance(chunk, ImageChunk))
    return " + ".join(f"{count} {kind}" for count, kind in ((num_text, "text"), (num_image, "image")) if count)
