"""Matching a machine with device profiles: which one is meant, and why the others are not.

A profile is meant when everything that one of its rules says holds. Of several, the one whose rule says the most
special things wins: each kind of statement that holds adds its points.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from edge_vl.accelerators import Gpu
from edge_vl.machine import Machine
from edge_vl.profile import Profile, Rule

__all__ = ["POINTS", "ProfileMatch", "best_match", "match_profile"]

POINTS: Mapping[str, int] = {
    "compatible": 32,
    "board_regex": 16,
    "gpu_regex": 16,
    "cpu_regex": 8,
    "compute_capability": 4,
    "cpu_flags": 2,
    "gpu_vendor": 2,
    "arch": 1,
    "memory": 1,
    "gpu_memory": 1,
}
"""What a statement that holds is worth; `docs/profiles.md` says the same."""

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ProfileMatch:
    """One profile, tried on a machine.

    Attributes:
        profile: the profile.
        points: how special it is; -1 if it does not match.
        reason: what held, or what did not.
    """

    profile: Profile
    points: int
    reason: str

    @property
    def is_match(self) -> bool:
        """Whether the machine is one that the profile is for."""
        return self.points >= 0


@dataclass(frozen=True, slots=True)
class _Check:
    kind: str
    holds: bool
    reason: str


def match_profile(profile: Profile, machine: Machine) -> ProfileMatch:
    """Try a profile on a machine: its best rule counts, or all of them say why they do not hold."""
    if not profile.rules:
        return ProfileMatch(profile, -1, "it has no match rules; it is taken by name only")
    matches: list[ProfileMatch] = []
    failures: list[str] = []
    for rule in profile.rules:
        checks = _strongest(rule, machine)
        failed = [check.reason for check in checks if not check.holds]
        if failed:
            failures += failed
        else:
            points = sum(POINTS[check.kind] for check in checks)
            reason = ", ".join(check.reason for check in checks) or "it suits every machine"
            matches.append(ProfileMatch(profile, points, reason))
    if matches:
        return max(matches, key=lambda match: match.points)
    return ProfileMatch(profile, -1, "; ".join(dict.fromkeys(failures)))


def best_match(matches: Sequence[ProfileMatch]) -> ProfileMatch | None:
    """Return the most special match; among equals a user's own profile, then the first by id; None: nothing matches."""
    found = [match for match in matches if match.is_match]
    return min(found, key=lambda match: (-match.points, match.profile.is_shipped, match.profile.id), default=None)


def _strongest(rule: Rule, machine: Machine) -> list[_Check]:
    """Check a rule; what it says of a GPU must hold of one and the same."""
    checks = [*_board_checks(rule, machine), *_cpu_checks(rule, machine)]
    wants_gpu = rule.gpu_vendor or rule.gpu_regex or rule.compute_capability
    if not wants_gpu and rule.min_gpu_memory_mib is None and rule.max_gpu_memory_mib is None:
        return checks
    if not machine.gpus:
        return [*checks, _Check("gpu_vendor", False, "no GPU was found")]
    by_gpu = [list(_gpu_checks(rule, gpu)) for gpu in machine.gpus]
    return checks + max(by_gpu, key=lambda found: all(check.holds for check in found))


def _board_checks(rule: Rule, machine: Machine) -> Iterator[_Check]:
    if rule.compatible:
        found = next(
            (name for name in machine.compatible if any(fnmatchcase(name, pattern) for pattern in rule.compatible)), ""
        )
        if found:
            yield _Check("compatible", True, f"the device tree says {found}")
        elif machine.compatible:
            wanted = " or ".join(rule.compatible)
            yield _Check("compatible", False, f"the device tree says {', '.join(machine.compatible)}, not {wanted}")
        else:
            yield _Check("compatible", False, "there is no device tree")
    if rule.board_regex:
        holds = re.search(rule.board_regex, machine.board) is not None
        verb = "matches" if holds else "does not match"
        named = f"the board {machine.board!r} {verb}" if machine.board else "no board's name is known to match"
        yield _Check("board_regex", holds, f"{named} {rule.board_regex!r}")
    yield from _range_check("memory", "memory", machine.memory_total_bytes, rule.min_memory_mib, rule.max_memory_mib)


def _cpu_checks(rule: Rule, machine: Machine) -> Iterator[_Check]:
    if rule.arch:
        holds = machine.arch in rule.arch
        yield _Check(
            "arch", holds, f"the architecture is {machine.arch}" + ("" if holds else f", not {_any(rule.arch)}")
        )
    if rule.cpu_regex:
        holds = re.search(rule.cpu_regex, machine.cpu) is not None
        verb = "matches" if holds else "does not match"
        yield _Check("cpu_regex", holds, f"the processor {machine.cpu!r} {verb} {rule.cpu_regex!r}")
    if rule.cpu_flags:
        missing = [flag for flag in rule.cpu_flags if flag not in machine.flags]
        reason = f"the processor lacks {', '.join(missing)}" if missing else f"it has {', '.join(rule.cpu_flags)}"
        yield _Check("cpu_flags", not missing, reason)


def _gpu_checks(rule: Rule, gpu: Gpu) -> Iterator[_Check]:
    if rule.gpu_vendor:
        holds = gpu.vendor == rule.gpu_vendor
        yield _Check("gpu_vendor", holds, f"the GPU is of {gpu.vendor}" + ("" if holds else f", not {rule.gpu_vendor}"))
    if rule.gpu_regex:
        holds = re.search(rule.gpu_regex, gpu.name) is not None
        verb = "matches" if holds else "does not match"
        yield _Check("gpu_regex", holds, f"the GPU {gpu.name!r} {verb} {rule.gpu_regex!r}")
    if rule.compute_capability:
        holds = gpu.compute_capability in rule.compute_capability
        reason = f"its compute capability is {gpu.compute_capability or 'unknown'}"
        yield _Check("compute_capability", holds, reason + ("" if holds else f", not {_any(rule.compute_capability)}"))
    yield from _range_check(
        "gpu_memory", "the GPU's memory", gpu.memory_total_bytes, rule.min_gpu_memory_mib, rule.max_gpu_memory_mib
    )


def _range_check(kind: str, words: str, found: int | None, low: int | None, high: int | None) -> Iterator[_Check]:
    """Check a memory against its bounds; one that is unknown holds no bound."""
    if low is None and high is None:
        return
    if found is None:
        yield _Check(kind, False, f"{words} is unknown")
        return
    mib = found // _MIB
    bounds: list[tuple[str, int | None, Callable[[int], bool]]] = [
        ("less than", low, lambda bound: mib < bound),
        ("more than", high, lambda bound: mib > bound),
    ]
    for word, bound, fails in bounds:
        if bound is not None and fails(bound):
            yield _Check(kind, False, f"{words} is {mib} MiB, {word} {bound}")
            return
    yield _Check(kind, True, f"{words} is {mib} MiB")


def _any(names: Sequence[str]) -> str:
    return " or ".join(names)
