"""Choosing what runs a model here: the device profile, then an engine for each lane, with a reason for everything."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from edge_vl.engine import Engine, EngineStatus, LaneOptions, MemoryPlanner
from edge_vl.engine_choice import Attempt, EngineFacts, LaneChoice, LaneName, Look, choose_engine_of_lane
from edge_vl.errors import EngineNotFound, EngineUnavailable, ModelError, ProfileError, RequestError
from edge_vl.kv_offer import KVOffer
from edge_vl.kv_policy import KVPolicy
from edge_vl.machine import Machine, read_machine
from edge_vl.model_spec import ModelSpec
from edge_vl.profile import EngineChoice, Profile
from edge_vl.profile_decision import Decision, LaneDecision, Wishes
from edge_vl.profile_library import find_profile, list_profiles
from edge_vl.profile_match import best_match, match_profile
from edge_vl.registry import engine_named, engine_names

__all__ = ["choose", "consider", "decide"]

_AUTO_KV = KVPolicy()
_COMES_LATER = {"tensorrt": "; it comes with a later version of edge-vl"}


def decide(
    model: ModelSpec,
    *,
    profile: str | Path = "auto",
    vision_engine: str | Engine = "auto",
    language_engine: str | Engine = "auto",
    vision_dtype: str = "auto",
    language_dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    context_length: int | None = None,
    kv: KVPolicy = _AUTO_KV,
    machine: Machine | None = None,
) -> Decision:
    """Choose the device profile and an engine for each lane. What is said here comes before what the profile says.

    Args:
        model: what is to run.
        profile: `auto`, an id, or the path of a `.toml` file.
        vision_engine: `auto`, a name, or an engine, which is taken as it is.
        language_engine: likewise.
        vision_dtype: precision of the vision encoder.
        language_dtype: precision of the language model.
        device: of both lanes.
        threads: CPU threads of each lane.
        context_length: cache entries; None: the profile's limit.
        kv: in what precision the KV cache is kept.
        machine: described rather than read; None reads it.

    Returns:
        The decision; `engine` of its lanes can be had without an error.

    Raises:
        ProfileError: a profile cannot be used, or there is none of that name.
        RequestError: what is given as an engine is none.
        EngineNotFound: an engine was named that no installed package offers.
        EngineUnavailable: no engine can run a lane here, or not the one that was named.
    """
    wishes = Wishes(
        profile, vision_engine, language_engine, vision_dtype, language_dtype, device, threads, context_length, kv
    )
    decision = consider(model, wishes, machine)
    for lane in decision.lanes:
        _ = lane.engine  # raises where there is none
    return decision


def consider(model: ModelSpec, wishes: Wishes, machine: Machine | None = None) -> Decision:
    """Do what `decide` does, but leave a lane without engine where none can run it. For explaining.

    Raises:
        ProfileError: as for `decide`; so are the others.
        RequestError: likewise.
        EngineNotFound: likewise.
    """
    named: tuple[object, ...] = (wishes.vision_engine, wishes.language_engine)
    for engine in named:
        if not isinstance(engine, (str, Engine)):
            found = type(engine).__name__
            raise RequestError(f"an engine is wanted by name or as an object, not a {found}", field="engine")
        if isinstance(engine, str) and engine != "auto" and engine not in engine_names():
            raise EngineNotFound(engine, engine_names())
    profiles = list_profiles()
    if wishes.profile != "auto":
        asked: Profile | None = find_profile(wishes.profile, profiles)
    else:
        asked = None

    @functools.cache
    def look(name: str) -> EngineFacts:
        return _look(name, model)

    return choose(machine or read_machine(), profiles, look, wishes, asked, engine_names(), has_vision=model.has_vision)


def choose(
    machine: Machine,
    profiles: Sequence[Profile],
    look: Look,
    wishes: Wishes,
    asked: Profile | None = None,
    installed: Sequence[str] = (),
    *,
    has_vision: bool = True,
) -> Decision:
    """Choose, from what is known: no file is read and no engine is imported but by `look`.

    Args:
        machine: where it is to run.
        profiles: to be tried.
        look: what is known of an engine.
        wishes: what comes before the profile.
        asked: the profile that `wishes` names.
        installed: engines that may be taken when none of the profile's will do.
        has_vision: whether the model sees.

    Raises:
        ProfileError: no profile matches the machine.
    """
    matches = tuple(match_profile(profile, machine) for profile in profiles)
    notes: list[str] = []
    if asked is None:
        best = best_match(matches)
        if best is None:
            raise ProfileError(
                "no device profile matches this machine; name one", path="", key="match", expected="a match", got="none"
            )
        profile = best.profile
    else:
        profile = asked
        own = match_profile(asked, machine)
        if all(match.profile is not asked for match in matches):
            matches = (*matches, own)
        if not own.is_match and asked.rules:
            notes.append(f"profile {asked.id} was asked for, but is meant for another device: {own.reason}")

    def lane(name: LaneName) -> LaneDecision:
        decision, lane_notes = _decide_lane(name, machine, profile, look, wishes, installed)
        notes.extend(lane_notes)
        return decision

    vision = lane("vision") if has_vision else None
    return Decision(machine, profile, matches, vision, lane("language"), tuple(notes))


def _decide_lane(
    lane: LaneName, machine: Machine, profile: Profile, look: Look, wishes: Wishes, installed: Sequence[str]
) -> tuple[LaneDecision, list[str]]:
    is_vision = lane == "vision"
    engine = wishes.vision_engine if is_vision else wishes.language_engine
    dtype = wishes.vision_dtype if is_vision else wishes.language_dtype
    preferred = profile.lane(lane).engines
    if not isinstance(engine, str):
        attempt = Attempt(EngineChoice(engine.name), "taken", "it was given as an object")
        choice = LaneChoice((attempt,), engine.name, dtype, wishes.device)
        facts = EngineFacts(EngineStatus(True), engine)
    else:
        if engine == "auto":
            named = {choice.name for choice in preferred}
            choices = (*preferred, *(EngineChoice(name) for name in installed if name not in named))
        else:
            choices = tuple(choice for choice in preferred if choice.name == engine) or (EngineChoice(engine),)
        choice = choose_engine_of_lane(lane, choices, machine.flags, look, dtype=dtype, device=wishes.device)
        facts = look(choice.name) if choice.name else EngineFacts(EngineStatus(False))
    notes = list(_lane_notes(lane, profile, choice))
    kv = wishes.kv
    if not is_vision and kv.is_auto and choice.name:
        lacking = facts.kv.lacks(profile.kv)
        if not lacking:
            kv = profile.kv
        else:
            notes.append(
                f"language: profile {profile.id} prefers a KV cache in {profile.kv.name}, and {choice.name} has "
                f"{lacking}; its own precision is used"
            )
    options = LaneOptions(
        dtype=choice.dtype,
        threads=profile.lane(lane).threads if wishes.threads is None else wishes.threads,
        device=choice.device,
        context_length=None if is_vision else wishes.context_length or profile.limits.context_length,
        kv=_AUTO_KV if is_vision else kv,
        is_kv_wish=not is_vision and kv is not wishes.kv,
    )
    budget = _budget_bytes(profile, machine, choice.device)
    return LaneDecision(lane, choice.attempts, facts.engine, options, budget), notes


def _lane_notes(lane: LaneName, profile: Profile, choice: LaneChoice) -> list[str]:
    """Say in one sentence what was wanted before the engine that runs."""
    missing: dict[tuple[str, str, str], str] = {}
    taken = choice.name
    for attempt in choice.attempts:
        if attempt.outcome == "taken":
            taken = attempt.label
        elif attempt.outcome == "missing":
            group = (attempt.choice.name, attempt.reason, attempt.install)
            # The same is missing for every precision: then the engine alone is meant.
            missing[group] = attempt.choice.name if group in missing else attempt.label
    if not missing or not taken or choice.is_last_resort:
        return []
    said = [f"{label} ({'; '.join(filter(None, why))})" for (_, *why), label in missing.items()]
    return [f"{lane}: profile {profile.id} prefers {', then '.join(said)}; {taken} runs instead"]


def _budget_bytes(profile: Profile, machine: Machine, device: str) -> int | None:
    """Return what the profile allows of the memory that a device's weights lie in."""
    is_host = device.startswith(("auto", "cpu")) or profile.memory.unified or not machine.gpus
    total = machine.memory_total_bytes if is_host else machine.gpus[0].memory_total_bytes
    if total is None and profile.memory.total_mib is not None:
        total = profile.memory.total_mib * 1024**2
    return None if total is None else profile.memory.budget_bytes(total)


