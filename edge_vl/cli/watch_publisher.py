"""Publishes the answers of `edge-vl watch` over MQTT, on the camera's topics of the contract."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from edge_vl.answer import Answer
from edge_vl.cli.free_name import is_name_free
from edge_vl.environment import mqtt_password
from edge_vl.errors import BrokerError, RequestError
from edge_vl.frame import Frame
from edge_vl.gateway.camera_reporter import CameraReporter
from edge_vl.gateway.camera_reports import Moment, Outcome, answer_message
from edge_vl.gateway.camera_status import HasLatest
from edge_vl.gateway.camera_turns import Trigger, Turn
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.broker_url import check_userinfo, read_broker_url
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.node_messages import CameraEvent, CameraEventType, CameraStateMessage
from edge_vl.mqtt.outbox import Keep
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.refusals import message_refusal
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import NodeTopics, check_name, check_prefix

__all__ = ["WatchPublisher", "read_target"]

_START_S = 2.0
_STOP_S = 5.0

_CONNECT_S = 2.0
"""A connection in the making is waited for so long at the end."""

_LOOK_S = 0.2
"""From one look at the camera's state to the next."""

_JSON = "application/json"


def read_target(url: str) -> tuple[BrokerSettings, NodeTopics]:
    """Read `mqtt://user@host:port/prefix/node`; the password is in `EDGE_VL_MQTT_PASSWORD`.

    Raises:
        RequestError: it is something else.
    """
    base, topics = url, ""
    check_userinfo(url, "--mqtt")
    if "://" in url:
        scheme, _, rest = url.partition("://")
        host, _, topics = rest.partition("/")
        base, topics = f"{scheme}://{host}", topics.strip("/")
    prefix, _, node = topics.rpartition("/")
    if not prefix or not node:
        raise RequestError("--mqtt is mqtt://host/prefix/node, such as mqtt://broker/edge_vl/porch", field="mqtt")
    settings, _ = read_broker_url(base, password=mqtt_password(), field="--mqtt")
    return settings, NodeTopics(check_prefix(prefix), check_name(node, "node"))


