"""A device profile: which engines, budgets and limits suit one kind of device, read from a TOML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edge_vl.errors import ProfileError, RequestError
from edge_vl.kv_policy import KVPolicy, parse_kv_policy
from edge_vl.mode_choice import Mode
from edge_vl.profile_schema import KEYS, PROVENANCE, WITHOUT_PROVENANCE
from edge_vl.toml_file import Kind, read_toml

__all__ = [
    "EngineChoice",
    "Limits",
    "Measurement",
    "MemoryFacts",
    "PowerFacts",
    "Profile",
    "ProfileLane",
    "Rule",
    "read_profile",
]

_PROVENANCE_WORDS = ("vendor", "measured", "estimated")


@dataclass(frozen=True, slots=True)
class Rule:
    """One way for a device to be the one meant. Everything that is given must hold; see `docs/profiles.md`.

    Attributes:
        arch: any of these architectures.
        compatible: any of these device tree names; `*` stands for any characters.
        board_regex: found in the board's name.
        cpu_regex: found in the processor's name.
        cpu_flags: all of these.
        gpu_vendor: of one GPU that the GPU's other rules hold for, too.
        gpu_regex: found in the GPU's name.
        compute_capability: any of these.
        min_memory_mib: of the machine or its container.
        max_memory_mib: likewise.
        min_gpu_memory_mib: of the GPU's own memory.
        max_gpu_memory_mib: likewise.
    """

    arch: tuple[str, ...] = ()
    compatible: tuple[str, ...] = ()
    board_regex: str = ""
    cpu_regex: str = ""
    cpu_flags: tuple[str, ...] = ()
    gpu_vendor: str = ""
    gpu_regex: str = ""
    compute_capability: tuple[str, ...] = ()
    min_memory_mib: int | None = None
    max_memory_mib: int | None = None
    min_gpu_memory_mib: int | None = None
    max_gpu_memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """The device's memory, and how much of it may be used.

    Attributes:
        total_mib: of the memory that models live in; None: as detected.
        unified: whether CPU and GPU share it.
        bandwidth_gbps: gigabytes (10**9) a second; None if unknown.
        reserve_mib: left to everything else.
        budget_fraction: share that may be used, 0.05 to 1.
    """

    total_mib: int | None = None
    unified: bool = False
    bandwidth_gbps: float | None = None
    reserve_mib: int = 0
    budget_fraction: float = 1.0

    def budget_bytes(self, total_bytes: int) -> int:
        """Return what may be used of a memory: the share or what the reserve leaves, whichever is less."""
        left = total_bytes - self.reserve_mib * 1024**2
        return max(0, min(int(total_bytes * self.budget_fraction), left))


@dataclass(frozen=True, slots=True)
class PowerFacts:
    """What the device draws, in watts, and where that can be read."""

    min_w: float | None = None
    max_w: float | None = None
    modes: tuple[str, ...] = ()
    default_mode: str = ""
    sensor: str = "none"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """One engine that may run a lane.

    Attributes:
        name: of the engine.
        dtypes: wanted precisions, the best first; `auto` is the engine's most faithful one.
        device: `auto`, or the beginning of a name that the engine lists: `cuda` means `cuda:0` as well.
        any_cpu_flags: the choice is worth it only with one of these; empty: always.
        min_weights_mib: the choice is worth it only for a lane whose most faithful weights are at least so large.
    """

    name: str
    dtypes: tuple[str, ...] = ("auto",)
    device: str = "auto"
    any_cpu_flags: tuple[str, ...] = ()
    min_weights_mib: int = 0


@dataclass(frozen=True, slots=True)
class ProfileLane:
    """What one lane should run on.

    Attributes:
        engines: the best first.
        threads: CPU threads; None: the engine chooses from the cores it may use.
    """

    engines: tuple[EngineChoice, ...]
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may be on this device; None: as large as the model allows."""

    context_length: int | None = None
    max_image_tokens: int | None = None
    longest_edge: int | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """A figure measured on the device: by which command, when, with which version of edge-vl, and what came out."""

    command: str
    date: str
    edge_vl: str
    result: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A device profile.

    Attributes:
        id: short name.
        name: of the device, for people.
        path: the file.
        rules: a device that fulfils any of them is meant; none: only by name.
        memory: see `MemoryFacts`.
        power: see `PowerFacts`.
        vision: see `ProfileLane`.
        language: likewise.
        kv: in what precision the KV cache is kept, `auto` for the engine's own.
        schedule_mode: how the lanes take turns; `auto` learns it.
        limits: see `Limits`.
        first_token_s: goal for the first token of an answer, in seconds from the question; None: no goal.
        token_s: goal for every further token.
        measured: figures measured on the device.
        provenance: by dotted key, `vendor: ...`, `measured: ...` or `estimated: ...`.
        values: what the provenance is about, by dotted key, as the file has it.
        is_shipped: whether it came with edge-vl.
    """

    id: str
    name: str
    path: Path
    rules: tuple[Rule, ...]
    memory: MemoryFacts
    power: PowerFacts
    vision: ProfileLane
    language: ProfileLane
    kv: KVPolicy = field(default_factory=KVPolicy)
    schedule_mode: Mode | Literal["auto"] = "auto"
    limits: Limits = field(default_factory=Limits)
    first_token_s: float | None = None
    token_s: float | None = None
    measured: tuple[Measurement, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    is_shipped: bool = False

    def lane(self, lane: Literal["vision", "language"]) -> ProfileLane:
        """Return what a lane should run on."""
        return self.vision if lane == "vision" else self.language


def read_profile(path: Path, *, is_shipped: bool = False) -> Profile:
    """Read a profile.

    Args:
        path: of the TOML file.
        is_shipped: whether it came with edge-vl.

    Raises:
        ProfileError: it cannot be read, or says something that makes no sense.
    """
    content = read_toml(path, _SCHEMA)
    provenance = dict(_flat(content.pop(PROVENANCE, {})))
    values = dict(_values(content))
    _check_provenance(path, provenance, values)
    for lane in ("vision", "language"):
        if not content.get(lane, {}).get("engines"):
            raise _error(path, f"{lane}.engines", "an array of tables, at least one", "nothing")
    memory, power, slo = (content.get(key, {}) for key in ("memory", "power", "slo"))
    _check_pairs(path, content)
    return Profile(
        id=content["id"],
        name=content["name"],
        path=path,
        rules=tuple(Rule(**_frozen(rule)) for rule in content.get("match", [])),
        memory=MemoryFacts(**memory),
        power=PowerFacts(**_frozen(power)),
        vision=_lane(content["vision"]),
        language=_lane(content["language"]),
        kv=_kv_policy(path, content.get("kv", "auto")),
        schedule_mode=content.get("schedule", {}).get("mode", "auto"),
        limits=Limits(**content.get("limits", {})),
        first_token_s=slo.get("first_token_s"),
        token_s=slo.get("token_s"),
        measured=tuple(Measurement(**record) for record in content.get("measured", [])),
        provenance=provenance,
        values=values,
        is_shipped=is_shipped,
    )


def _kv_policy(path: Path, said: str | Mapping[str, str]) -> KVPolicy:
    """Read a policy; what is wrong with one part, the schema has found."""
    try:
        return parse_kv_policy(said)
    except RequestError as error:
        raise ProfileError(
            f"{path}: {error}", path=str(path), key="kv", expected="a KV policy", got=repr(said)
        ) from None


def _lane(table: Mapping[str, Any]) -> ProfileLane:
    return ProfileLane(tuple(EngineChoice(**_frozen(choice)) for choice in table["engines"]), table.get("threads"))


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _values(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every value that needs a provenance by its dotted key; a lane's list of engines is one value."""
    for key, value in content.items():
        if key in WITHOUT_PROVENANCE:
            continue
        if not isinstance(value, dict):
            yield key, value
            continue
        for inner, entry in value.items():
            yield f"{key}.{inner}", entry


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys, whether or not they were written in quotes."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_provenance(path: Path, provenance: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for key, said in provenance.items():
        shown = f"{PROVENANCE}.{key}"
        if key not in values:
            raise _error(path, shown, "the name of a value of this profile", key)
        word, colon, source = said.partition(":") if isinstance(said, str) else ("", "", "")
        if word not in _PROVENANCE_WORDS or not colon or not source.strip():
            raise _error(path, shown, f"one of {', '.join(_PROVENANCE_WORDS)}, a colon and the source", repr(said))


def _check_pairs(path: Path, content: Mapping[str, Any]) -> None:
    """Check what two keys say together."""
    tables = [(f"match[{index}].", rule) for index, rule in enumerate(content.get("match", []))]
    pairs = [(prefix, table, f"{kind}memory_mib") for prefix, table in tables for kind in ("", "gpu_")]
    for prefix, table, key in [*pairs, ("power.", content.get("power", {}), "w")]:
        low, high = table.get(f"min_{key}"), table.get(f"max_{key}")
        if low is not None and high is not None and low > high:
            raise _error(path, f"{prefix}min_{key}", f"at most max_{key} ({high})", str(low))
    power = content.get("power", {})
    default = power.get("default_mode")
    if default is not None and default not in power.get("modes", ()):
        raise _error(path, "power.default_mode", "one of power.modes", repr(default))


def _error(path: Path, key: str, expected: str, got: str) -> ProfileError:
    message = f"{path}: {key} should be {expected}, not {got}"
    return ProfileError(message, path=str(path), key=key, expected=expected, got=got)


_SCHEMA: Mapping[str, Kind] = {**KEYS, PROVENANCE: Kind("a table", lambda value: isinstance(value, dict))}
