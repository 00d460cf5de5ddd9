"""What a camera's desk sends to the broker, and how much of it may wait."""

from __future__ import annotations

import asyncio
from typing import Protocol

from edge_vl.frame import Frame
from edge_vl.gateway.camera_reports import ErrorReports, Moment, Outcome, answer_message
from edge_vl.gateway.camera_turns import Turn
from edge_vl.gateway.error_facts import error_facts
from edge_vl.gateway.snapshot import snapshot
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.node_messages import CameraEvent, CameraEventType
from edge_vl.mqtt.outbox import Keep
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.topics import NodeTopics

__all__ = ["CameraVoice", "Outlet"]


class Outlet(Protocol):
    """What takes messages to the broker."""

    def post(self, message: Outbound, keep: Keep) -> asyncio.Future[float]:
        """Take a message; does not block. The future has the round trip in seconds, or is cancelled."""
        ...


class CameraVoice:
    """Sends what is told about one camera. On the event loop's thread.

    Of answers and states only the newest waits for the broker, a snapshot waits for none but the one before, and
    events are bounded by the outbox; those of yes/no questions are kept as long as there is room for anything.

    Attributes:
        last_answer: the retained message of the last answer; None: there was none.
    """

    def __init__(self, camera: str, topics: NodeTopics, outlet: Outlet) -> None:
        """Begin silent.

        Args:
            camera: its name.
            topics: of the gateway.
            outlet: takes the messages.
        """
        self.last_answer: Outbound | None = None
        self._camera = camera
        self._base = topics.camera(camera, "")
        self._outlet = outlet
        self._errors = ErrorReports()
        self._snapshot: asyncio.Future[float] | None = None

    def message(
        self, what: str, payload: bytes, *, is_retained: bool = False, content_type: str = "application/json"
    ) -> Outbound:
        """Return a message of the camera, such as its `state`."""
        return Outbound(f"{self._base}{what}", payload, is_retained=is_retained, content_type=content_type)

    def post(self, message: Outbound, keep: Keep) -> None:
        """Send a message."""
        self._outlet.post(message, keep)

    def say(self, what: str, payload: bytes, keep: Keep, *, is_retained: bool = False) -> None:
        """Send JSON."""
        self._outlet.post(self.message(what, payload, is_retained=is_retained), keep)

    def tell_answer(self, turn: Turn, outcome: Outcome) -> None:
        """Send an answer, and keep it for those who come later."""
        payload = encode(answer_message(self._camera, turn, outcome, Moment.now()))
        self.say("answer", payload, "latest")
        self.last_answer = self.message("answer/last", payload, is_retained=True)
        self.post(self.last_answer, "latest")

    async def tell_snapshot(self, frame: Frame, max_px: int) -> None:
        """Send a frame as JPEG, unless the one before is still on its way."""
        if self._snapshot is None or self._snapshot.done():
            data = await asyncio.to_thread(snapshot, frame, max_px)
            self._snapshot = self._outlet.post(self.message("snapshot", data, content_type="image/jpeg"), "drop")

    def tell_event(
        self,
        type: CameraEventType,
        *,
        reason: str = "",
        name: str | None = None,
        value: bool | None = None,
        frame: int | None = None,
    ) -> None:
        """Send an event; see `CameraEvent`."""
        moment = Moment.now()
        event = CameraEvent(
            camera=self._camera,
            type=type,
            at=moment.at,
            t_ms=moment.t_ms,
            reason=reason,
            name=name,
            value=value,
            frame=frame,
        )
        self.say("event", encode(event), "terminal" if type == "when" else "delta")

    def tell_error(self, error: Exception) -> None:
        """Send an error as an event, unless one of its kind was sent just before."""
        event = self._errors.event(self._camera, error_facts(error), Moment.now())
        if event is not None:
            self.say("event", encode(event), "delta")

    def tell_left_out_errors(self) -> None:
        """Send what was left out, as soon as it may be told; to be called from time to time."""
        for event in self._errors.left_out(Moment.now()):
            self.say("event", encode(event), "delta")
