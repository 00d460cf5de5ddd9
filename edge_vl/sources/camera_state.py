"""What is known about a camera at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CameraState", "CameraStatus"]

CameraStatus = Literal["connecting", "online", "offline", "disabled", "closed"]


@dataclass(frozen=True, slots=True)
class CameraState:
    """What a camera does, and what became of its frames.

    Attributes:
        status: `connecting` before the first frame, `online` while frames come, `offline` after a failure and until
            frames come again, `disabled` while somebody has switched it off, `closed` in the end.
        reason: why it is not online, for a person to read; never holds a password; empty when it is online.
        since_s: `time.monotonic()` when it came into this status.
        num_frames: frames that the camera gave so far, over all its connections.
        num_kept: those of them that were decoded into the slot; the others were passed over.
        num_bad: frames that could not be decoded.
        num_connections: times that it came online.
        num_failures: failures in a row since it was online last.
        num_abandoned: 1 while a native call that hangs still holds the last connection, else 0.
        fps: frames per second over the last seconds; 0 when it is not online.
        width: of its frames in pixels, after rotation and cropping; 0 before the first.
        height: likewise.
    """

    status: CameraStatus
    reason: str = ""
    since_s: float = 0.0
    num_frames: int = 0
    num_kept: int = 0
    num_bad: int = 0
    num_connections: int = 0
    num_failures: int = 0
    num_abandoned: int = 0
    fps: float = 0.0
    width: int = 0
    height: int = 0
