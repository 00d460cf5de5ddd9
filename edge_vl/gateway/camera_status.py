"""What the state of a camera is, whether or not its source can tell."""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

from edge_vl.frame import Frame
from edge_vl.sources.camera_state import CameraState, CameraStatus

__all__ = ["CameraStatusReader", "HasLatest"]


class HasLatest(Protocol):
    """What keeps its newest frame: any live source."""

    def latest(self) -> Frame | None:
        """Return the newest frame; None: there is none now."""
        ...


@runtime_checkable
class _HasState(Protocol):
    @property
    def state(self) -> CameraState:
        """What is known now."""
        ...


@runtime_checkable
class _HasSwitch(Protocol):
    def enable(self, is_enabled: bool) -> None:
        """Switch it on or off. Does not wait."""
        ...


class CameraStatusReader:
    """Reads the state of a live source, and switches it on and off. Belongs to one thread.

    A source that cannot tell its state is `online` while it has a frame, and `connecting` before.
    """

    def __init__(self, source: HasLatest, *, is_enabled: bool) -> None:
        """Begin to look.

        Args:
            source: a camera, or any other live source.
            is_enabled: whether it is switched on; see `switch`.
        """
        self._source = source
        self._is_enabled = is_enabled
        self._status: CameraStatus | None = None
        self._since_s = self._since_wall_s = 0.0

    @property
    def since_wall_s(self) -> float:
        """Seconds since the epoch when it came into the status that was read last."""
        return self._since_wall_s

    def switch(self, is_enabled: bool) -> None:
        """Switch the source on or off, where it can be; say that it is disabled in any case."""
        self._is_enabled = is_enabled
        if isinstance(self._source, _HasSwitch):
            self._source.enable(is_enabled)

    def read(self) -> CameraState:
        """Return the state now."""
        state = self._source.state if isinstance(self._source, _HasState) else self._seen()
        now_s = time.monotonic()
        status: CameraStatus = state.status if self._is_enabled else "disabled"
        since_s = state.since_s or now_s
        if status != self._status:
            self._status = status
            self._since_s = since_s if status == state.status else now_s
            self._since_wall_s = time.time() - (now_s - self._since_s)
        return CameraState(
            status=status,
            reason=state.reason if status == "offline" else "",
            since_s=self._since_s,
            num_frames=state.num_frames,
            num_kept=state.num_kept,
            num_bad=state.num_bad,
            num_connections=state.num_connections,
            num_failures=state.num_failures,
            num_abandoned=state.num_abandoned,
            fps=state.fps if status == "online" else 0.0,
            width=state.width,
            height=state.height,
        )

    def _seen(self) -> CameraState:
        frame = self._source.latest()
        if frame is None:
            return CameraState("connecting")
        return CameraState(
            "online", num_frames=frame.index + 1, num_connections=1, width=frame.width, height=frame.height
        )