def _look(name: str, model: ModelSpec) -> EngineFacts:
    """Ask an engine what it knows."""
    try:
        engine = engine_named(name)
    except EngineNotFound as error:
        more = _COMES_LATER.get(name, "")
        close = difflib.get_close_matches(name, error.known, n=1)
        if close and not more:
            more = f"; did you mean {close[0]!r}?"
        return EngineFacts(EngineStatus(False, reason=f"no installed package offers it{more}"))
    except EngineUnavailable as error:
        return EngineFacts(EngineStatus(False, reason=error.missing, install=error.install))
    status = engine.status()
    if not status.is_available:
        return EngineFacts(status, engine)
    try:
        known = engine.describe(model)
    except ModelError:
        known = {}  # loading raises it again, where it belongs

    def weights_bytes(lane: Literal["vision", "language"]) -> int | None:
        if not isinstance(engine, MemoryPlanner):
            return None
        try:
            memory = engine.plan_memory(model, lane, LaneOptions())
        except ModelError:
            return None
        return None if memory is None else memory.weights_bytes

    dtypes: dict[LaneName, tuple[str, ...]] = {
        "vision": (*known.get("vision_dtypes", ()), *known.get("vision_dtypes_made", ())),
        "language": (*known.get("language_dtypes", ()), *known.get("language_dtypes_made", ())),
    }
    return EngineFacts(status, engine, dtypes, KVOffer.of(known), weights_bytes)
