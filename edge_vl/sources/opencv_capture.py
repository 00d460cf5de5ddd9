"""Cameras, streams and pipelines through OpenCV."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import SourceError
from edge_vl.sources.address import read_address, shown_pipeline
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.capture import SLOW_CAMERA, Capture
from edge_vl.sources.http_stream import open_http
from edge_vl.sources.lateness import WAITED_SHARE, Lateness
from edge_vl.sources.opencv import deadlines, has_pipeline_deadlines, import_opencv, require_gstreamer, try_open
from edge_vl.sources.rtsp_status import check_reachable, describe_refusal

__all__ = [
    "DeviceFormat",
    "OpenCvCapture",
    "StreamCapture",
    "open_device",
    "open_gstreamer",
    "open_stream",
]

_MIN_FPS, _USUAL_FPS, _MAX_FPS = 1.0, 25.0, 120.0
_EXPIRED_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class DeviceFormat:
    """What to ask a device for. It gives what comes nearest.

    Attributes:
        width: of its frames in pixels; None: its own choice.
        height: likewise.
        fps: frames per second; None: its own choice.
        is_jpeg: ask for JPEG pictures. Most webcams give more than a few frames per second of a large picture only so.
    """

    width: int | None = None
    height: int | None = None
    fps: float | None = None
    is_jpeg: bool = True


class OpenCvCapture:
    """An open `cv2.VideoCapture`.

    With streams, `grab` decodes already, as most frames are made from those before; `retrieve` converts the colours.
    With devices that give JPEG, `retrieve` decodes.
    """

    def __init__(self, capture: Any, *, label: str, read_timeout_s: float) -> None:
        """Take over an open one.

        Args:
            capture: closed by `close`.
            label: for errors; without a password.
            read_timeout_s: what it was told to give up after.
        """
        self._capture = capture
        self._label = label
        self._read_timeout_s = read_timeout_s
        self._waited_s = 0.0

    def grab(self) -> bool:
        """Wait for the next frame.

        Raises:
            SourceError: it failed, or gave nothing until its read deadline.
        """
        started_s, worked_s = time.monotonic(), time.thread_time()
        try:
            is_there = bool(self._capture.grab())
        except Exception as error:  # cv2.error
            raise SourceError(f"{self._label} failed ({type(error).__name__})") from None
        took_s = time.monotonic() - started_s
        if took_s >= _EXPIRED_SHARE * self._read_timeout_s:
            # Also when a frame is there: FFmpeg gives the one that its decoder held back, which is as old as the wait.
            raise SourceError(f"{self._label} gave nothing for {took_s:.1f} s{SLOW_CAMERA}")
        if not is_there:
            raise SourceError(f"{self._label} has ended, or its connection broke")
        self._waited_s = took_s - (time.thread_time() - worked_s)
        return True

    def retrieve(self) -> NDArray[np.uint8]:
        """Return the frame grabbed last as uint8 (height, width, 3), RGB; memory of its own.

        Raises:
            SourceError: it is damaged.
        """
        try:
            is_there, pixels = self._capture.retrieve()
        except Exception as error:
            raise SourceError(f"{self._label} gave a damaged frame ({type(error).__name__})") from None
        if not is_there or pixels is None or pixels.size == 0:
            raise SourceError(f"{self._label} gave a damaged frame")
        return _rgb(pixels, self._label)

    def close(self) -> None:
        """Give the camera back."""
        self._capture.release()


class StreamCapture(OpenCvCapture):
    """An open stream. `grab` passes over frames that are not of now."""

    def __init__(self, capture: Any, *, label: str, read_timeout_s: float, opening_s: float) -> None:
        """Take over an open one.

        Args:
            capture: closed by `close`.
            label: for errors; without a password.
            read_timeout_s: what it was told to give up after.
            opening_s: how long that took.
        """
        super().__init__(capture, label=label, read_timeout_s=read_timeout_s)
        cv2 = import_opencv()
        fps = capture.get(cv2.CAP_PROP_FPS)
        fps = min(max(fps, _MIN_FPS), _MAX_FPS) if math.isfinite(fps) and fps > 0 else _USUAL_FPS
        self._interval_s = 1 / fps
        self._position_key = cv2.CAP_PROP_POS_MSEC
        self._lateness = Lateness()
        # FFmpeg receives frames for up to a second to find out what they are, and gives all of them afterwards. They
        # come without being waited for. So do those that cannot be decoded as fast as they come: hence a bound.
        self._num_old = math.ceil(opening_s * fps) + 1

    def grab(self) -> bool:
        """Wait for the next frame of now; those that have piled up are passed over.

        Raises:
            SourceError: it failed, gave nothing until its read deadline, or nothing but old frames.
        """
        until_s = time.monotonic() + self._read_timeout_s
        while super().grab():
            now_s = time.monotonic()
            if self._num_old and self._waited_s <= WAITED_SHARE * self._interval_s:
                self._num_old -= 1
                continue
            self._num_old = 0
            taken_s = self._capture.get(self._position_key) / 1000
            is_late = self._lateness.is_late(now_s, taken_s, waited_s=self._waited_s, interval_s=self._interval_s)
            if not is_late:
                return True
            if now_s > until_s:
                break
        raise SourceError(
            f"{self._label} cannot be decoded as fast as it comes; take a smaller one of the camera's streams"
        )


def open_stream(url: str, settings: CameraSettings) -> Capture:
    """Open a stream: `rtsp://`, `rtsps://`, `http://` or `https://`, with any user name and password in it.

    RTSP runs over TCP where the camera can do that, as OpenCV's default is. OpenCV's options for FFmpeg
    (`OPENCV_FFMPEG_CAPTURE_OPTIONS`) hold for everything that a process opens, recordings too: they are left to the
    user. What they are usually set for is done here in other ways: one decoder thread, as each further one holds back
    a frame; and frames that have piled up are passed over.

    Raises:
        RequestError: that is no address, or it is in doubt where in it the password ends.
        SourceError: it cannot be opened within the open deadline.
    """
    address = read_address(url)
    label = address.shown
    started_s = time.monotonic()
    if address.scheme in ("http", "https"):
        pictures = open_http(address, settings)
        if pictures is not None:
            return pictures
    else:
        check_reachable(address, settings.open_timeout_s)
    cv2 = import_opencv()
    left_s = max(0.1, settings.open_timeout_s - (time.monotonic() - started_s))
    options = deadlines(cv2, left_s, settings.read_timeout_s)
    if hasattr(cv2, "CAP_PROP_N_THREADS"):  # builds of Linux distributions are older
        options += [cv2.CAP_PROP_N_THREADS, 1]
    capture = try_open(cv2, address.url, cv2.CAP_FFMPEG, options)
    opening_s = time.monotonic() - started_s
    if capture is None:
        if opening_s >= 0.9 * settings.open_timeout_s:
            raise SourceError(f"{label} did not open within {settings.open_timeout_s:g} s: it does not answer")
        is_rtsp = address.scheme.startswith("rtsp")
        reason = describe_refusal(address, settings.open_timeout_s - opening_s) if is_rtsp else ""
        raise SourceError(f"{label} cannot be opened: {reason or 'it is no stream that FFmpeg understands'}")
    return StreamCapture(capture, label=label, read_timeout_s=settings.read_timeout_s, opening_s=opening_s)


def open_device(device: str | int, settings: CameraSettings, wish: DeviceFormat | None = None) -> Capture:
    """Open a camera of this machine.

    Args:
        device: its number, or its path such as `/dev/video0` or `/dev/v4l/by-id/...`.
        settings: deadlines.
        wish: what to ask it for; None: JPEG of its usual size.

    Raises:
        SourceError: it cannot be opened.
    """
    cv2 = import_opencv()
    label = f"camera {device}"
    # Elsewhere the system's own library opens cameras, by their number.
    capture = try_open(cv2, device, cv2.CAP_V4L2 if sys.platform == "linux" else cv2.CAP_ANY, [])
    if capture is None:
        raise SourceError(f"{label} cannot be opened: {_device_trouble(device)}")
    wish = DeviceFormat() if wish is None else wish
    if wish.is_jpeg:
        capture.set(cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*"MJPG"))
    for key, value in (
        (cv2.CAP_PROP_FRAME_WIDTH, wish.width),
        (cv2.CAP_PROP_FRAME_HEIGHT, wish.height),
        (cv2.CAP_PROP_FPS, wish.fps),
        (cv2.CAP_PROP_BUFFERSIZE, 1),
    ):
        if value is not None:
            capture.set(key, value)
    return OpenCvCapture(capture, label=label, read_timeout_s=settings.read_timeout_s)


def open_gstreamer(pipeline: str, settings: CameraSettings) -> Capture:
    """Open a GStreamer pipeline.

    Args:
        pipeline: as `gst-launch-1.0` takes it. Where there is no `appsink`, one is added that keeps the newest frame.
        settings: deadlines.

    Raises:
        SourceError: it cannot be opened, or this OpenCV is built without GStreamer.
    """
    cv2 = import_opencv()
    label = f"the pipeline {shown_pipeline(pipeline)}"
    require_gstreamer(cv2, label)
    if "appsink" not in pipeline:
        pipeline = f"{pipeline} ! videoconvert ! video/x-raw,format=BGR ! appsink max-buffers=1 drop=true sync=false"
    options = deadlines(cv2, settings.open_timeout_s, settings.read_timeout_s)
    capture = try_open(cv2, pipeline, cv2.CAP_GSTREAMER, options if has_pipeline_deadlines(cv2) else [])
    if capture is None:
        raise SourceError(f"{label} cannot be opened; try it with: gst-launch-1.0")
    return OpenCvCapture(capture, label=label, read_timeout_s=settings.read_timeout_s)


def _device_trouble(device: str | int) -> str:
    path = Path(f"/dev/video{device}" if isinstance(device, int) else device)
    if not path.exists():
        return f"there is no {path}; `edge-vl cameras` lists those that are there"
    if not os.access(path, os.R_OK | os.W_OK):
        return f"you may not use {path}; add yourself to its group: sudo usermod -aG video $USER, then log in again"
    return "another program may use it, or it is no camera; `edge-vl cameras` lists those that are there"


def _rgb(pixels: NDArray[np.uint8], label: str) -> NDArray[np.uint8]:
    """Return RGB of what OpenCV gives: BGR mostly, grey from some cameras."""
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3))):
        raise SourceError(f"{label} gave a frame of {pixels.dtype} with shape {pixels.shape}, which is no picture")
    cv2 = import_opencv()
    is_grey = pixels.ndim == 2 or pixels.shape[2] == 1
    converted: NDArray[np.uint8] = cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB if is_grey else cv2.COLOR_BGR2RGB)
    return converted
