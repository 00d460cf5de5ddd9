"""Holding a model with a compressed KV cache, or in other precisions, against its most faithful self on this device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from edge_vl.agreement import LogitsAgreement, compare_tensors
from edge_vl.errors import RequestError
from edge_vl.kv_offer import KVOffer
from edge_vl.kv_policy import KVPolicy, KVPrecision, Precision, parse_kv_policy
from edge_vl.verify_answers import VerifyPrompt
from edge_vl.verify_report import DifferentAnswer, EmbedsAgreement, Verification
from edge_vl.verify_run import Progress, SideRun, run_candidate, run_reference

if TYPE_CHECKING:
    from edge_vl.engine import Engine
    from edge_vl.model_spec import ModelSpec
    from edge_vl.pictures import Picture
    from edge_vl.profile_decision import Decision, LaneDecision

__all__ = ["NUM_PROMPTS", "verify"]

NUM_PROMPTS = 6
_DIFFERENT_SHOWN = 5

_FAITHFUL = ("fp32", "f32", "bf16", "fp16", "f16", "q8_0", "int8", "q8")
"""Precisions of weights, the most faithful first."""

_FINEST: tuple[Precision, ...] = ("f32", "f16")


def verify(
    model: str | Path = "bundled",
    *,
    kv: str | Mapping[str, str] | KVPolicy = "auto",
    profile: str | Path = "auto",
    vision_engine: str | Engine = "auto",
    language_engine: str | Engine = "auto",
    vision_dtype: str = "auto",
    language_dtype: str = "auto",
    threads: int | None = None,
    context_length: int | None = None,
    num_prompts: int = NUM_PROMPTS,
    pictures: Picture | Sequence[Picture] = (),
    on_progress: Callable[[str, float], None] | None = None,
) -> Verification:
    """Answer the same questions twice and compare: as asked for, and with the most faithful settings of the engines.

    Only what is asked for differs between the two: a KV policy is held against a cache in float32 over the same
    weights, and a precision of weights against the most faithful file of the same engine. Where nothing is asked for,
    everything that the profile says is. One model after the other is in memory.

    Args:
        model: as `Runtime.open` takes it, and so are the engines, precisions, threads and the context.
        kv: in what precision the KV cache is kept.
        profile: device profile.
        vision_engine: engine of the vision lane.
        language_engine: engine of the language lane.
        vision_dtype: precision of the vision encoder.
        language_dtype: precision of the language model.
        threads: CPU threads of a lane.
        context_length: most tokens of a sequence.
        num_prompts: conversations; each has several last questions.
        pictures: what they are about, instead of drawn scenes; one or several.
        on_progress: called with what is being done and the share that is done, on a lane's thread.

    Raises:
        RequestError: a setting makes no sense, or nothing differs from the most faithful settings.
        EdgeVLError: whatever `Runtime.open` raises.
    """
    from edge_vl.memory_plan import check_memory
    from edge_vl.models import find_model
    from edge_vl.option_checks import require_whole_number
    from edge_vl.profile_choice import decide

    for field, number in (("threads", threads), ("context_length", context_length), ("num_prompts", num_prompts)):
        if number is not None:
            require_whole_number(number, field, 1)
    spec = find_model(model)
    shown = _pictures(pictures)
    if shown and not spec.has_vision:
        raise RequestError(f"model {spec.name} reads text only; it cannot see pictures", field="pictures")
    policy = parse_kv_policy(kv)
    candidate = decide(
        spec,
        profile=profile,
        vision_engine=vision_engine,
        language_engine=language_engine,
        vision_dtype=vision_dtype,
        language_dtype=language_dtype,
        threads=threads,
        context_length=context_length,
        kv=policy,
    )
    asked = _Asked(vision_dtype != "auto", language_dtype != "auto", not policy.is_auto)
    reference = _most_faithful(spec, candidate, asked if any(asked) else _Asked(True, True, True))
    if all(one.options == other.options for one, other in zip(reference.lanes, candidate.lanes, strict=True)):
        raise RequestError(
            "there is nothing to compare: this is the most faithful setting; give --kv, --vision-dtype or "
            "--language-dtype (edge-vl models info lists precisions)",
            field="kv",
        )
    for decision in (reference, candidate):
        check_memory(spec, decision)
    progress = Progress(on_progress)
    prompts, expected = run_reference(spec, reference, progress, num_prompts, shown)
    found = run_candidate(spec, candidate, reference, progress, prompts, expected)
    kept, plain = (
        parse_kv_policy(side.kv) for side in (found.side, expected.side)
    )  # a profile's wish may be passed over
    is_compressed = kept.is_compressed and not plain.is_compressed
    return _report(spec.name, candidate, prompts, expected, found, is_compressed=is_compressed)


def _pictures(pictures: Picture | Sequence[Picture]) -> list[Picture]:
    """Return several pictures, also where one was given."""
    if isinstance(pictures, (list, tuple)):
        return list(pictures)
    return [cast("Picture", pictures)]


class _Asked(NamedTuple):
    """What is to be verified."""

    vision_dtype: bool
    language_dtype: bool
    kv: bool


def _most_faithful(spec: ModelSpec, decision: Decision, asked: _Asked) -> Decision:
    """Return a decision with the most faithful setting of what is asked, as far as it is not left to the engines."""
    vision, language = decision.vision, decision.language
    if vision is not None and asked.vision_dtype:
        vision = _with_dtype(vision, vision.engine.describe(spec).get("vision_dtypes", ()))
    known = language.engine.describe(spec)
    if asked.language_dtype:
        language = _with_dtype(language, known.get("language_dtypes", ()))
    if asked.kv and not language.options.kv.is_auto:
        offered = KVOffer.of(known).precisions
        finest = next((precision for precision in _FINEST if precision in offered), None)
        kv = KVPolicy() if finest is None else KVPolicy(KVPrecision(finest, finest))
        language = dataclasses.replace(language, options=dataclasses.replace(language.options, kv=kv))
    return dataclasses.replace(decision, vision=vision, language=language)


def _with_dtype(lane: LaneDecision, dtypes: Sequence[str]) -> LaneDecision:
    if lane.options.dtype == "auto":
        return lane
    best = next((dtype for dtype in _FAITHFUL if dtype in dtypes), lane.options.dtype)
    return dataclasses.replace(lane, options=dataclasses.replace(lane.options, dtype=best))


def _report(
    model: str,
    decision: Decision,
    prompts: Sequence[VerifyPrompt],
    expected: SideRun,
    found: SideRun,
    *,
    is_compressed: bool,
) -> Verification:
    pairs = [
        (question, one, other)
        for prompt, before, after in zip(prompts, expected.answers, found.answers, strict=True)
        for question, one, other in zip(prompt.questions, before.replies, after.replies, strict=True)
    ]
    different = [
        DifferentAnswer(question, one.text, other.text) for question, one, other in pairs if one.text != other.text
    ]
    tokens = [plan.num_tokens for prompt in prompts for plan in prompt.plans]
    shares = [
        answer.num_compressed / answer.num_tokens for answer in found.answers if answer.num_compressed is not None
    ]
    embeds = None
    if found.embeds is not expected.embeds:
        errors = [compare_tensors(one.values, found.embeds[key].values).error for key, one in expected.embeds.items()]
        embeds = EmbedsAgreement(len(errors), float(np.mean(errors)), max(errors))
    return Verification(
        model=model,
        profile=decision.profile.id,
        reference=expected.side,
        candidate=found.side,
        is_kv_compressed=is_compressed,
        num_prompts=len(prompts),
        prompt_tokens=(min(tokens), max(tokens)),
        compressed_share=min(shares) if is_compressed and shares else None,
        num_answers=len(pairs),
        num_same=len(pairs) - len(different),
        logits=_together(found.logits),
        embeds=embeds,
        layers=found.layers,
        different=tuple(different[:_DIFFERENT_SHOWN]),
        notes=decision.notes,
    )


def _together(parts: Sequence[LogitsAgreement]) -> LogitsAgreement:
    """Return the agreement over the rows of all parts; the relative error is the root of their mean square."""
    weights = [part.num_rows for part in parts]

    def mean(values: Iterable[float]) -> float:
        return float(np.average(list(values), weights=weights))

    return LogitsAgreement(
        num_rows=sum(weights),
        token_agreement=mean(part.token_agreement for part in parts),
        kl_mean=mean(part.kl_mean for part in parts),
        kl_max=max(part.kl_max for part in parts),
        error=mean(part.error**2 for part in parts) ** 0.5,
    )
