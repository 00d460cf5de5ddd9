"""The GStreamer pipeline of a CSI camera on a Jetson.

Pure text, written after NVIDIA's documentation: never executed by this project on a Jetson.
"""

from __future__ import annotations

from edge_vl.errors import RequestError

__all__ = ["csi_pipeline"]

_MAX_SENSORS = 16
_MAX_SIDE = 8192


def csi_pipeline(sensor: int = 0, *, width: int = 1280, height: int = 720, fps: int = 30) -> str:
    """Return the pipeline that gives BGR frames of a CSI camera, the newest one only.

    The image signal processor works into memory of its own (NVMM). `nvvidconv` brings a frame out of it; it does not
    know BGR, so `videoconvert` drops the fourth byte of its BGRx. Nothing is turned: that is the view's task.

    Args:
        sensor: number of the camera, 0 to 15.
        width: of a mode that the sensor has, or that the processor can scale one to, in pixels.
        height: likewise.
        fps: frames per second.

    Raises:
        RequestError: a number makes no sense.

    Source:
        NVIDIA, Jetson Linux Developer Guide, "Accelerated GStreamer": nvarguscamerasrc, nvvidconv.
    """
    limits = {"sensor": (sensor, 0, _MAX_SENSORS - 1), "fps": (fps, 1, 240)}
    limits |= {"width": (width, 16, _MAX_SIDE), "height": (height, 16, _MAX_SIDE)}
    for field, (value, low, high) in limits.items():
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise RequestError(f"{field} of a CSI camera is {low} to {high}, not {value!r:.40}", field=field)
    return " ! ".join(
        (
            f"nvarguscamerasrc sensor-id={sensor}",
            f"video/x-raw(memory:NVMM),width={width},height={height},framerate={fps}/1,format=NV12",
            "nvvidconv",
            "video/x-raw,format=BGRx",
            "videoconvert",
            "video/x-raw,format=BGR",
            "appsink max-buffers=1 drop=true sync=false",
        )
    )
