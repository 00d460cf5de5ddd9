"""Sessions of ONNX Runtime: its import, devices, options and errors."""

from __future__ import annotations

import ctypes
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_vl.engine import LaneOptions
from edge_vl.environment import disable_onnxruntime_telemetry
from edge_vl.errors import EngineUnavailable, ModelError
from edge_vl.machine import usable_cores
from edge_vl_onnxruntime.onnx_file import graph_with_references

__all__ = [
    "DEVICES",
    "ENGINE",
    "INSTALL",
    "Session",
    "available_devices",
    "choose_device",
    "import_onnxruntime",
    "maps_weights",
    "open_piece",
    "open_session",
    "reason",
    "return_freed_memory",
]

ENGINE = "onnxruntime"
INSTALL = "pip install onnx onnxruntime"

DEVICES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "directml": "DmlExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
}
"""Execution provider of each device name."""

_INSTALL_DEVICE = {
    "cuda": "pip uninstall onnxruntime && pip install onnxruntime-gpu",
    "tensorrt": "pip uninstall onnxruntime && pip install onnxruntime-gpu",
    "openvino": "pip install onnxruntime-openvino",
    "qnn": "pip install onnxruntime-qnn",
    "directml": "pip install onnxruntime-directml",
}
_MAPS_FROM = (1, 21)  # the first version that takes a graph as bytes and weights from a folder
_FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
_SPINS = "session.intra_op.allow_spinning"
_SEVERITY_FATAL = 4  # whatever matters arrives as an exception; nothing is written to standard error


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A loaded graph.

    Attributes:
        native: the `onnxruntime.InferenceSession`.
        path: file it came from.
        device: where it really runs, a key of `DEVICES`.
        threads: of its own pool.
    """

    native: Any
    path: Path
    device: str
    threads: int


def import_onnxruntime() -> Any:
    """Import the backend: the only place that does.

    Its telemetry is switched off before the import, which would begin it, unless `ORT_DISABLE_TELEMETRY` is set to
    something else.

    Raises:
        EngineUnavailable: it is missing or does not load.
    """
    is_telemetry_off = disable_onnxruntime_telemetry()
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except (ImportError, OSError) as error:  # OSError: a library that it needs is missing or built for another CPU
        raise EngineUnavailable(ENGINE, f"cannot import onnxruntime: {error}", INSTALL) from error
    if is_telemetry_off and hasattr(onnxruntime, "disable_telemetry_events"):
        onnxruntime.disable_telemetry_events()
    return onnxruntime


def available_devices(onnxruntime: Any) -> tuple[str, ...]:
    """Return the device names whose execution provider this build offers."""
    providers = set(onnxruntime.get_available_providers())
    return tuple(device for device, provider in DEVICES.items() if provider in providers)


def open_session(path: Path, options: LaneOptions) -> Session:
    """Load a graph.

    Args:
        path: an `.onnx` file; external data lies beside it.
        options: device and threads of the lane.

    Raises:
        EngineUnavailable: the backend or the device is missing.
        ModelError: the file is broken or incomplete.
    """
    onnxruntime = import_onnxruntime()
    device = choose_device(options)
    threads = options.threads or usable_cores()
    settings = _settings(onnxruntime, threads)
    try:
        native = onnxruntime.InferenceSession(
            _graph(path, device, settings),
            settings,
            providers=_providers(device, onnxruntime),
            enable_fallback=0,
        )
        _read_names(native)
    except Exception as error:  # the backend's own errors share no base class
        raise ModelError(_explain(path, error), file=str(path)) from error
    names = {provider: name for name, provider in DEVICES.items()}
    actual = names.get(native.get_providers()[0], native.get_providers()[0])
    if actual != device and options.device != "auto":
        raise EngineUnavailable(
            ENGINE, f"device {device!r} does not start here and ONNX Runtime would run on {actual!r} instead"
        )
    return Session(native, path, actual, threads)


def open_piece(graph: bytes, folder: Path, num_threads: int) -> Any:
    """Load a part of a graph on the CPU and return its `onnxruntime.InferenceSession`.

    Many of them are loaded for one model, so none keeps memory for its next run: the C library does that for all.

    Args:
        graph: the message; its weights are references into files.
        folder: of these files.
        num_threads: of its own pool.

    Raises:
        Exception: the backend's own errors share no base class.
    """
    onnxruntime = import_onnxruntime()
    settings = _settings(onnxruntime, num_threads)
    settings.enable_cpu_mem_arena = False
    # A piece is short and the next one follows: its threads wait awake for work, but only while it runs.
    settings.add_session_config_entry(_SPINS, "1")
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    settings.add_session_config_entry(_FOLDER_OF_WEIGHTS, str(folder))
    return onnxruntime.InferenceSession(graph, settings, providers=[DEVICES["cpu"]], enable_fallback=0)


def _read_names(native: Any) -> None:
    """Read every name that the backend hands out: it checks none of them itself.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    for node in (*native.get_inputs(), *native.get_outputs()):
        node.name, node.type, node.shape  # noqa: B018


