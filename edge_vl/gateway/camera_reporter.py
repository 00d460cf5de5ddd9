"""When there is something to tell about the state of a camera, and what."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from edge_vl.gateway.camera_reports import Moment, wall_time
from edge_vl.gateway.camera_status import CameraStatusReader, HasLatest
from edge_vl.mqtt.node_messages import CameraEventType, CameraStateMessage

__all__ = ["STATE_S", "CameraReporter"]

STATE_S = 5.0
"""Least seconds between two states in which only numbers differ."""


class CameraReporter:
    """Looks at a camera, and decides what of it is news. Belongs to one thread."""

    def __init__(self, camera: str, source: HasLatest, *, is_enabled: bool = True) -> None:
        """Begin with nothing told.

        Args:
            camera: its name.
            source: gives its frames.
            is_enabled: whether it is switched on; see `switch`.
        """
        self._camera = camera
        self._source = source
        self._status = CameraStatusReader(source, is_enabled=is_enabled)
        self._told: CameraStateMessage | None = None
        self._told_s = 0.0
        self._is_stale = True

    def switch(self, is_enabled: bool) -> None:
        """Switch the camera on or off."""
        self._status.switch(is_enabled)

    def note_change(self) -> None:
        """Note that the state is to be told soon, although nothing changed that can be seen at the camera."""
        self._is_stale = True

    def look(self) -> CameraStateMessage:
        """Return the state now, without what its watch knows."""
        camera, frame, moment = self._status.read(), self._source.latest(), Moment.now()
        return CameraStateMessage(
            camera=self._camera,
            status=camera.status,
            reason=camera.reason,
            since=wall_time(self._status.since_wall_s),
            at=moment.at,
            t_ms=moment.t_ms,
            fps=round(camera.fps, 1),
            age_ms=None if frame is None else max(0, moment.t_ms - int(frame.captured_s * 1000)),
            width=camera.width,
            height=camera.height,
            frames=camera.num_frames,
            bad=camera.num_bad,
            connections=camera.num_connections,
        )

    def events(self, state: CameraStateMessage) -> Iterable[tuple[CameraEventType, str]]:
        """Yield the events, with their reasons, that lie between the state told last and this one.

        Also that it was offline and came back between two looks. A camera that connects is no event.
        """
        before = self._told
        is_back = before is not None and state.connections > before.connections
        if before is not None and state.status == before.status and not is_back:
            return
        if before is not None and before.status == state.status == "online":
            yield "offline", "the connection was lost for a moment"
        if state.status in ("online", "offline", "disabled"):
            yield state.status, state.reason

    def is_due(self, state: CameraStateMessage) -> bool:
        """Say whether this state is to be told, and take it as told: at once after a change, else every 5 s."""
        before, now_s = self._told, time.monotonic()
        is_other = before is None or state.status != before.status or state.connections > before.connections
        has_news = before is None or _without_clocks(before) != _without_clocks(state)
        if not (is_other or self._is_stale or (has_news and now_s - self._told_s >= STATE_S)):
            return False
        self._is_stale = False
        self._told, self._told_s = state, now_s
        return True


def _without_clocks(state: CameraStateMessage) -> CameraStateMessage:
    return msgspec.structs.replace(state, at="", t_ms=0, age_ms=None, fps=round(state.fps))
