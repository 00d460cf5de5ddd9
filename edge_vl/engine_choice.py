"""Choosing the engine of one lane: a pure function of a profile, a machine and what is known of the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edge_vl.engine import Engine, EngineStatus
from edge_vl.kv_offer import KVOffer
from edge_vl.profile import EngineChoice

__all__ = ["Attempt", "EngineFacts", "LaneChoice", "LaneName", "Look", "choose_engine_of_lane"]

LaneName = Literal["vision", "language"]

_MIB = 1024**2


@dataclass(frozen=True, slots=True, eq=False)
class EngineFacts:
    """What is known of one engine and one model.

    Attributes:
        status: whether it can run here.
        engine: the engine; None where it cannot be imported.
        dtypes: by lane, the precisions that it has files for or can make.
        kv: what it can do of KV policies.
        weights_bytes: says how large a lane's most faithful weights are; None if that cannot be told.
    """

    status: EngineStatus
    engine: Engine | None = None
    dtypes: Mapping[LaneName, tuple[str, ...]] | None = None
    kv: KVOffer = field(default_factory=KVOffer)
    weights_bytes: Callable[[LaneName], int | None] = lambda lane: None

    def lane_dtypes(self, lane: LaneName) -> tuple[str, ...]:
        """Precisions for one lane."""
        return (self.dtypes or {}).get(lane, ())


Look = Callable[[str], EngineFacts]
"""Looks at an engine by name; called only for engines that are reached."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One engine, tried for a lane.

    Attributes:
        choice: what the profile or the caller wanted.
        outcome: `taken`; `missing`: something that was wanted is not there; `unsuited`: the profile itself says that it
            is not worth it here; `not reached`: an earlier one was taken.
        reason: why.
        install: the command that would help, if there is one.
    """

    choice: EngineChoice
    outcome: Literal["taken", "missing", "unsuited", "not reached"]
    reason: str
    install: str = ""

    @property
    def label(self) -> str:
        """The engine with what was wanted of it, such as `onnxruntime int8 on cpu`."""
        return describe_choice(self.choice)


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """What came out for a lane.

    Attributes:
        attempts: in the order in which they were tried.
        name: of the engine; empty if none will do.
        dtype: to load.
        device: to load it on.
        is_last_resort: nothing fits, and loading this engine will tell what is missing.
    """

    attempts: tuple[Attempt, ...]
    name: str = ""
    dtype: str = "auto"
    device: str = "auto"
    is_last_resort: bool = False


def choose_engine_of_lane(
    lane: LaneName,
    choices: Sequence[EngineChoice],
    flags: Sequence[str],
    look: Look,
    *,
    dtype: str = "auto",
    device: str = "auto",
) -> LaneChoice:
    """Try engines in order and take the first that will do.

    Args:
        lane: which.
        choices: the best first.
        flags: of the processor.
        look: what is known of an engine.
        dtype: what the caller wants instead of the choices' own precisions; `auto`: theirs.
        device: likewise.

    Returns:
        The choice, with a reason for everything that was not taken.
    """
    attempts: list[Attempt] = []
    taken: LaneChoice | None = None
    for choice in _as_wanted(choices, dtype, device):
        if taken is not None:
            attempts.append(Attempt(choice, "not reached", "an earlier one is taken"))
            continue
        attempt, taken = _try(lane, choice, flags, look)
        attempts.append(attempt)
    if taken is not None:
        return replace(taken, attempts=tuple(attempts))
    # Files or a precision are missing: the error of the engine that is nearest to it says which, better than we could.
    available = [attempt.choice.name for attempt in attempts if look(attempt.choice.name).status.is_available]
    nearest = next((name for name in available if look(name).lane_dtypes(lane)), next(iter(available), ""))
    return LaneChoice(tuple(attempts), nearest, dtype, device, is_last_resort=bool(nearest))


def describe_choice(choice: EngineChoice) -> str:
    """Name an engine with what is wanted of it."""
    dtypes = "" if choice.dtypes == ("auto",) else f" {' or '.join(choice.dtypes)}"
    return f"{choice.name}{dtypes}" + ("" if choice.device == "auto" else f" on {choice.device}")


def _as_wanted(choices: Sequence[EngineChoice], dtype: str, device: str) -> Iterator[EngineChoice]:
    """Put what the caller wants in place of the profile's; what then is said twice is said once."""
    seen: set[EngineChoice] = set()
    for choice in choices:
        if dtype != "auto":
            choice = replace(choice, dtypes=(dtype,), any_cpu_flags=(), min_weights_mib=0)
        if device != "auto":
            choice = replace(choice, device=device)
        if choice not in seen:
            seen.add(choice)
            yield choice


def _try(lane: LaneName, choice: EngineChoice, flags: Sequence[str], look: Look) -> tuple[Attempt, LaneChoice | None]:
    def missing(reason: str, install: str = "") -> tuple[Attempt, None]:
        return Attempt(choice, "missing", reason, install), None

    def unsuited(reason: str) -> tuple[Attempt, None]:
        return Attempt(choice, "unsuited", reason), None

    if choice.any_cpu_flags and not set(choice.any_cpu_flags) & set(flags):
        return unsuited(f"the processor has none of {', '.join(choice.any_cpu_flags)}")
    facts = look(choice.name)
    if not facts.status.is_available:
        return missing(facts.status.reason or "it is not available", facts.status.install)
    devices = facts.status.devices
    device = choice.device
    if device != "auto":
        device = next((name for name in devices if name.lower().startswith(choice.device.lower())), "")
        if not device:
            return missing(f"it offers {', '.join(devices) or 'no device'} here, not {choice.device}")
    at_hand = facts.lane_dtypes(lane)
    if not at_hand:
        return unsuited(f"the model has no files for its {lane} lane")
    if choice.min_weights_mib:
        size = facts.weights_bytes(lane)
        if size is None:
            return unsuited(f"it is worth it from {choice.min_weights_mib} MiB on, and the size is unknown")
        if size < choice.min_weights_mib * _MIB:
            return unsuited(f"it is worth it from {choice.min_weights_mib} MiB on, and this is {size / _MIB:.1f} MiB")
    dtype = next((dtype for dtype in choice.dtypes if dtype == "auto" or dtype in at_hand), "")
    if not dtype:
        return missing(f"the model has no {' or '.join(choice.dtypes)} for it, only {', '.join(at_hand)}")
    return Attempt(choice, "taken", "it can run here"), LaneChoice((), choice.name, dtype, device)
