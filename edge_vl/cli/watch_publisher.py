"""Publishes the answers of `edge-vl watch` over MQTT, on the camera's topics of the contract."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from edge_vl.answer import Answer
from edge_vl.environment import mqtt_password
from edge_vl.errors import BrokerError, RequestError
from edge_vl.frame import Frame
from edge_vl.gateway.camera_reports import Moment, Outcome, answer_message, wall_time
from edge_vl.gateway.camera_turns import Trigger, Turn
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.broker_url import read_broker_url
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.node_messages import CameraEvent, CameraStateMessage
from edge_vl.mqtt.outbox import Keep
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import NodeTopics, check_name, check_prefix
from edge_vl.sources.camera_state import CameraState

__all__ = ["WatchPublisher", "read_target"]

_STOP_S = 2.0
_JSON = "application/json"


def read_target(url: str) -> tuple[BrokerSettings, NodeTopics]:
    """Read `mqtt://user@host:port/prefix/node`; the password is in `EDGE_VL_MQTT_PASSWORD`.

    Raises:
        RequestError: it is something else.
    """
    base, topics = url, ""
    if "://" in url:
        topics = urlsplit(url).path.strip("/")
        base = url[: len(url) - len(urlsplit(url).path)] if topics else url
    prefix, _, node = topics.rpartition("/")
    if not prefix or not node:
        raise RequestError("--mqtt is mqtt://host/prefix/node, such as mqtt://broker/edge_vl/porch", field="mqtt")
    settings, _ = read_broker_url(base, password=mqtt_password(), field="--mqtt")
    return settings, NodeTopics(check_prefix(prefix), check_name(node, "node"))


class WatchPublisher:
    """A session on a thread of its own. All methods but `close` return at once, from any thread.

    The node that it names must be its own: no gateway may be called the same.
    """

    def __init__(
        self,
        url: str,
        camera: str,
        *,
        trigger: Trigger,
        note: Callable[[str], None],
        on_failure: Callable[[], object],
    ) -> None:
        """Read the address; `start` connects.

        Args:
            url: `mqtt://host/prefix/node`.
            camera: its name, as a level of the topics.
            trigger: why answers are made.
            note: told in words when the broker comes and goes; on the publisher's thread.
            on_failure: called when it is hopeless; `failure` says why.

        Raises:
            RequestError: the address or the name makes no sense.
        """
        self.failure: BrokerError | None = None
        self._settings, self._topics = read_target(url)
        self._camera = check_name(camera, "name")
        self._trigger: Trigger = trigger
        self._note = note
        self._on_failure = on_failure
        self._state = CameraState("online", since_s=time.monotonic())
        self._when: dict[str, bool | None] = {}
        self._num_answers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Session | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edge-vl-publisher", daemon=True)

    def start(self) -> None:
        """Begin to connect; does not wait for the broker."""
        self._thread.start()
        self._ready.wait(_STOP_S)

    def state(self, state: CameraState) -> None:
        """Tell the camera's state, and that it came or went."""
        before, self._state = self._state, state
        self._send("state", self._state_payload(), "latest", is_retained=True)
        if state.status in ("online", "offline", "disabled") and state.status != before.status:
            moment = Moment.now()
            event = CameraEvent(
                camera=self._camera, type=state.status, at=moment.at, t_ms=moment.t_ms, reason=state.reason
            )
            self._send("event", encode(event), "terminal")

    def answered(self, question: str, answer: Answer, frame: Frame, when: Mapping[str, bool | None]) -> None:
        """Tell an answer, and keep it for those who come later."""
        self._num_answers += 1
        turn = Turn(frame, question, bool(when), self._trigger)
        total_s = answer.timings.total_s or 0.0
        outcome = Outcome(time.monotonic() - total_s, answer, answer, when, answer.dropped)
        payload = encode(answer_message(self._camera, turn, outcome, Moment.now()))
        self._send("answer", payload, "terminal")
        self._send("answer/last", payload, "latest", is_retained=True)

    def changed(self, question: str, value: bool | None, frame: Frame) -> None:
        """Tell that a yes/no question has another answer."""
        self._when[question] = value
        moment = Moment.now()
        event = CameraEvent(
            camera=self._camera,
            type="when",
            at=moment.at,
            t_ms=moment.t_ms,
            name=question,
            value=value,
            frame=frame.index,
        )
        self._send("event", encode(event), "terminal")
        self._send("state", self._state_payload(), "latest", is_retained=True)

    def close(self) -> None:
        """Send what waits, say goodbye, and disconnect; waits two seconds at most."""
        loop, session = self._loop, self._session
        if loop is None or session is None or not self._thread.is_alive():
            return
        self._state = replace(self._state, status="closed", since_s=time.monotonic(), fps=0.0)
        last = [
            self._message("state", self._state_payload(), is_retained=True),
            Outbound(self._topics.status, b"stopped", is_retained=True),
        ]
        try:
            asyncio.run_coroutine_threadsafe(session.stop(last), loop)
        except RuntimeError:  # its loop has ended meanwhile
            return
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = Session(
            self._settings,
            filters={},
            on_message=lambda inbound: None,
            on_connect=self._first_messages,
            will=Outbound(self._topics.status, b"offline", is_retained=True),
            on_state=lambda state, words: self._note(f"broker: {state}{f': {words}' if words else ''}"),
        )
        self._ready.set()
        try:
            await self._session.run()
        except BrokerError as error:
            self.failure = error
            self._on_failure()

    def _first_messages(self) -> Iterable[Outbound]:
        yield Outbound(self._topics.status, b"online", is_retained=True)
        yield self._message("state", self._state_payload(), is_retained=True)

    def _state_payload(self) -> bytes:
        state, moment = self._state, Moment.now()
        since_wall_s = time.time() - max(0.0, time.monotonic() - (state.since_s or time.monotonic()))
        return encode(
            CameraStateMessage(
                camera=self._camera,
                status=state.status,
                reason=state.reason,
                since=wall_time(since_wall_s),
                at=moment.at,
                t_ms=moment.t_ms,
                fps=round(state.fps, 2),
                width=state.width,
                height=state.height,
                frames=state.num_frames,
                bad=state.num_bad,
                connections=state.num_connections,
                answers=self._num_answers,
                when=dict(self._when),
            )
        )

    def _message(self, what: str, payload: bytes, *, is_retained: bool) -> Outbound:
        return Outbound(self._topics.camera(self._camera, what), payload, is_retained=is_retained, content_type=_JSON)

    def _send(self, what: str, payload: bytes, keep: Keep, *, is_retained: bool = False) -> None:
        loop, session = self._loop, self._session
        if loop is None or session is None or loop.is_closed() or self.failure is not None:
            return
        message = self._message(what, payload, is_retained=is_retained)
        try:
            loop.call_soon_threadsafe(session.post, message, keep)
        except RuntimeError:  # closed meanwhile
            return
