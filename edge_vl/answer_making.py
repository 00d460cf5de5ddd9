"""What is told of a request that has come to its end."""

from __future__ import annotations

import logging

from edge_vl.answer import Answer, Usage
from edge_vl.decoding import Decoding
from edge_vl.engine import LanguageSpec
from edge_vl.lanes import Lanes
from edge_vl.run import Run

__all__ = ["log_answer", "make_answer"]

_log = logging.getLogger(__name__)


def make_answer(run: Run, decoding: Decoding, lanes: Lanes, language: LanguageSpec) -> Answer:
    """Return the answer of a request whose last token was chosen."""
    frame_age_s = run.request.frame_age_s
    dtypes = {"language": language.dtype}
    if lanes.vision is not None:
        dtypes["vision"] = lanes.vision.spec.dtype
    if language.kv:
        dtypes["kv"] = language.kv
    num_kept_units = len(run.plan.images) - run.num_encoded
    return Answer(
        text=decoding.text,
        reasoning=decoding.reasoning,
        finish_reason=decoding.finish_reason or "length",
        model=lanes.model,
        vision_engine=lanes.vision.spec.engine if lanes.vision is not None else "",
        language_engine=language.engine,
        dtypes=dtypes,
        usage=Usage(run.plan.num_tokens, run.plan.num_image_tokens, len(decoding.token_ids)),
        timings=run.request.trace.timings(),
        reused={
            "kv_tokens": run.num_kept,
            "image_units": num_kept_units,
            "similar_units": min(run.request.num_similar, num_kept_units),
            "grafted_tokens": run.num_grafted,
        },
        profile=lanes.profile,
        notes=lanes.notes,
        degraded=run.request.degraded,
        frame_age_s=frame_age_s,
    )


def log_answer(answer: Answer) -> None:
    """Tell the log where the time went and how much was there already."""
    if not _log.isEnabledFor(logging.INFO):
        return
    timings = answer.timings
    stages = {span.stage for span in timings.spans}
    _log.info(
        "%s: first token %.3f s, all %.3f s (%s), %.0f %% of the prompt from the KV cache, mode %s",
        answer.model,
        timings.first_token_s or timings.total_s,
        timings.total_s,
        ", ".join(f"{stage} {timings.stage_s(stage):.3f}" for stage in sorted(stages)),
        100 * timings.reuse_rate,
        timings.schedule.get("mode", ""),
    )
