"""A decision: the device profile and the engines that run a model on a machine, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edge_vl.engine import Engine, LaneOptions
from edge_vl.engine_choice import Attempt, LaneName
from edge_vl.errors import EngineUnavailable
from edge_vl.kv_policy import KVPolicy
from edge_vl.machine import Machine
from edge_vl.profile import Limits, Profile
from edge_vl.profile_match import ProfileMatch

__all__ = ["Decision", "LaneDecision", "Wishes"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller wants instead of what the profile says; `auto` and None leave it to the profile.

    Attributes:
        profile: an id, or the path of a `.toml` file.
        vision_engine: by name, or itself.
        language_engine: likewise.
        vision_dtype: precision of the vision encoder.
        language_dtype: precision of the language model.
        device: of both lanes.
        threads: CPU threads of each lane.
        context_length: cache entries.
        kv: in what precision the KV cache is kept.
    """

    profile: str | Path = "auto"
    vision_engine: str | Engine = "auto"
    language_engine: str | Engine = "auto"
    vision_dtype: str = "auto"
    language_dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    context_length: int | None = None
    kv: KVPolicy = field(default_factory=KVPolicy)


@dataclass(frozen=True, slots=True, eq=False)
class LaneDecision:
    """What runs a lane.

    Attributes:
        lane: which.
        attempts: every engine, with why it is taken or not.
        found: the engine; None if none can run here.
        options: how it is to load the lane.
        budget_bytes: memory that the profile allows on the lane's device, the other lane included; None if unknown.
    """

    lane: LaneName
    attempts: tuple[Attempt, ...]
    found: Engine | None
    options: LaneOptions
    budget_bytes: int | None = None

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            EngineUnavailable: none can run here; the message gives each one's reason.
        """
        if self.found is not None:
            return self.found
        reasons = dict.fromkeys(f"{attempt.choice.name}: {attempt.reason}" for attempt in self.attempts)
        install = next((attempt.install for attempt in self.attempts if attempt.install), "")
        named = {attempt.choice.name for attempt in self.attempts}
        raise EngineUnavailable(
            named.pop() if len(named) == 1 else "auto",
            self.attempts[0].reason if len(reasons) == 1 else "; ".join(reasons),
            install,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What runs a model on a machine, and why.

    Attributes:
        machine: the machine.
        profile: the device profile.
        matches: every profile that was tried, the chosen one included.
        vision: what sees; None for a model that reads text only.
        language: what speaks.
        notes: what is not as the profile wants it, for people: to be told once.
    """

    machine: Machine
    profile: Profile
    matches: tuple[ProfileMatch, ...]
    vision: LaneDecision | None
    language: LaneDecision
    notes: tuple[str, ...]

    @property
    def lanes(self) -> tuple[LaneDecision, ...]:
        """The lanes that there are, vision first."""
        return (self.language,) if self.vision is None else (self.vision, self.language)

    @property
    def limits(self) -> Limits:
        """What a request may be on this device."""
        return self.profile.limits
