"""The memory plan: what a model would take, against what it may take, before anything is loaded.

Counted is what comes on top of an open runtime without a model: weights, the KV cache of one sequence as long as the
context, what the largest step needs besides, and pictures. Not counted: the process itself (Python and the backends'
libraries, about 100 MiB), the caller's own pictures, and KV caches of further conversations where an engine gives each
its own. A lane whose engine cannot tell, such as one on a GPU, is not counted either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge_vl.engine import Engine, LaneMemory, LaneOptions, MemoryPlanner
from edge_vl.engine_choice import LaneName
from edge_vl.errors import EdgeVLError, MemoryBudgetError
from edge_vl.kv_offer import KVOffer
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.machine import available_memory_bytes
from edge_vl.model_spec import ModelSpec
from edge_vl.profile_decision import Decision, LaneDecision

__all__ = ["MemoryPlan", "check_memory", "plan_memory"]

_MIB = 1024**2
_CONTEXT_STEP = 256
_USEFUL_CONTEXT = 1024  # a shorter one is proposed only where nothing else helps


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a model would take, against what it may take.

    Attributes:
        vision: the vision lane; None for a model that reads text only, or where its engine cannot tell.
        language: the language lane; None where its engine cannot tell.
        budget_bytes: what both together may take; None if nothing is known.
        budget_source: where that number is from, for people.
    """

    vision: LaneMemory | None
    language: LaneMemory | None
    budget_bytes: int | None
    budget_source: str

    @property
    def needed_bytes(self) -> int:
        """What both lanes take together."""
        return sum(lane.total_bytes for lane in (self.vision, self.language) if lane is not None)

    @property
    def fits(self) -> bool:
        """Whether it is within the budget."""
        return self.budget_bytes is None or self.needed_bytes <= self.budget_bytes

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        lanes = {
            name: None if lane is None else {**asdict(lane), "total_bytes": lane.total_bytes}
            for name, lane in (("vision", self.vision), ("language", self.language))
        }
        return {
            **lanes,
            "needed_bytes": self.needed_bytes,
            "budget_bytes": self.budget_bytes,
            "budget_source": self.budget_source,
            "fits": self.fits,
        }


def plan_memory(model: ModelSpec, decision: Decision, budget_mib: int | None = None) -> MemoryPlan:
    """Ask the chosen engines what their lanes would take. Never raises: what cannot be told stays open.

    Args:
        model: what is to be loaded.
        decision: which engine loads which lane, and how.
        budget_mib: what both lanes may take; None: what the profile allows. Never more than what is free now.
    """
    memories = {lane.lane: _ask(model, lane.lane, lane.found, lane.options) for lane in decision.lanes}
    told = [lane for lane in decision.lanes if memories[lane.lane] is not None]
    return MemoryPlan(memories.get("vision"), memories["language"], *_budget(decision, told, budget_mib))


def check_memory(model: ModelSpec, decision: Decision, budget_mib: int | None = None) -> MemoryPlan:
    """Refuse what does not fit into memory, before it is loaded; see `plan_memory`.

    Raises:
        MemoryBudgetError: it does not fit; the message has both numbers and the largest setting that does.
    """
    plan = plan_memory(model, decision, budget_mib)
    if plan.budget_bytes is None or plan.fits:
        return plan
    parts = []
    if plan.vision is not None:
        parts.append(f"vision {plan.vision.dtype} {_mib(plan.vision.total_bytes)}")
    if (speaks := plan.language) is not None:
        parts.append(f"language {speaks.dtype} with context_length {speaks.context_length} {_mib(speaks.total_bytes)}")
    smaller = _largest_that_fits(model, decision, plan)
    kv = _kv_that_fits(model, decision, plan)
    raise MemoryBudgetError(
        f"{model.name} needs {_mib(plan.needed_bytes)} of memory ({', '.join(parts)}) and may take "
        f"{_mib(plan.budget_bytes)} ({plan.budget_source}); "
        + (f"the largest setting that fits: {smaller}" if smaller else "nothing smaller fits")
        + (f"; or kv {kv} and all else as it is, which may change answers" if kv else ""),
        needed_bytes=plan.needed_bytes,
        budget_bytes=plan.budget_bytes,
    )


def _budget(decision: Decision, lanes: Sequence[LaneDecision], budget_mib: int | None) -> tuple[int | None, str]:
    """Return the smallest limit of these lanes, and its name."""
    limits = []
    if budget_mib is not None:
        limits.append((budget_mib * _MIB, "memory_budget_mib"))
    else:
        source = f"device profile {decision.profile.id}"
        limits += [(lane.budget_bytes, source) for lane in lanes if lane.budget_bytes is not None]
    free_bytes = available_memory_bytes()
    if free_bytes is not None:
        limits.append((free_bytes, "free now"))
    return min(limits, key=lambda limit: limit[0], default=(None, "unknown"))