def _settings(onnxruntime: Any, threads: int) -> Any:
    """Return what all sessions have in common."""
    onnxruntime.set_default_logger_severity(_SEVERITY_FATAL)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = _SEVERITY_FATAL
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    # The memory that is planned after the first run comes on top of what that run took, and is kept for each new shape.
    settings.enable_mem_pattern = False
    # Two lanes have two thread pools; one that spins while idle takes the cores from the other.
    settings.add_session_config_entry(_SPINS, "0")
    return settings


def _graph(path: Path, device: str, settings: Any) -> str | bytes:
    """Return the graph with its weights left in the file, to be mapped, or where that is not possible its path.

    On other devices than the CPU this was never tried; a file that is damaged is better explained by the backend.
    """
    if device != "cpu" or not maps_weights():
        return str(path)
    target = path.resolve()  # the backend follows no link out of the folder; a hub's cache is made of such links
    try:
        graph = graph_with_references(target)
    except ModelError:
        return str(path)
    settings.add_session_config_entry(_FOLDER_OF_WEIGHTS, str(target.parent))
    return graph


def maps_weights() -> bool:
    """Say whether this version takes a graph as bytes whose weights lie in files."""
    return _version(import_onnxruntime()) >= _MAPS_FROM


def _version(onnxruntime: Any) -> tuple[int, ...]:
    """Return major and minor version, (0, 0) if they are not numbers."""
    parts = str(onnxruntime.__version__).split(".")[:2]
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else (0, 0)


def return_freed_memory() -> None:
    """Let the C library give back what loading has freed: glibc would keep hundreds of MiB. Elsewhere do nothing."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def reason(error: BaseException) -> str:
    """Return what a native error says, in one line and without the path of the backend's sources."""
    text = " ".join(str(error).split()) or type(error).__name__
    for marker in ("Status Message: ", "[ONNXRuntimeError] : "):
        _, found, rest = text.partition(marker)
        text = rest if found else text
    return text[:500]


def choose_device(options: LaneOptions) -> str:
    """Turn `auto` into a device that is there, and refuse one that is not.

    Raises:
        EngineUnavailable: the device is missing.
    """
    wanted, available = options.device, available_devices(import_onnxruntime())
    if wanted == "auto":
        return "cuda" if "cuda" in available else "cpu"
    if wanted not in DEVICES:
        raise EngineUnavailable(ENGINE, f"no device is called {wanted!r}; known: auto, {', '.join(DEVICES)}")
    if wanted not in available:
        missing = f"this build of onnxruntime has no {DEVICES[wanted]}; it has {', '.join(available)}"
        raise EngineUnavailable(ENGINE, missing, _INSTALL_DEVICE.get(wanted, ""))
    return wanted


def _providers(device: str, onnxruntime: Any) -> list[str]:
    """Return the providers in order: the wanted one, what it hands over to, the CPU."""
    chain = ["tensorrt", "cuda", "cpu"] if device == "tensorrt" else list(dict.fromkeys((device, "cpu")))
    there = available_devices(onnxruntime)
    return [DEVICES[name] for name in chain if name in there]


def _explain(path: Path, error: Exception) -> str:
    """Say what is wrong with a file and what to do."""
    text = reason(error)
    if isinstance(error, UnicodeDecodeError):
        return f"{path} is damaged: it has names that are not UTF-8; download it again: {text}"
    lower = text.lower()
    if "external data" in lower or "external_data" in lower or "filesystem error" in lower:
        return f"{path} keeps weights in another file that is missing or incomplete; download it too, beside it: {text}"
    if "protobuf" in lower:
        return f"{path} is damaged or not an ONNX graph; download it again: {text}"
    return f"{path} cannot be loaded: {text}"
