"""The environment: the only module that reads environment variables.

| variable | means | default |
|---|---|---|
| `EDGE_VL_CACHE_DIR` | folder for what can be made again, such as int8 copies of a model | the user's cache folder |
| `EDGE_VL_ISA` | kernels to use: `auto`, `reference` or an instruction set | `auto` |
| `EDGE_VL_MODELS_DIR` | folder that pulled models are put together in | `models` in the cache folder |
| `EDGE_VL_MQTT_PASSWORD` | password of the broker's user, for `edge-vl mqtt` | none |
| `EDGE_VL_PROFILES_DIR` | folder with device profiles of your own (`*.toml`) | none |
| `HF_ENDPOINT` | the Hugging Face Hub's own: address of a mirror; its others are read by its library | the Hub |
| `OPENCV_FFMPEG_LOGLEVEL` | OpenCV's own: what FFmpeg prints, which may be an address with its password | nothing |
| `OPENCV_LOG_LEVEL` | OpenCV's own: likewise for OpenCV | `ERROR` |
| `ORT_DISABLE_TELEMETRY` | ONNX Runtime's own: `0` lets it write and send usage data | set to `1` by us |
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_vl.errors import RequestError

__all__ = [
    "Environment",
    "cache_dir",
    "disable_onnxruntime_telemetry",
    "models_dir",
    "mqtt_password",
    "quiet_opencv",
    "read_environment",
    "read_secret_variable",
]

_PREFIX = "EDGE_VL_"
_KNOWN = ("EDGE_VL_CACHE_DIR", "EDGE_VL_ISA", "EDGE_VL_MODELS_DIR", "EDGE_VL_MQTT_PASSWORD", "EDGE_VL_PROFILES_DIR")


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment asks for.

    Attributes:
        cache_dir: absolute folder for what can be made again, perhaps not there yet; None: no home to put it in.
        isa: `auto`, or the kernels that must be used.
        profiles_dir: absolute folder with device profiles; None: there is none.
        models_dir: absolute folder for pulled models, perhaps not there yet; None: no home to put it in.
        hub_endpoint: address of the Hugging Face Hub or a mirror, not checked; empty: its library's default.
    """

    cache_dir: Path | None
    isa: str
    profiles_dir: Path | None = None
    models_dir: Path | None = None
    hub_endpoint: str = ""


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read and check every variable of ours. An empty one counts as unset.

    Args:
        variables: by name; None reads the process's own.

    Raises:
        RequestError: a variable has a value that makes no sense, or a name that begins with `EDGE_VL_` is unknown.
    """
    variables = os.environ if variables is None else variables
    for name in sorted(variables):
        if name.startswith(_PREFIX) and name not in _KNOWN:
            # Without the prefix, which makes any two names look alike.
            known = [known.removeprefix(_PREFIX) for known in _KNOWN]
            close = difflib.get_close_matches(name.removeprefix(_PREFIX), known, n=1)
            hint = f"did you mean {_PREFIX}{close[0]}?" if close else f"known: {', '.join(_KNOWN)}"
            raise RequestError(f"unknown environment variable {name}; {hint}", field=name)
    cache_dir = _read_cache_dir(variables)
    return Environment(
        cache_dir=cache_dir,
        isa=_read_isa(variables),
        profiles_dir=_read_profiles_dir(variables),
        models_dir=_read_models_dir(variables, cache_dir),
        hub_endpoint=variables.get("HF_ENDPOINT", "").rstrip("/"),
    )


def cache_dir() -> Path:
    """Return the folder for what can be made again; the caller makes it.

    Raises:
        RequestError: there is no home folder to put it in, or a variable makes no sense.
    """
    folder = read_environment().cache_dir
    if folder is None:
        raise RequestError(
            "there is no home folder to keep a cache in; set EDGE_VL_CACHE_DIR to a folder", field="EDGE_VL_CACHE_DIR"
        )
    return folder


def models_dir() -> Path:
    """Return the folder for pulled models; the caller makes it.

    Raises:
        RequestError: there is no home folder to put it in, or a variable makes no sense.
    """
    folder = read_environment().models_dir
    if folder is None:
        raise RequestError(
            "there is no home folder to keep models in; set EDGE_VL_MODELS_DIR to a folder", field="EDGE_VL_MODELS_DIR"
        )
    return folder


def disable_onnxruntime_telemetry() -> bool:
    """Keep ONNX Runtime from writing and sending usage data, unless the user has decided about that already.

    It reads the variable while it is imported; from version 1.32 on it would otherwise make files in the user's cache
    folder and open a connection then.

    Returns:
        Whether it is off.
    """
    return os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1") == "1"


def mqtt_password() -> str | None:
    """Return the password of the broker's user; None if there is none."""
    return os.environ.get("EDGE_VL_MQTT_PASSWORD") or None


