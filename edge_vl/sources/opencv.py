"""OpenCV: imported late, in this place only, and opened so that it says nothing."""

from __future__ import annotations

import re
from typing import Any

from edge_vl.environment import quiet_opencv
from edge_vl.errors import SourceError

__all__ = ["deadlines", "has_gstreamer", "has_pipeline_deadlines", "import_opencv", "require_gstreamer", "try_open"]

INSTALL = "pip install 'edge-vl[camera]'"

_GSTREAMER_TIMEOUTS = (4, 7)
"""OpenCV from which on pipelines have deadlines. Before, asking for one fails, and can abort the process."""


def import_opencv() -> Any:
    """Import OpenCV, told to print nothing that may hold a password.

    Returns:
        The module `cv2`.

    Raises:
        SourceError: it is not installed, or does not work; with the command that installs it.
    """
    quiet_opencv()
    try:
        import cv2
    except ImportError as error:
        raise SourceError(
            f"cameras and recordings need OpenCV, which cannot be imported ({error}); install it with: {INSTALL}"
        ) from error
    if not hasattr(cv2, "VideoCapture"):
        raise SourceError(f"the OpenCV that is installed cannot read cameras; install another with: {INSTALL}")
    return cv2


def has_gstreamer(cv2: Any) -> bool:
    """Say whether an OpenCV is built with GStreamer: the name of the back end alone is in all of them."""
    return any(
        "GStreamer" in line and line.split(":")[-1].strip().startswith("YES")
        for line in cv2.getBuildInformation().splitlines()
    )


def require_gstreamer(cv2: Any, label: str) -> None:
    """Check that an OpenCV is built with GStreamer.

    Raises:
        SourceError: it is not; with where to get one.
    """
    if not has_gstreamer(cv2):
        raise SourceError(
            f"{label} needs an OpenCV that is built with GStreamer; those that pip installs are not. The one of "
            "Debian, Ubuntu and Raspberry Pi OS is (apt-get install python3-opencv), and so is that of Jetson Linux: "
            "use the system's Python, or a virtual environment made with --system-site-packages"
        )


def has_pipeline_deadlines(cv2: Any) -> bool:
    """Say whether an OpenCV knows deadlines of GStreamer pipelines."""
    version = tuple(int(part) for part in re.findall(r"\d+", cv2.__version__)[:2])
    return version >= _GSTREAMER_TIMEOUTS


def deadlines(cv2: Any, open_s: float, read_s: float) -> list[int]:
    """Return deadlines as OpenCV takes them; it ignores them unless a back end is named as well."""
    return [
        cv2.CAP_PROP_OPEN_TIMEOUT_MSEC,
        max(1, round(open_s * 1000)),
        cv2.CAP_PROP_READ_TIMEOUT_MSEC,
        max(1, round(read_s * 1000)),
    ]


def try_open(cv2: Any, what: str | int, backend: int, options: list[int]) -> Any:
    """Return an open capture; None: it cannot be opened."""
    try:
        capture = cv2.VideoCapture(what, backend, options) if options else cv2.VideoCapture(what, backend)
    except Exception:  # cv2.error, whose text holds the address
        return None
    if capture.isOpened():
        return capture
    capture.release()
    return None
