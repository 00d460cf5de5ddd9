"""Profiles and decisions as JSON-ready values and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from edge_vl.profile import Profile, Rule
from edge_vl.profile_decision import Decision, LaneDecision

__all__ = ["decision_lines", "decision_values", "lane_summary", "profile_lines", "profile_values"]


def profile_values(profile: Profile) -> dict[str, Any]:
    """Return everything a profile says; every value beside its provenance."""
    return {
        "id": profile.id,
        "name": profile.name,
        "path": str(profile.path),
        "is_shipped": profile.is_shipped,
        "match": [dict(_said(rule)) for rule in profile.rules],
        "values": {
            key: {"value": value, "provenance": profile.provenance.get(key, "")}
            for key, value in profile.values.items()
        },
        "measured": [asdict(record) for record in profile.measured],
    }


def profile_lines(profile: Profile) -> Iterator[str]:
    """Yield everything a profile says, a line for each value and one below it for where it is from."""
    yield f"{profile.id}: {profile.name}"
    yield f"  {profile.path}"
    for rule in profile.rules:
        said = ", ".join(f"{key} = {_shown(value)}" for key, value in _said(rule))
        yield f"  match: {said or 'every machine'}"
    for key, value in profile.values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"  {key}:"
            for index, choice in enumerate(value, start=1):
                yield f"    {index}. " + ", ".join(f"{name} = {_shown(entry)}" for name, entry in choice.items())
        else:
            yield f"  {key} = {_shown(value)}"
        yield f"      {profile.provenance.get(key, 'no provenance given')}"
    for record in profile.measured:
        yield f"  measured: {record.result} ({record.command}, {record.date}, edge-vl {record.edge_vl})"


def decision_values(decision: Decision) -> dict[str, Any]:
    """Return a decision with everything that was tried."""
    return {
        "machine": asdict(decision.machine),
        "profile": decision.profile.id,
        "profiles": [
            {
                "id": match.profile.id,
                "is_match": match.is_match,
                "is_taken": match.profile is decision.profile,
                "points": match.points if match.is_match else None,
                "reason": match.reason,
            }
            for match in decision.matches
        ],
        "lanes": {lane.lane: _lane_values(lane) for lane in decision.lanes},
        "limits": asdict(decision.limits),
        "notes": list(decision.notes),
    }


def decision_lines(decision: Decision) -> Iterator[str]:
    """Yield a decision with everything that was tried, the profiles that match first."""
    machine = decision.machine
    yield f"device: {machine.board or machine.cpu or machine.arch}"
    for gpu in machine.gpus:
        yield f"  GPU: {gpu.name}" + (
            f", compute capability {gpu.compute_capability}" if gpu.compute_capability else ""
        )
    yield "profiles:"
    for match in sorted(decision.matches, key=lambda match: (-match.points, match.profile.id)):
        is_taken = match.profile is decision.profile
        points = f"{match.points} points: " if match.is_match else ""
        yield f"  {'*' if is_taken else '-'} {match.profile.id:<22}{points}{match.reason}"
    for lane in decision.lanes:
        yield f"{lane.lane}:"
        for attempt in lane.attempts:
            install = f"; {attempt.install}" if attempt.install else ""
            sign = "*" if attempt.outcome == "taken" else "-"
            yield f"  {sign} {attempt.label:<28} {attempt.outcome}: {attempt.reason}{install}"
        yield f"  = {lane_summary(lane)}"
    said = [f"{key.replace('_', ' ')} {value}" for key, value in asdict(decision.limits).items() if value is not None]
    yield f"limits: {', '.join(said) or 'those of the model'}"
    for note in decision.notes:
        yield f"note: {note}"


def lane_summary(lane: LaneDecision) -> str:
    """Say in one line what runs a lane."""
    if lane.found is None:
        return "no engine can run it here"
    options = lane.options
    budget = "" if lane.budget_bytes is None else f", budget {lane.budget_bytes // 1024**2} MiB"
    kv = "" if options.kv.is_auto else f", KV cache {options.kv.name}"
    threads = "" if options.threads is None else f", {options.threads} threads"
    return f"{lane.found.name}, dtype {options.dtype}, device {options.device}{threads}{kv}{budget}"


def _said(rule: Rule) -> Iterator[tuple[str, Any]]:
    """Yield what a rule says."""
    for key, value in asdict(rule).items():
        if value not in ((), "", None):
            yield key, value


def _lane_values(lane: LaneDecision) -> dict[str, Any]:
    return {
        "engine": None if lane.found is None else lane.found.name,
        "options": {**asdict(lane.options), "kv": lane.options.kv.name},
        "budget_bytes": lane.budget_bytes,
        "attempts": [
            {
                "engine": attempt.choice.name,
                "wanted": attempt.label,
                "outcome": attempt.outcome,
                "reason": attempt.reason,
                "install": attempt.install,
            }
            for attempt in lane.attempts
        ],
    }


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
