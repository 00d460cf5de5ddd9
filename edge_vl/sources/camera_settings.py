"""How a camera is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_vl.backoff import Backoff
from edge_vl.errors import RequestError
from edge_vl.sources.view import View

__all__ = ["CameraSettings"]


@dataclass(frozen=True, slots=True)
class CameraSettings:
    """How a camera is read. All of it may be left out.

    Attributes:
        open_timeout_s: how long opening may take.
        read_timeout_s: how long the next frame may take.
        max_fps: most frames per second that are decoded into the slot; every frame is still taken off the camera, so
            that none is old. None: all of them.
        backoff: delays between attempts to open it again.
        view: what of each frame is kept, and which way is up.
    """

    open_timeout_s: float = 10.0
    read_timeout_s: float = 5.0
    max_fps: float | None = 15.0
    backoff: Backoff = field(default_factory=Backoff)
    view: View = field(default_factory=View)

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            RequestError: one makes no sense.
        """
        for field_name in ("open_timeout_s", "read_timeout_s", "max_fps"):
            value = getattr(self, field_name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < float("inf")):
                raise RequestError(f"{field_name} of a camera is more than 0, not {value!r:.40}", field=field_name)