def read_secret_variable(name: str, field: str) -> str:
    """Return the password in a variable that a configuration file names.

    Args:
        name: of the variable; not one of ours, but for `EDGE_VL_MQTT_PASSWORD`.
        field: what errors call the place that names it.

    Raises:
        RequestError: the variable is not set or empty, or its name begins with `EDGE_VL_`, where an unknown name is
            an error.
    """
    if name.startswith(_PREFIX) and name != "EDGE_VL_MQTT_PASSWORD":
        raise RequestError(
            f"{field} names {name}; names that begin with {_PREFIX} are edge-vl's own: call it "
            f"{name.removeprefix(_PREFIX) or 'PASSWORD'}, or EDGE_VL_MQTT_PASSWORD if it is the broker's",
            field=field,
        )
    value = os.environ.get(name, "")
    if not value:
        raise RequestError(
            f"{field} names an environment variable that is not set; the name is not shown, for it may be the password "
            "itself, put into the wrong place",
            field=field,
        )
    return value


def service_manager() -> tuple[str | None, int | None]:
    """Return where systemd listens for what a service says, and after how many microseconds of silence it acts.

    Either is None where systemd did not start this process, or wants no signs of life.
    """
    address = os.environ.get("NOTIFY_SOCKET") or None
    usec, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    is_ours = process in ("", str(os.getpid()))
    return address, int(usec) if is_ours and usec.isdecimal() and int(usec) > 0 else None


def quiet_opencv() -> None:
    """Keep OpenCV and its FFmpeg from printing addresses of cameras, unless the user has decided about that already.

    They write to the process's standard error, past every logger, and print addresses as they are, with passwords.
    OpenCV reads its variable while it is imported, FFmpeg's when the first stream is opened.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # AV_LOG_QUIET
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")


def _read_cache_dir(variables: Mapping[str, str]) -> Path | None:
    if own := variables.get("EDGE_VL_CACHE_DIR", ""):
        return _absolute("EDGE_VL_CACHE_DIR", own)
    # The XDG specification tells readers to ignore a relative path.
    if (xdg := variables.get("XDG_CACHE_HOME", "")) and Path(xdg).is_absolute():
        return Path(xdg) / "edge_vl"
    try:
        home = Path.home()
    except RuntimeError:  # a container's user without a home folder
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "edge_vl"
    if sys.platform == "win32":
        return Path(variables.get("LOCALAPPDATA") or home / "AppData" / "Local") / "edge_vl" / "cache"
    return home / ".cache" / "edge_vl"


def _read_models_dir(variables: Mapping[str, str], cache_dir: Path | None) -> Path | None:
    if own := variables.get("EDGE_VL_MODELS_DIR", ""):
        return _absolute("EDGE_VL_MODELS_DIR", own)
    return None if cache_dir is None else cache_dir / "models"


def _read_profiles_dir(variables: Mapping[str, str]) -> Path | None:
    text = variables.get("EDGE_VL_PROFILES_DIR", "")
    if not text:
        return None
    folder = _absolute("EDGE_VL_PROFILES_DIR", text)
    if not folder.is_dir():
        raise RequestError(f"EDGE_VL_PROFILES_DIR is {text!r}, which is not there", field="EDGE_VL_PROFILES_DIR")
    return folder


def _absolute(name: str, text: str) -> Path:
    try:
        folder = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise RequestError(f"{name} is {text!r}: {error}", field=name) from error
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{name} is {text!r}, which is not a folder", field=name)
    return folder


def _read_isa(variables: Mapping[str, str]) -> str:
    from edge_vl_kernels import ISAS

    isa = variables.get("EDGE_VL_ISA", "") or "auto"
    if isa not in ISAS:
        close = difflib.get_close_matches(isa, ISAS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(ISAS)}"
        raise RequestError(f"EDGE_VL_ISA is {isa!r}; {hint}", field="EDGE_VL_ISA")
    return isa