def _ask(model: ModelSpec, lane: LaneName, engine: Engine | None, options: LaneOptions) -> LaneMemory | None:
    """Ask one engine; whatever is wrong with the files is said by loading them."""
    if engine is None or not isinstance(engine, MemoryPlanner):
        return None
    try:
        return engine.plan_memory(model, lane, options)
    except EdgeVLError:
        return None


def _largest_that_fits(model: ModelSpec, decision: Decision, plan: MemoryPlan) -> str:
    """Try a shorter context, then other precisions, the largest first; return the settings, empty if none fits."""
    settings = list(_settings(model, decision, plan))
    for useful in (_USEFUL_CONTEXT, _CONTEXT_STEP):
        for setting in settings:
            if found := setting.describe(model, decision, plan, useful):
                return found
    return ""


def _kv_that_fits(model: ModelSpec, decision: Decision, plan: MemoryPlan) -> str:
    """Return the finest KV policy with which all the rest fits, where none was asked for; empty if none does."""
    lane = decision.language
    if lane.found is None or plan.language is None or not lane.options.kv.is_auto:
        return ""
    room = (plan.budget_bytes or 0) - (plan.needed_bytes - plan.language.total_bytes)
    offer = KVOffer.of(lane.found.describe(model))
    for policy in map(parse_kv_policy, ("int8", "k8v4", "int4")):
        if not offer.lacks(policy):
            found = _ask(model, "language", lane.found, replace(lane.options, kv=policy))
            if found is not None and found.total_bytes <= room:
                return policy.name
    return ""


@dataclass(frozen=True, slots=True)
class _Setting:
    """One pair of precisions.

    Attributes:
        vision: what the vision lane would take with its own.
        vision_dtype: changed precision of the vision lane; empty: as it was.
        language_dtype: likewise.
    """

    vision: LaneMemory | None
    vision_dtype: str
    language_dtype: str

    def describe(self, model: ModelSpec, decision: Decision, plan: MemoryPlan, useful: int) -> str:
        """Return the setting with the longest context that fits, empty if none of at least `useful` entries does."""
        room = (plan.budget_bytes or 0) - (0 if self.vision is None else self.vision.total_bytes)
        changes = []
        if self.vision_dtype:
            changes.append(f"vision_dtype {self.vision_dtype}")
        if self.language_dtype:
            changes.append(f"language_dtype {self.language_dtype}")
        if plan.language is None:
            return ", ".join(changes) if room >= 0 else ""
        options = decision.language.options
        if self.language_dtype:
            options = replace(options, dtype=self.language_dtype)

        def fits(context_length: int) -> bool:
            tried = replace(options, context_length=context_length)
            found = _ask(model, "language", decision.language.found, tried)
            return found is not None and found.total_bytes <= room

        whole = plan.language.context_length
        if changes and fits(whole):
            return ", ".join(changes)
        highest = max(0, (whole - 1) // _CONTEXT_STEP)  # in steps
        low, high = 0, highest  # `low` fits or is 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle * _CONTEXT_STEP) else (low, middle - 1)
        context_length = low * _CONTEXT_STEP
        if not context_length or context_length < min(useful, highest * _CONTEXT_STEP):
            return ""
        return ", ".join((*changes, f"context_length {context_length}"))


def _settings(model: ModelSpec, decision: Decision, plan: MemoryPlan) -> Iterator[_Setting]:
    """Yield the precisions as they are, then smaller ones, those that take most first."""
    yield _Setting(plan.vision, "", "")
    visions = [(plan.vision, ""), *_smaller(model, "vision", decision.vision, plan.vision)]
    languages = [(plan.language, ""), *_smaller(model, "language", decision.language, plan.language)]
    pairs = [
        (sum(lane.total_bytes for lane in (vision, language) if lane is not None), vision, vision_dtype, language_dtype)
        for vision, vision_dtype in visions
        for language, language_dtype in languages
        if vision_dtype or language_dtype
    ]
    for _, vision, vision_dtype, language_dtype in sorted(pairs, key=lambda pair: -pair[0]):
        yield _Setting(vision, vision_dtype, language_dtype)


def _smaller(
    model: ModelSpec, lane: LaneName, decided: LaneDecision | None, now: LaneMemory | None
) -> Iterator[tuple[LaneMemory, str]]:
    """Yield the other precisions that an engine has or makes and that take less."""
    if decided is None or decided.found is None or now is None:
        return
    known = decided.found.describe(model)
    for dtype in (*known.get(f"{lane}_dtypes", ()), *known.get(f"{lane}_dtypes_made", ())):
        found = _ask(model, lane, decided.found, replace(decided.options, dtype=dtype))
        if found is not None and found.dtype != now.dtype and found.total_bytes < now.total_bytes:
            yield found, dtype


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:.0f} MiB"