class WatchPublisher:
    """A session on a thread of its own. All methods but `close` return at once, from any thread.

    The node that it names must be its own: where one of that name is online it publishes nothing, and fails.

    Attributes:
        failure: why nothing is published any more; None: it is, or will be when the broker is there.
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
        self._reporter: CameraReporter | None = None
        self._when: dict[str, bool | None] = {}
        self._question = ""
        self._num_answers = 0
        self._num_published = 0
        self._is_closing = False
        self._told = ("", "")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Session | None = None
        self._has_news = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edge-vl-publisher", daemon=True)

    @property
    def num_unpublished(self) -> int:
        """Answers that the broker has not confirmed."""
        return self._num_answers - self._num_published

    def start(self, camera: HasLatest, questions: Iterable[str] = ()) -> None:
        """Begin to connect, and to look at what is watched; does not wait for the broker.

        Args:
            camera: what is watched.
            questions: the yes/no questions, told without an answer until each has one.
        """
        self._when = dict.fromkeys(questions)
        self._reporter = CameraReporter(self._camera, camera)
        self._thread.start()
        self._ready.wait(_START_S)

    def answered(self, question: str, answer: Answer, frame: Frame, when: Mapping[str, bool | None]) -> None:
        """Tell an answer, and keep it for those who come later."""
        self._num_answers += 1
        self._question = question
        turn = Turn(frame, question, bool(when), self._trigger)
        total_s = answer.timings.total_s or 0.0
        outcome = Outcome(time.monotonic() - total_s, answer, answer, when, answer.dropped)
        payload = encode(answer_message(self._camera, turn, outcome, Moment.now()))
        self._send("answer", payload, "terminal", on_receipt=self._count)
        self._send("answer/last", payload, "latest", is_retained=True)

    def changed(self, question: str, value: bool | None, frame: Frame) -> None:
        """Tell that a yes/no question has another answer."""
        self._when[question] = value
        self._tell_event("when", name=question, value=value, frame=frame.index)
        self._call(self._tell_changed_state)

    def close(self) -> None:
        """Send what waits, say goodbye, and disconnect; waits five seconds at most.

        What the broker kept of the camera goes: nobody watches it any more. The last answer stays, with its time.
        """
        loop, session = self._loop, self._session
        if loop is None or session is None or not self._thread.is_alive():
            return
        ending = self._end(session)
        try:
            asyncio.run_coroutine_threadsafe(ending, loop)
        except RuntimeError:  # its loop has ended meanwhile
            ending.close()
            return
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            ending.close()  # where its loop ended before it could begin

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._publish()
        except BrokerError as error:
            self._fail(error)
        except Exception as error:  # the thread's border: one that died silently would seem to publish
            self._fail(_broken_off(error))
        finally:
            self._ready.set()

    async def _publish(self) -> None:
        self._session = Session(
            self._settings,
            filters={},
            on_message=lambda inbound: None,
            on_connect=self._first_messages,
            will=Outbound(self._topics.status, b"offline", is_retained=True),
            on_state=self._tell,
            on_refused=self._refused,
        )
        self._look()
        self._ready.set()
        is_free = await is_name_free(
            self._settings, self._topics, on_state=self._tell_trouble, is_closing=lambda: self._is_closing
        )
        if is_free:
            reporting = asyncio.create_task(self._report())
            reporting.add_done_callback(self._check_reporting)
            try:
                await self._session.run()
            finally:
                reporting.cancel()

    async def _end(self, session: Session) -> None:
        self._is_closing = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_news.wait(), _CONNECT_S)
        gone = self._message("state", b"", is_retained=True)
        await session.stop([gone, Outbound(self._topics.status, b"stopped", is_retained=True)])

    def _tell(self, state: str, words: str) -> None:
        if state == "lost":
            self._has_news.clear()
        elif state in ("connected", "unreachable"):
            self._has_news.set()
        is_repeated = self._told == (state, words)
        self._told = (state, words)
        if state != "stopped" and not is_repeated:  # whoever reads that it stopped has ended it, or is told why
            with contextlib.suppress(OSError, ValueError):  # there is nowhere to write to; publishing goes on
                self._note(f"broker: {state}{f': {words}' if words else ''}")

    def _tell_trouble(self, state: str, words: str) -> None:
        if state in ("lost", "unreachable"):
            self._tell(state, words)

    def _refused(self, message: Outbound, reason: int) -> None:
        refusal = message_refusal(reason, replace(message, topic=f"{self._topics.base}/..."))
        if refusal is not None:
            self._fail(refusal)

    def _fail(self, error: BrokerError) -> None:
        self._has_news.set()
        if self.failure is None:
            self.failure = error
            self._on_failure()

    def _check_reporting(self, reporting: asyncio.Task[None]) -> None:
        if not reporting.cancelled() and (error := reporting.exception()) is not None:
            self._fail(_broken_off(error))

    def _count(self, receipt: asyncio.Future[float]) -> None:
        if not receipt.cancelled() and receipt.exception() is None:
            self._num_published += 1

    def _first_messages(self) -> Iterable[Outbound]:
        yield Outbound(self._topics.status, b"online", is_retained=True)
        if self._reporter is not None:
            yield self._message("state", encode(self._state(self._reporter)), is_retained=True)

    async def _report(self) -> None:
        while not self._is_closing:
            await asyncio.sleep(_LOOK_S)
            self._look()

    def _look(self) -> None:
        """Tell how the camera is, as the desk of a gateway does."""
        if self._reporter is None or self._is_closing:
            return
        state = self._state(self._reporter)
        for type, reason in self._reporter.events(state):
            self._tell_event(type, reason=reason)
        if self._reporter.is_due(state):
            self._send("state", encode(state), "latest", is_retained=True)

    def _tell_changed_state(self) -> None:
        if self._reporter is not None and not self._is_closing:
            self._send("state", encode(self._state(self._reporter)), "latest", is_retained=True)

    def _state(self, reporter: CameraReporter) -> CameraStateMessage:
        return msgspec.structs.replace(
            reporter.look(), question=self._question, answers=self._num_answers, when=dict(self._when)
        )

    def _tell_event(
        self,
        type: CameraEventType,
        *,
        reason: str = "",
        name: str | None = None,
        value: bool | None = None,
        frame: int | None = None,
    ) -> None:
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
        self._send("event", encode(event), "terminal")

    def _message(self, what: str, payload: bytes, *, is_retained: bool) -> Outbound:
        return Outbound(self._topics.camera(self._camera, what), payload, is_retained=is_retained, content_type=_JSON)

    def _send(
        self,
        what: str,
        payload: bytes,
        keep: Keep,
        *,
        is_retained: bool = False,
        on_receipt: Callable[[asyncio.Future[float]], None] | None = None,
    ) -> None:
        session = self._session
        if session is None or self.failure is not None:
            return
        message = self._message(what, payload, is_retained=is_retained)

        def post() -> None:
            receipt = session.post(message, keep)
            if on_receipt is not None:
                receipt.add_done_callback(on_receipt)

        self._call(post)

    def _call(self, function: Callable[[], None]) -> None:
        """Run it soon on the publisher's thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended meanwhile
                self._loop.call_soon_threadsafe(function)


def _broken_off(error: BaseException) -> BrokerError:
    return BrokerError(f"publishing broke off: {type(error).__name__}: {error}", reason="lost")
