"""CSI cameras of a Raspberry Pi through Picamera2.

Written after its documentation and tried with a double only: never executed by this project on a Raspberry Pi.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import SourceError
from edge_vl.sources.camera_settings import CameraSettings

__all__ = ["Picamera2Capture", "import_picamera2", "open_picamera"]

_NUM_BUFFERS = 3  # one that the sensor fills, one that is looked at, one to spare


def import_picamera2() -> Any:
    """Import Picamera2.

    Returns:
        The module `picamera2`.

    Raises:
        SourceError: it is not there; with what to do.
    """
    try:
        return importlib.import_module("picamera2")
    except ImportError as error:
        raise SourceError(
            f"a Raspberry Pi's own camera needs Picamera2, which cannot be imported ({error}); on Raspberry Pi OS: "
            "apt-get install python3-picamera2, and use the system's Python or a virtual environment made with "
            "--system-site-packages, because pip cannot install libcamera"
        ) from error


class Picamera2Capture:
    """A started `Picamera2`. `grab` waits for a new frame and holds it; `retrieve` copies it."""

    def __init__(self, camera: Any, *, read_timeout_s: float, label: str) -> None:
        """Take over one that is started.

        Args:
            camera: closed by `close`.
            read_timeout_s: how long a frame may take.
            label: for errors.
        """
        self._camera = camera
        self._read_timeout_s = read_timeout_s
        self._label = label
        self._request: Any = None

    def grab(self) -> bool:
        """Wait for the next frame.

        Raises:
            SourceError: it failed, or gave nothing until its read deadline.
        """
        self._release()
        try:
            job = self._camera.capture_request(wait=False)
            self._request = self._camera.wait(job, timeout=self._read_timeout_s)
        except TimeoutError:
            raise SourceError(f"{self._label} gave nothing for {self._read_timeout_s:g} s") from None
        except Exception as error:  # libcamera's errors come as RuntimeError and others
            raise SourceError(f"{self._label} failed: {error}") from None
        return True

    def retrieve(self) -> NDArray[np.uint8]:
        """Return the frame grabbed last as uint8 (height, width, 3), RGB; memory of its own.

        Raises:
            SourceError: there is none, or it is none that we asked for.
        """
        if self._request is None:
            raise SourceError(f"{self._label} has no frame")
        pixels = np.asarray(self._request.make_array("main"))
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise SourceError(f"{self._label} gave a frame of {pixels.dtype} with shape {pixels.shape}")
        copied: NDArray[np.uint8] = np.array(pixels, order="C", copy=True)
        return copied

    def close(self) -> None:
        """Give the camera back."""
        self._release()
        self._camera.stop()
        self._camera.close()

    def _release(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.release()  # or its buffer would be missing


def open_picamera(
    number: int, settings: CameraSettings, *, size: tuple[int, int] = (1280, 720), fps: float | None = None
) -> Picamera2Capture:
    """Open a Raspberry Pi's own camera.

    Args:
        number: as `edge-vl cameras` lists it.
        settings: deadlines.
        size: width and height of its frames in pixels; the image signal processor scales to it.
        fps: frames per second; None: its own choice.

    Raises:
        SourceError: Picamera2 is missing, or the camera cannot be opened.

    Source:
        The Picamera2 Library, Raspberry Pi Ltd: create_video_configuration, capture_request, CompletedRequest. Formats
        are named there by their order in a little-endian word, so `BGR888` is what everybody else calls RGB. With
        `queue=False` a frame is never one that came before it was asked for.
    """
    picamera2 = import_picamera2()
    label = f"Raspberry Pi camera {number}"
    camera: Any = None
    try:
        camera = picamera2.Picamera2(number)
        configuration = camera.create_video_configuration(
            main={"size": size, "format": "BGR888"},
            buffer_count=_NUM_BUFFERS,
            queue=False,
            controls={} if fps is None else {"FrameRate": fps},
        )
        camera.configure(configuration)
        camera.start()
    except Exception as error:
        if camera is not None:
            camera.close()
        reason = "there is no such camera" if isinstance(error, IndexError) else str(error) or type(error).__name__
        raise SourceError(f"{label} cannot be opened: {reason}; `edge-vl cameras` lists those that are there") from None
    return Picamera2Capture(camera, read_timeout_s=settings.read_timeout_s, label=label)
