"""Running the two sides of a verification, one after the other: prompts made, pictures encoded, answers given."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edge_vl.agreement import LogitsAgreement, compare_logits
from edge_vl.engine import ImageEmbeds, LanguageModel, MemoryPlanner, VisionEncoder
from edge_vl.errors import Cancelled, ContextLengthError
from edge_vl.kv_error import KVErrors, KVMeter
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.passes import pieces_of
from edge_vl.plan import ImageUnit
from edge_vl.verify_answers import PromptAnswers, VerifyPrompt, answer_prompt, follow_prompt, prefillables
from edge_vl.verify_report import Side

if TYPE_CHECKING:
    from edge_vl.lanes import Lanes
    from edge_vl.model_spec import ModelSpec
    from edge_vl.pictures import Picture
    from edge_vl.profile_decision import Decision

__all__ = ["Progress", "SideRun", "run_candidate", "run_reference"]

_NUM_QUESTIONS = 4
_MAX_TOKENS = 32  # the reference's logits of all answers are held
_MAX_LAYER_TOKENS = 1024  # whose keys and values of all layers are held at once


class Progress:
    """Tells how much is done, and ends when nobody waits for it any more."""

    def __init__(self, tell: Callable[[str, float], None] | None) -> None:
        self.is_cancelled = threading.Event()
        self.total = 0
        self._tell = tell
        self._done = 0

    def check(self) -> None:
        """Go on.

        Raises:
            Cancelled: nobody waits.
        """
        if self.is_cancelled.is_set():
            raise Cancelled(stage="decode")

    def step(self, what: str) -> None:
        """Note that one more part is done.

        Raises:
            Cancelled: nobody waits.
        """
        self.check()
        self._done += 1
        if self._tell is not None and self.total:
            self._tell(what, min(1.0, self._done / self.total))


@dataclass(frozen=True, slots=True, eq=False)
class SideRun:
    """What one side gave.

    Attributes:
        side: what it is.
        embeds: of all pictures, by the key of the unit.
        answers: to each prompt; the candidate's without logits.
        logits: agreement with the reference's along the answers to each prompt.
        layers: of the cache.
    """

    side: Side
    embeds: dict[str, ImageEmbeds]
    answers: tuple[PromptAnswers, ...]
    logits: tuple[LogitsAgreement, ...] = ()
    layers: KVErrors | None = None


def run_reference(
    spec: ModelSpec, decision: Decision, progress: Progress, num_prompts: int, pictures: Sequence[Picture]
) -> tuple[tuple[VerifyPrompt, ...], SideRun]:
    """Make the prompts and answer them.

    Args:
        spec: the model.
        decision: its most faithful settings.
        progress: is told what is done, and how much there is to do.
        num_prompts: conversations.
        pictures: what they are about; none: drawn scenes.

    Raises:
        EdgeVLError: it cannot be loaded or does not work, or a picture cannot be used.
    """
    from edge_vl.families import family_of
    from edge_vl.loading import load_lanes, native_family
    from edge_vl.verify_prompts import make_prompts

    lanes = load_lanes(spec, decision)
    try:
        family = family_of(spec) or native_family(spec, lanes)
        vision, language = lanes.vision, lanes.language
        family.check_lanes(None if vision is None else vision.spec, language.tokenizer)
        prompts = make_prompts(
            family,
            language.tokenizer,
            has_vision=vision is not None,
            max_entries=max(1, language.spec.context_length - _MAX_TOKENS),
            num_prompts=num_prompts,
            num_questions=_NUM_QUESTIONS,
            pictures=pictures,
        )
        progress.total = 2 * len(prompts) + 2 * len(_units(prompts)) + 1
        embeds = _encode(lanes, prompts, progress)
        answers = lanes.language_lane.submit(_answer, language, prompts, embeds, progress).result()
        return prompts, SideRun(_side(spec, decision, lanes, answers), embeds, answers)
    except ContextLengthError as error:  # of a prompt, and with room for the whole answer
        raise ContextLengthError(
            error.num_tokens, lanes.language.spec.context_length, num_answer_tokens=_MAX_TOKENS
        ) from error
    except BaseException:
        progress.is_cancelled.set()
        raise
    finally:
        lanes.finish()
        lanes.wait()


def run_candidate(
    spec: ModelSpec,
    decision: Decision,
    reference: Decision,
    progress: Progress,
    prompts: Sequence[VerifyPrompt],
    expected: SideRun,
) -> SideRun:
    """Follow the reference's answers. Its image embeds are taken where both see with the same encoder.

    Args:
        spec: the model.
        decision: the settings that were asked for.
        reference: those of the reference.
        progress: is told what is done.
        prompts: what the reference answered.
        expected: its answers.

    Raises:
        EdgeVLError: it cannot be loaded or does not work.
    """
    from edge_vl.loading import load_lanes

    sees_alike = decision.vision is None or (
        reference.vision is not None and decision.vision.options == reference.vision.options
    )
    lanes = load_lanes(spec, dataclasses.replace(decision, vision=None) if sees_alike else decision)
    try:
        embeds = expected.embeds
        if sees_alike:
            for _ in embeds:
                progress.step("pictures")
        else:
            embeds = _encode(lanes, prompts, progress)
        language = lanes.language
        is_compressed = parse_kv_policy(language.spec.kv or "auto").is_compressed
        job = lanes.language_lane.submit(_follow, language, prompts, embeds, expected.answers, progress)
        answers, logits = job.result()
        layers = None
        if is_compressed and isinstance(language, KVMeter):
            layers = lanes.language_lane.submit(_measure, language, prompts[0], embeds).result()
        progress.step("layers")
        side = _side(spec, decision, lanes, answers)
        if sees_alike:
            side = dataclasses.replace(side, vision=expected.side.vision)
        return SideRun(side, embeds, answers, logits, layers)
    except BaseException:
        progress.is_cancelled.set()
        raise
    finally:
        lanes.finish()
        lanes.wait()


def _units(prompts: Sequence[VerifyPrompt]) -> dict[str, ImageUnit]:
    return {chunk.unit.key: chunk.unit for prompt in prompts for plan in prompt.plans for chunk in plan.images}


def _encode(lanes: Lanes, prompts: Sequence[VerifyPrompt], progress: Progress) -> dict[str, ImageEmbeds]:
    """Encode every picture once."""
    vision = lanes.vision
    if vision is None:
        return {}

    def encode(encoder: VisionEncoder) -> dict[str, ImageEmbeds]:
        embeds = {}
        for key, unit in _units(prompts).items():
            embeds[key] = encoder.encode(unit)
            progress.step("pictures")
        return embeds

    return lanes.vision_lane.submit(encode, vision).result()


def _answer(
    language: LanguageModel,
    prompts: Sequence[VerifyPrompt],
    embeds: Mapping[str, ImageEmbeds],
    progress: Progress,
) -> tuple[PromptAnswers, ...]:
    answers = []
    for prompt in prompts:
        answers.append(answer_prompt(language, prompt, embeds, max_tokens=_MAX_TOKENS, before_step=progress.check))
        progress.step("reference")
    return tuple(answers)


def _follow(
    language: LanguageModel,
    prompts: Sequence[VerifyPrompt],
    embeds: Mapping[str, ImageEmbeds],
    expected: Sequence[PromptAnswers],
    progress: Progress,
) -> tuple[tuple[PromptAnswers, ...], tuple[LogitsAgreement, ...]]:
    answers, logits = [], []
    for prompt, other in zip(prompts, expected, strict=True):
        found = follow_prompt(
            language, prompt, embeds, other.replies, max_tokens=_MAX_TOKENS, before_step=progress.check
        )
        rows = (np.concatenate([reply.logits for reply in side.replies]) for side in (other, found))
        logits.append(compare_logits(*rows))
        replies = tuple(dataclasses.replace(reply, logits=reply.logits[:0].copy()) for reply in found.replies)
        answers.append(dataclasses.replace(found, replies=replies))
        progress.step("comparing")
    return tuple(answers), tuple(logits)


def _measure(language: KVMeter, prompt: VerifyPrompt, embeds: Mapping[str, ImageEmbeds]) -> KVErrors:
    pieces, room = [], _MAX_LAYER_TOKENS
    for piece in pieces_of(prompt.plans[0].chunks):
        if piece.num_tokens > room:
            break
        pieces.append(piece)
        room -= piece.num_tokens
    return language.layer_errors(prefillables(pieces, embeds))


def _side(spec: ModelSpec, decision: Decision, lanes: Lanes, answers: Sequence[PromptAnswers]) -> Side:
    vision, language = lanes.vision, lanes.language.spec
    return Side(
        vision="" if vision is None else f"{vision.spec.engine} {vision.spec.dtype}",
        language=f"{language.engine} {language.dtype}",
        kv=language.kv or "auto",
        weights_bytes=_weights_bytes(spec, decision),
        kv_bytes=max(answer.nbytes for answer in answers),
        notes=language.notes,
    )


def _weights_bytes(spec: ModelSpec, decision: Decision) -> int | None:
    total = 0
    for lane in decision.lanes:
        engine = lane.engine
        memory = engine.plan_memory(spec, lane.lane, lane.options) if isinstance(engine, MemoryPlanner) else None
        if memory is None:
            return None
        total += memory.weights_bytes
    return total
