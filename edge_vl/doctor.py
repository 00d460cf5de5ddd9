"""What this device has, what edge-vl would use of it, and what is missing."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edge_vl.engine import EngineStatus
from edge_vl.environment import read_environment
from edge_vl.errors import EdgeVLError
from edge_vl.machine import Machine, read_machine
from edge_vl.models import find_model, model_names
from edge_vl.registry import engine_names, engine_status

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One look at the device.

    Attributes:
        version: of edge-vl.
        machine: processor, cores, memory.
        kernels: which kernels run: `isa`, `compiled`, and `reason` when the compiled library is not used.
        engines: by name.
        models: by short name: empty if usable, otherwise what is wrong.
        cache_dir: folder for what can be made again; empty if there is none.
        advice: commands and settings that would make things better, the most important first.
    """

    version: str
    machine: Machine
    kernels: dict[str, Any]
    engines: dict[str, EngineStatus]
    models: dict[str, str]
    cache_dir: str
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
    kernels = _kernels(environment.isa)
    engines = {name: engine_status(name) for name in engine_names()}
    models = {name: _trouble_with(name) for name in model_names()}
    machine = read_machine()
    return Diagnosis(
        version=_version(),
        machine=machine,
        kernels=kernels,
        engines=engines,
        models=models,
        cache_dir=str(environment.cache_dir or ""),
        advice=tuple(_advice(machine, kernels, engines, models)),
    )


def _kernels(isa: str) -> dict[str, Any]:
    from edge_vl_kernels import status

    try:
        found = status(isa)
    except RuntimeError as error:
        return {"compiled": False, "isa": isa, "library": "", "reason": str(error)}
    return {
        "compiled": found.compiled,
        "isa": found.isa,
        "library": str(found.library or ""),
        "reason": found.reason,
    }


def _trouble_with(model: str) -> str:
    try:
        find_model(model)
    except EdgeVLError as error:
        return str(error)
    return ""


def _advice(
    machine: Machine, kernels: dict[str, Any], engines: dict[str, EngineStatus], models: dict[str, str]
) -> list[str]:
    advice: list[str] = []
    if not engines:
        advice.append("no engine is installed: pip install onnx onnxruntime")
    for name, status in engines.items():
        if not status.is_available:
            command = f": {status.install}" if status.install else ""
            advice.append(f"engine {name} cannot run ({status.reason}){command}")
    advice += [f"model {name} is not usable: {trouble}" for name, trouble in models.items() if trouble]
    if not kernels["compiled"]:
        advice.append(f"the NumPy kernels are in use ({kernels['reason']}): install g++ and reinstall edge-vl")
    available = machine.memory_available_bytes
    if available is not None and available < 512 * 1024 * 1024:
        advice.append(f"only {available // 1024**2} MiB of memory are free; larger models will not load")
    if sys.flags.debug:
        advice.append("Python runs in debug mode, which slows everything down")
    return advice


def _version() -> str:
    try:
        return version("edge-vl")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "not installed"
