"""What this device has, what edge-vl would use of it, and what is missing."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edge_vl.engine import EngineStatus
from edge_vl.engine_choice import Attempt
from edge_vl.environment import read_environment
from edge_vl.errors import EdgeVLError, ProfileError
from edge_vl.machine import Machine, read_machine
from edge_vl.models import BUNDLED, find_model, model_names
from edge_vl.profile_choice import consider
from edge_vl.profile_decision import Decision, Wishes
from edge_vl.profile_report import lane_summary
from edge_vl.registry import engine_names, engine_status

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One look at the device.

    Attributes:
        version: of edge-vl.
        machine: processor, cores, memory.
        kernels: which kernels run: `isa`, `compiled`, `reason` when the compiled library is not used, `asked_for`: what
            `EDGE_VL_ISA` says, `missing`: why other instruction sets for this kind of processor cannot be used, and
            `threads` that they have in the language lane.
        engines: by name.
        models: by short name: empty if usable, otherwise what is wrong.
        cache_dir: folder for what can be made again; empty if there is none.
        profile: id of the device profile that is meant for this machine; empty if none can be chosen.
        profile_reason: why it is that one, or what is wrong.
        lanes: what would run the bundled model, by lane.
        features: instruction sets of the processor that a profile's choice depends on, by what they are good for.
        advice: commands and settings that would make things better, the most important first.
    """

    version: str
    machine: Machine
    kernels: dict[str, Any]
    engines: dict[str, EngineStatus]
    models: dict[str, str]
    cache_dir: str
    profile: str
    profile_reason: str
    lanes: dict[str, str]
    features: dict[str, str]
    advice: tuple[str, ...]

    @property
    def can_answer(self) -> bool:
        """Whether some engine and some model are usable."""
        return any(status.is_available for status in self.engines.values()) and "" in self.models.values()

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {**asdict(self), "can_answer": self.can_answer}


def diagnose() -> Diagnosis:
    """Look at the device.

    Raises:
        RequestError: an environment variable has a value that makes no sense.
    """
    environment = read_environment()
    engines = {name: engine_status(name) for name in engine_names()}
    models = {name: _trouble_with(name) for name in model_names()}
    machine = read_machine()
    decision, trouble = _decision(machine)
    kernels = _kernels(environment.isa, _language_threads(decision) or machine.cores)
    match = None if decision is None else next(m for m in decision.matches if m.profile is decision.profile)
    return Diagnosis(
        version=_version(),
        machine=machine,
        kernels=kernels,
        engines=engines,
        models=models,
        cache_dir=str(environment.cache_dir or ""),
        profile="" if match is None else match.profile.id,
        profile_reason=trouble if match is None else match.reason,
        lanes={} if decision is None else {lane.lane: lane_summary(lane) for lane in decision.lanes},
        features={} if decision is None else _features(decision),
        advice=tuple([trouble] * bool(trouble) + _advice(machine, kernels, engines, models, decision)),
    )


def _decision(machine: Machine) -> tuple[Decision | None, str]:
    """Choose for the bundled model; a profile or model that cannot be used is an answer, too."""
    try:
        return consider(find_model(BUNDLED), Wishes(), machine), ""
    except ProfileError as error:
        return None, f"a device profile cannot be used: {error}"
    except EdgeVLError:
        return None, ""  # the model's own trouble is told with the models


def _features(decision: Decision) -> dict[str, str]:
    """Say what the instruction sets that the profile asks for are good for."""
    features: dict[str, str] = {}
    for lane in decision.lanes:
        for attempt in lane.attempts:
            found = [flag for flag in attempt.choice.any_cpu_flags if flag in decision.machine.flags]
            if found:
                choice = attempt.choice
                features[f"{' or '.join(choice.dtypes)} {lane.lane} on {choice.name}"] = ", ".join(found)
    return features


def _kernels(isa: str, threads: int) -> dict[str, Any]:
    from edge_vl_kernels import missing_isas, status

    facts = {"asked_for": isa, "missing": missing_isas(), "threads": threads}
    try:
        found = status(isa)
    except RuntimeError as error:
        return {"compiled": False, "isa": isa, "library": "", "reason": str(error), **facts}
    return {
        "compiled": found.compiled,
        "isa": found.isa,
        "library": str(found.library or ""),
        "reason": found.reason,
        **facts,
    }


def _language_threads(decision: Decision | None) -> int | None:
    lanes = () if decision is None else decision.lanes
    return next((lane.options.threads for lane in lanes if lane.lane == "language"), None)


def _trouble_with(model: str) -> str:
    try:
        find_model(model)
    except EdgeVLError as error:
        return str(error)
    return ""


def _advice(
    machine: Machine,
    kernels: dict[str, Any],
    engines: dict[str, EngineStatus],
    models: dict[str, str],
    decision: Decision | None,
) -> list[str]:
    advice: list[str] = []
    if not engines:
        advice.append("no engine is installed: pip install onnx onnxruntime")
    wanted = {} if decision is None else _preferred_but_missing(decision)
    for name, (attempt, lanes) in wanted.items():
        command = f": {attempt.install}" if attempt.install else ""
        least = attempt.choice.min_weights_mib
        of = f" of models above {least} MiB" if least else ""
        advice.append(f"the device's profile prefers {name} for {' and '.join(lanes)}{of} ({attempt.reason}){command}")
    for name, status in engines.items():
        if not status.is_available and name not in wanted:
            command = f": {status.install}" if status.install else ""
            advice.append(f"engine {name} cannot run ({status.reason}){command}")
    advice += machine.notes
    advice += [f"model {name} is not usable: {trouble}" for name, trouble in models.items() if trouble]
    if not kernels["compiled"] and kernels["asked_for"] not in ("auto", "reference"):
        advice.append(f"leave EDGE_VL_ISA out: {kernels['reason']}")
    elif not kernels["compiled"] and kernels["asked_for"] == "auto":
        advice.append(f"the NumPy kernels are in use ({kernels['reason']}): install g++ and reinstall edge-vl")
    available = machine.memory_available_bytes
    if available is not None and available < 512 * 1024 * 1024:
        advice.append(f"only {available // 1024**2} MiB of memory are free; larger models will not load")
    if machine.load is not None and machine.load > machine.cores:
        advice.append(
            f"the machine is busy (load {machine.load:.1f} on {machine.cores} cores): threads that wait for each other "
            f"slow llama.cpp down many times; try --threads {max(1, machine.cores - 1)}"
        )
    if sys.flags.debug:
        advice.append("Python runs in debug mode, which slows everything down")
    return advice


def _preferred_but_missing(decision: Decision) -> dict[str, tuple[Attempt, list[str]]]:
    """Return the engines that the profile prefers to those that run, with the lanes they are preferred for."""
    wanted: dict[str, tuple[Attempt, list[str]]] = {}
    for lane in decision.lanes:
        for attempt in lane.attempts:
            if attempt.outcome == "missing":
                _, lanes = wanted.setdefault(attempt.choice.name, (attempt, []))
                if lane.lane not in lanes:
                    lanes.append(lane.lane)
    return wanted


def _version() -> str:
    try:
        return version("edge-vl")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "not installed"
