"""The cameras of this machine, by all the ways that we know, each with what to call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_vl.errors import SourceError
from edge_vl.sources.opencv import has_gstreamer, import_opencv
from edge_vl.sources.picamera2_capture import import_picamera2
from edge_vl.sources.v4l2_device import Ioctl, V4l2Device, find_v4l2_devices

__all__ = ["CameraList", "FoundCamera", "Way", "list_cameras"]

NOT_EXECUTED = "written after its documentation, never executed by this project"

_ARGUS_DRIVER = "tegra-video"
_PI_DRIVERS = ("unicam", "rp1-cfe", "bcm2835-isp", "pispbe")
"""Nodes that give what the sensor says, or steps between; only libcamera makes pictures of it."""


@dataclass(frozen=True, slots=True)
class FoundCamera:
    """A camera that is there.

    Attributes:
        source: what to call it where a source is wanted.
        name: its own name.
        way: by which it is reached: `v4l2`, `picamera2` or `csi`.
        driver: the kernel's, empty where that is not known.
        formats: that it gives, as four letters each.
        stable_source: another name of it, that stays when other cameras are plugged in; empty: there is none.
        note: what is to be known before it is used; empty: nothing.
    """

    source: str
    name: str
    way: str
    driver: str = ""
    formats: tuple[str, ...] = ()
    stable_source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to reach cameras.

    Attributes:
        is_there: whether it can be used.
        detail: its version, or what is missing and what to do about it.
        note: how far it was tried by this project; empty: it is tested.
    """

    is_there: bool
    detail: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class CameraList:
    """What was found.

    Attributes:
        cameras: that are there.
        ways: to reach cameras, by name.
        advice: what to try.
    """

    cameras: tuple[FoundCamera, ...]
    ways: dict[str, Way]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def list_cameras(
    root: Path = Path("/"),
    *,
    ioctl: Ioctl | None = None,
    opencv: Callable[[], Any] = import_opencv,
    picamera2: Callable[[], Any] = import_picamera2,
) -> CameraList:
    """Look for cameras. Opens none for pictures, and asks nobody on the network.

    Args:
        root: where `sys`, `dev` and `etc` are.
        ioctl: how nodes of Video4Linux are asked; None: the system's.
        opencv: imports OpenCV, or raises `SourceError`.
        picamera2: imports Picamera2, or raises `SourceError`.
    """
    is_jetson = (root / "etc/nv_tegra_release").exists()
    ways = _opencv_ways(opencv) | {"picamera2": Way(False, "", NOT_EXECUTED), "csi": _csi_way(is_jetson)}
    ways["picamera2"], pi_cameras = _picamera2(picamera2)
    nodes = find_v4l2_devices(root, ioctl)
    cameras = [_v4l2_camera(node) for node in nodes if node.driver not in (_ARGUS_DRIVER, *_PI_DRIVERS)]
    argus = [node for node in nodes if node.driver == _ARGUS_DRIVER]
    cameras += [
        FoundCamera(f"csi:{number}", node.name, "csi", node.driver, node.formats, note=NOT_EXECUTED)
        for number, node in enumerate(argus)
    ]
    cameras += pi_cameras
    return CameraList(tuple(cameras), ways, _advice(cameras, ways, nodes))


def _v4l2_camera(node: V4l2Device) -> FoundCamera:
    return FoundCamera(node.path, node.name, "v4l2", node.driver, node.formats, node.stable_path, node.trouble)


def _opencv_ways(opencv: Callable[[], Any]) -> dict[str, Way]:
    try:
        cv2 = opencv()
    except SourceError as error:
        return {"opencv": Way(False, str(error)), "gstreamer": Way(False, "needs OpenCV")}
    gstreamer = (
        Way(True, "this OpenCV is built with it")
        if has_gstreamer(cv2)
        else Way(False, "this OpenCV is built without it; python3-opencv of Debian, Ubuntu and Jetson Linux is with it")
    )
    return {"opencv": Way(True, str(cv2.__version__)), "gstreamer": gstreamer}


def _csi_way(is_jetson: bool) -> Way:
    detail = "nvarguscamerasrc of Jetson Linux, through GStreamer" if is_jetson else "this is no Jetson"
    return Way(is_jetson, detail, NOT_EXECUTED)


def _picamera2(picamera2: Callable[[], Any]) -> tuple[Way, list[FoundCamera]]:
    try:
        module = picamera2()
    except SourceError as error:
        return Way(False, str(error), NOT_EXECUTED), []
    try:
        found = module.Picamera2.global_camera_info()
    except Exception as error:  # libcamera's errors
        return Way(False, f"Picamera2 cannot list cameras: {error}", NOT_EXECUTED), []
    cameras = [
        FoundCamera(f"picamera:{one.get('Num', number)}", str(one.get("Model", "unknown")), "picamera2")
        for number, one in enumerate(found)
        if "usb" not in str(one.get("Id", ""))  # those are nodes of Video4Linux, too
    ]
    return Way(True, "Picamera2 is installed", NOT_EXECUTED), cameras


def _advice(cameras: list[FoundCamera], ways: dict[str, Way], nodes: tuple[V4l2Device, ...]) -> tuple[str, ...]:
    advice = []
    if any(node.driver in _PI_DRIVERS for node in nodes) and not ways["picamera2"].is_there:
        advice.append(f"there is a camera on the Raspberry Pi's own connector: {ways['picamera2'].detail}")
    if not ways["opencv"].is_there:
        advice.append(ways["opencv"].detail)
    if not cameras:
        advice.append(
            "no camera was found on this machine; a synthetic one is always there: synthetic. Network cameras are not "
            "searched for: name them by their address, such as rtsp://HOST:554/PATH"
        )
    return tuple(advice)
