"""How a camera is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_vl.backoff import Backoff
from edge_vl.errors import RequestError
from edge_vl.sources.view import View

__all__ = ["CameraSettings"]


_MOST = 1e6
"""A timeout of eleven days, or far more frames than there are. Beyond, waits of the system overflow."""


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
        for field_name, least in (("open_timeout_s", 0.001), ("read_timeout_s", 0.001), ("max_fps", 0.001)):
            value = getattr(self, field_name)
            if value is None and field_name == "max_fps":
                continue
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not least <= value <= _MOST:
                raise RequestError(
                    f"{field_name} of a camera is {least:g} to {_MOST:g}, not {value!r:.40}", field=field_name
                )
        for field_name, kind in (("backoff", Backoff), ("view", View)):
            value = getattr(self, field_name)
            if not isinstance(value, kind):
                raise RequestError(
                    f"{field_name} of a camera is a {kind.__name__}, not a {type(value).__name__}", field=field_name
                )
