"""Which files of a model this device wants, as its profile says and as the engines that are installed can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edge_vl.engine_choice import LaneName
from edge_vl.machine import Machine, read_machine
from edge_vl.profile import Profile
from edge_vl.profile_library import list_profiles
from edge_vl.profile_match import best_match, match_profile
from edge_vl.registry import engine_names, engine_status
from edge_vl.wanted_files import GGUF_DTYPES, ONNX_DTYPES, FileForm, WantedFiles

__all__ = ["files_for", "wanted_here"]

_FORM_OF_ENGINE: dict[str, FileForm] = {"onnxruntime": "onnx", "tensorrt": "onnx", "llama_cpp": "gguf"}


def wanted_here(machine: Machine | None = None) -> tuple[WantedFiles, str]:
    """Return what this device wants, and the id of the profile that says so.

    Args:
        machine: described rather than read; None reads it.

    Raises:
        ProfileError: a profile cannot be used.
    """
    machine = machine or read_machine()
    best = best_match(tuple(match_profile(profile, machine) for profile in list_profiles()))
    if best is None:
        return WantedFiles(), ""
    available = {name for name in engine_names() if engine_status(name).is_available}
    return files_for(best.profile, available.__contains__), best.profile.id


def files_for(profile: Profile, is_available: Callable[[str], bool]) -> WantedFiles:
    """Turn the engines of a profile, best first, into forms and precisions of files.

    What only a missing engine could read comes last. int8 vision is made by the engine, from full precision.

    Args:
        profile: the device's.
        is_available: whether an engine can run here.
    """
    wanted = WantedFiles()
    for lane in ("vision", "language"):
        wanted = _with_lane(wanted, lane, profile, is_available)
    return wanted


def _with_lane(
    wanted: WantedFiles, lane: LaneName, profile: Profile, is_available: Callable[[str], bool]
) -> WantedFiles:
    choices = sorted(profile.lane(lane).engines, key=lambda choice: not is_available(choice.name))  # a stable sort
    forms = dict.fromkeys(_FORM_OF_ENGINE[choice.name] for choice in choices if choice.name in _FORM_OF_ENGINE)
    dtypes: dict[FileForm, list[str]] = {"onnx": [], "gguf": []}
    for choice in choices:
        form = _FORM_OF_ENGINE.get(choice.name)
        if form is not None:
            dtypes[form] += [
                dtype for dtype in choice.dtypes if dtype in (ONNX_DTYPES if form == "onnx" else GGUF_DTYPES)
            ]
    if lane == "vision":
        dtypes["onnx"] = [dtype for dtype in dtypes["onnx"] if dtype != "int8"]
        return replace(
            wanted,
            vision_forms=tuple(forms) or wanted.vision_forms,
            onnx_vision_dtypes=tuple(dict.fromkeys((*dtypes["onnx"], *wanted.onnx_vision_dtypes))),
            gguf_vision_dtypes=tuple(dict.fromkeys((*dtypes["gguf"], *wanted.gguf_vision_dtypes))),
        )
    return replace(
        wanted,
        language_forms=tuple(forms) or wanted.language_forms,
        onnx_language_dtypes=tuple(dict.fromkeys((*dtypes["onnx"], *wanted.onnx_language_dtypes))),
        gguf_language_dtypes=tuple(dict.fromkeys((*dtypes["gguf"], *wanted.gguf_language_dtypes))),
    )
