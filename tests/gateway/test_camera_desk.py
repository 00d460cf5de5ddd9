"""Tests of a camera's desk: on a fake engine with a session that records, and once on a real model and broker."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from edge_vl import EngineFault, Runtime, SourceError
from edge_vl.backoff import Backoff
from edge_vl.gateway.camera_commands import read_enabled, read_every_s, read_question
from edge_vl.gateway.camera_desk import CameraDesk
from edge_vl.gateway.config import CameraConfig, WhenConfig
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.node_messages import CameraAnswer, CameraEvent, CameraStateMessage
from edge_vl.mqtt.outbox import Keep
from edge_vl.mqtt.packet import Inbound, Outbound
from edge_vl.mqtt.reading import read_message
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import NodeTopics
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.pushed import PushedFrames
from edge_vl.sources.synthetic import SyntheticCapture
from edge_vl.testing import FakeFault, FakeLatencies
from tests.conftest import OpenFake
from tests.mosquitto import Mosquitto
from tests.mqtt_observer import Observer

WAIT_S = 20.0
NO_RUNTIME: Runtime = None  # type: ignore[assignment]  # nothing is asked
BASE = "edge_vl/pi/camera/door/"
TOPICS = NodeTopics("edge_vl", "pi")


payloads = st.one_of(
    st.binary(max_size=600),
    st.text(max_size=600).map(str.encode),
    st.sampled_from([b"ON", b"OFF", b"PRESS", b"Who?", b"0", b"2.5", b"1e400", b"\xff\xfe", b"null", b"{}"]),
)


class Recorder:
    """Takes messages as a session does, and remembers them."""

    def __init__(self) -> None:
        self.posted: list[tuple[Outbound, Keep]] = []
        self.is_slow = False
        self.waiting: list[asyncio.Future[float]] = []

    def post(self, message: Outbound, keep: Keep) -> asyncio.Future[float]:
        self.posted.append((message, keep))
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        if self.is_slow:
            self.waiting.append(future)
        else:
            future.set_result(0.0)
        return future

    def messages(self, what: str) -> list[Outbound]:
        return [message for message, _ in self.posted if message.topic == BASE + what]

    def answers(self) -> list[CameraAnswer]:
        return [read_message(message.payload, CameraAnswer) for message in self.messages("answer")]

    def events(self, type: str | None = None) -> list[CameraEvent]:
        events = [read_message(message.payload, CameraEvent) for message in self.messages("event")]
        return [event for event in events if type in (None, event.type)]

    def last_state(self) -> CameraStateMessage:
        return read_message(self.messages("state")[-1].payload, CameraStateMessage)


async def until(condition: Callable[[], object], what: str = "") -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain {what}"
        await asyncio.sleep(0.01)


def grey(number: int) -> NDArray[np.uint8]:
    return np.full((20, 30, 3), number, np.uint8)


def told(what: str, payload: str | bytes, *, is_retained: bool = False) -> Inbound:
    data = payload.encode() if isinstance(payload, str) else payload
    return Inbound(f"{BASE}{what}", data, time.monotonic(), is_retained=is_retained)


@asynccontextmanager
async def running(desk: CameraDesk) -> AsyncIterator[None]:
    task = asyncio.create_task(desk.run())
    await asyncio.sleep(0)
    try:
        yield
        assert not task.done(), task
    finally:
        desk.close()
        await asyncio.wait_for(task, WAIT_S)


def config_of(**more: Any) -> CameraConfig:
    return CameraConfig(**{"name": "door", "source": "pushed", "question": "What is there?", **more})


async def test_each_answer_says_which_frame_it_is_about_and_what_was_passed_over(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="a red circle")
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(), TOPICS, runtime, source, session)
    async with running(desk):
        captured_s = time.monotonic() - 0.5
        source.push(grey(10), captured_s=captured_s)
        await until(lambda: len(session.answers()) == 1)
        for number in range(3):
            source.push(grey(20 + number))
        await until(lambda: len(session.answers()) == 2)
    first, second = session.answers()
    assert (first.text, first.state, first.question, first.trigger) == (
        "a red circle",
        "a red circle",
        "What is there?",
        "interval",
    )
    assert first.finish_reason == "stop"
    assert (first.frame.source, first.frame.index, first.frame.dropped) == ("door", 0, 0)
    assert 500 <= first.frame.age_ms < 500 + 1000 * WAIT_S
    assert first.first_token_ms is not None
    assert 0 < first.first_token_ms <= first.total_ms
    assert second.frame.index == 3
    assert second.frame.dropped == 2
    assert second.t_ms > first.t_ms
    assert second.at.endswith("+00:00")
    assert desk.stats().answers == 2
    assert desk.stats().dropped == 2
    last = session.messages("answer/last")[-1]
    assert last.is_retained
    assert read_message(last.payload, CameraAnswer) == second
    assert not any(message.is_retained for message in session.messages("answer"))
    assert last in desk.states()


async def test_drops_are_those_between_two_answers_whatever_they_were_asked_for(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="a red circle")
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(every_s=1000.0), TOPICS, runtime, source, session)
    async with running(desk):
        source.push(grey(0))
        await until(lambda: len(session.answers()) == 1)
        for number, question in enumerate([b"PRESS", b"Is it red?", b"PRESS", b"PRESS"]):
            for _ in range(number + 1):
                source.push(grey(10))
            desk.handle(told("ask/set", question))
            await until(lambda number=number: len(session.answers()) == number + 2)  # type: ignore[misc]
        desk.handle(told("ask/set", "About the same frame?"))
        await until(lambda: len(session.answers()) == 6)
    answers = session.answers()
    assert [answer.trigger for answer in answers] == ["interval", *["ask"] * 5]
    assert [answer.frame.index for answer in answers] == [0, 1, 3, 6, 10, 10]
    assert [answer.frame.dropped for answer in answers] == [0, 0, 1, 2, 3, 0]
    assert desk.stats().dropped == 6


async def test_all_questions_of_a_turn_are_about_one_frame_which_is_encoded_once(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    session, source = Recorder(), PushedFrames("door")
    when = (WhenConfig("person", "Is there a person?", 1), WhenConfig("dog", "Is there a dog?", 1))
    desk = CameraDesk(config_of(when=when), TOPICS, runtime, source, session)
    async with running(desk):
        source.push(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8))
        await until(session.answers)
    keys = Counter(call.key for call in engine.calls if call.stage == "encode")
    assert keys
    assert set(keys.values()) == {1}
    assert session.answers()[0].when == {"person": True, "dog": True}
    assert [(event.name, event.value, event.frame) for event in session.events("when")] == [
        ("person", True, 0),
        ("dog", True, 0),
    ]
    assert all(keep == "terminal" for message, keep in session.posted if b'"type":"when"' in message.payload)


async def test_a_yes_no_state_changes_after_equal_answers_in_a_row(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(
        config_of(question="", when=(WhenConfig("person", "Person?", 2),)), TOPICS, runtime, source, session
    )
    script_of = {word: engine.tokenizer.encode_text(word) for word in ("yes", "no", "perhaps")}
    async with running(desk):
        for number, word in enumerate(["yes", "yes", "no", "perhaps", "yes", "no", "perhaps", "no"]):
            engine.script = tuple(script_of[word])
            source.push(grey(number))
            await until(lambda number=number: len(session.answers()) == number + 1)  # type: ignore[misc]
        await until(lambda: session.last_state().when == {"person": False})
    assert [answer.when["person"] for answer in session.answers()] == [None, *[True] * 6, False]
    assert [(event.value, event.frame) for event in session.events("when")] == [(True, 1), (False, 7)]
    answer = session.answers()[0]
    assert (answer.question, answer.text, answer.state, answer.finish_reason) == ("", "", "", None)


async def test_commands_are_followed_and_their_states_are_told(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(question=""), TOPICS, runtime, source, session)

    def shown() -> dict[str, bytes]:
        return {message.topic.removeprefix(BASE): message.payload for message in desk.states()}

    async with running(desk):
        source.push(grey(1))
        assert shown()["question/state"] == b""
        assert desk.handle(told("question/set", "Who?"))
        await until(session.answers)
        assert session.answers()[0].question == "Who?"
        assert desk.handle(told("every_s/set", "3600"))
        assert desk.handle(told("enabled/set", "OFF"))
        await until(lambda: session.last_state().status == "disabled")
        source.push(grey(2))
        assert shown()["enabled/state"] == b"OFF"
        assert shown()["every_s/state"] == b"3600"
        state = session.last_state()
        assert (state.question, state.every_ms, state.enabled) == ("Who?", 3_600_000, False)
        assert desk.handle(told("enabled/set", "ON"))
        assert desk.handle(told("every_s/set", "0"))
        await until(lambda: len(session.answers()) == 2)
        await until(lambda: session.last_state().status == "online")
        assert session.last_state().every_ms is None
    assert [event.type for event in session.events()] == ["online", "disabled", "online"]
    assert [message.payload for message in session.messages("enabled/state")] == [b"OFF", b"ON"]
    assert all(message.is_retained for message in session.messages("enabled/state"))
    assert not desk.handle(Inbound("edge_vl/pi/camera/doors/enabled/set", b"ON", 0.0))
    assert not desk.handle(Inbound("edge_vl/pi/request", b"ON", 0.0))


async def test_who_asks_gets_an_answer_although_nothing_is_due(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(every_s=3600.0, snapshot=True), TOPICS, runtime, source, session)
    async with running(desk):
        source.push(grey(1))
        await until(session.answers)
        desk.handle(told("ask/set", "PRESS"))
        desk.handle(told("ask/set", "Is it raining?"))
        await until(lambda: len(session.answers()) == 3)
        await until(lambda: session.messages("ask/state")[-1].payload == b"idle")
    assert [(answer.question, answer.trigger) for answer in session.answers()] == [
        ("What is there?", "interval"),
        ("What is there?", "ask"),
        ("Is it raining?", "ask"),
    ]
    assert b"waiting" in {message.payload for message in session.messages("ask/state")}


async def test_what_cannot_be_followed_becomes_an_event_and_changes_nothing(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(is_enabled=False), TOPICS, runtime, source, session)
    async with running(desk):
        source.push(grey(1))
        before = [(message.topic, message.payload) for message in desk.states()][1:]
        for what, payload in (
            ("ask/set", "PRESS"),
            ("enabled/set", "on"),
            ("question/set", b"\xff\xd8\xff"),
            ("every_s/set", "nan"),
            ("volume/set", "11"),
        ):
            assert desk.handle(told(what, payload))
        assert [(message.topic, message.payload) for message in desk.states()][1:] == before
        events = session.events("error")
        params = [event.error.param for event in events if event.error is not None]
        assert params == ["ask", "enabled", "question", "every_s", "command"]
        assert {event.error.type for event in events if event.error is not None} == {"invalid_request"}
        assert len(session.messages("every_s/state")) == 1  # so that whoever sent it sees what holds
        await asyncio.sleep(0.1)
    assert not session.answers()


async def test_retained_commands_are_ignored(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    session = Recorder()
    desk = CameraDesk(config_of(), TOPICS, runtime, PushedFrames("door"), session)
    for what, payload in (("enabled/set", "OFF"), ("question/set", "Old?"), ("every_s/set", "9"), ("ask/set", "PRESS")):
        assert desk.handle(told(what, payload, is_retained=True))
    shown = {message.topic.removeprefix(BASE): message.payload for message in desk.states()}
    assert not session.posted
    assert shown["enabled/state"] == b"ON"
    assert shown["question/state"] == b"What is there?"
    assert shown["every_s/state"] == b"0"
    assert shown["ask/state"] == b"idle"


async def test_to_ask_a_camera_without_a_frame_is_an_error_and_not_a_wait(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    session = Recorder()
    desk = CameraDesk(config_of(), TOPICS, runtime, PushedFrames("door"), session)
    async with running(desk):
        desk.handle(told("ask/set", "PRESS"))
        await until(lambda: session.events("error"))
        await until(lambda: session.messages("ask/state")[-1].payload == b"idle")
    error = session.events("error")[0].error
    assert error is not None
    assert "no frame" in error.message


async def test_a_failed_answer_is_told_and_the_next_frame_is_answered(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="encode", at=0, kind="raise", error=EngineFault("fake", "encode", "planned"))
    runtime, _ = open_fake(script="yes", faults=[fault])
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(), TOPICS, runtime, source, session)
    async with running(desk):
        source.push(grey(1))
        await until(lambda: session.events("error"))
        source.push(grey(2))
        await until(session.answers)
    error = session.events("error")[0].error
    assert error is not None
    assert error.type == "engine"
    assert session.answers()[0].frame.index == 1


async def test_a_late_answer_is_told_and_does_not_stop_the_yes_no_questions(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes", latencies=FakeLatencies(decode_s=0.0))
    hang = FakeFault(stage="decode", at=0, kind="hang")
    engine.begin_anew([hang])
    session, source = Recorder(), PushedFrames("door")
    config = config_of(deadline_s=0.3, when=(WhenConfig("person", "Person?", 1),))
    desk = CameraDesk(config, TOPICS, runtime, source, session)
    async with running(desk):
        source.push(grey(1))
        await until(lambda: session.events("error"))
        hang.release.set()
        await until(lambda: desk.stats().answers)
    error = session.events("error")[0].error
    assert error is not None
    assert error.type == "deadline_exceeded"
    assert session.answers()[0].when == {"person": True}
    assert session.answers()[0].text == ""


async def test_to_switch_it_off_or_close_it_ends_the_answer_that_is_made(open_fake: OpenFake) -> None:
    hang = FakeFault(stage="decode", at=0, kind="hang", times=2)
    runtime, _ = open_fake(script="yes", faults=[hang])
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(), TOPICS, runtime, source, session)
    async with running(desk):
        source.push(grey(1))
        await until(hang.reached.is_set)
        desk.handle(told("enabled/set", "OFF"))
        hang.release.set()
        await until(lambda: session.last_state().status == "disabled")
    assert not session.answers()
    assert not session.events("error")


async def test_with_motion_a_still_picture_is_answered_once_and_a_change_again(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(on_motion=True, max_silence_s=3600.0), TOPICS, runtime, source, session)
    still = np.full((120, 160, 3), 90, np.uint8)
    moved = still.copy()
    moved[20:80, 30:90] = (230, 20, 20)
    async with running(desk):
        for _ in range(5):
            source.push(still)
            await asyncio.sleep(0.22)
        await until(session.answers)
        assert len(session.answers()) == 1
        assert not session.events("motion")
        until_s = time.monotonic() + WAIT_S
        while len(session.answers()) < 2 and time.monotonic() < until_s:
            source.push(moved)
            await asyncio.sleep(0.05)
    assert [answer.trigger for answer in session.answers()][:2] == ["motion", "motion"]
    (motion,) = session.events("motion")
    assert motion.value is True
    assert motion.frame is not None
    assert motion.frame >= 5
    assert session.answers()[1].frame.index >= motion.frame


async def test_of_motion_that_goes_on_the_beginning_and_the_end_are_told(
    open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl.gateway.motion_look.QUIET_S", 0.6)
    runtime, _ = open_fake(script="yes")
    session, source = Recorder(), PushedFrames("door")
    desk = CameraDesk(config_of(question="", on_motion=True), TOPICS, runtime, source, session)
    still = np.full((120, 160, 3), 90, np.uint8)
    async with running(desk):
        source.push(still)
        await asyncio.sleep(0.3)
        for number in range(30):
            moved = still.copy()
            moved[20:80, 4 * number : 4 * number + 30] = (230, 20, 20)
            source.push(moved)
            await asyncio.sleep(0.05)
        assert [event.value for event in session.events("motion")] == [True]
        for _ in range(60):
            if len(session.events("motion")) == 2:
                break
            source.push(still)
            await asyncio.sleep(0.25)
    assert [event.value for event in session.events("motion")] == [True, False]


async def test_an_unknown_command_is_answered_with_an_error_that_names_it(
    open_fake: OpenFake, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, _ = open_fake(script="yes")
    session = Recorder()
    desk = CameraDesk(config_of(), TOPICS, runtime, PushedFrames("door"), session)
    for _ in range(20):
        assert desk.handle(told("every_s/set", "soon"))
    assert desk.handle(told("enabeld/set", "OFF"))
    assert desk.handle(told("foo/set", "1"))
    assert desk.handle(told("foo/set", "1", is_retained=True))
    errors = [event.error for event in session.events("error")]
    assert len(errors) == 5 + 2
    assert [(error.type, error.param, error.message) for error in errors[-2:] if error is not None] == [
        ("invalid_request", "command", "there is no command 'enabeld'; did you mean enabled?"),
        ("invalid_request", "command", "there is no command 'foo'; there is enabled, question, every_s, ask"),
    ]
    lines = [record.getMessage() for record in caplog.records]
    assert any("no command 'foo'" in line for line in lines)
    assert sum("every_s is a number" in line for line in lines) == 5


async def test_a_snapshot_is_the_frame_that_was_answered_and_waits_for_the_one_before(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    session, source = Recorder(), PushedFrames("door")
    session.is_slow = True
    desk = CameraDesk(config_of(snapshot=True, snapshot_max_px=16), TOPICS, runtime, source, session)
    async with running(desk):
        for number in range(3):
            source.push(grey(50 + 50 * number))
            await until(lambda number=number: len(session.answers()) == number + 1)  # type: ignore[misc]
        assert len(session.messages("snapshot")) == 1
        for future in session.waiting:
            future.set_result(0.1)
        session.is_slow = False
        source.push(grey(250))
        await until(lambda: len(session.messages("snapshot")) == 2)
    first, second = (Image.open(io.BytesIO(message.payload)) for message in session.messages("snapshot"))
    assert first.size == (16, 11)
    assert np.asarray(first).mean() == pytest.approx(50, abs=3)
    assert np.asarray(second).mean() == pytest.approx(250, abs=3)
    assert session.messages("snapshot")[0].content_type == "image/jpeg"
    keeps = {message.topic.removeprefix(BASE): keep for message, keep in session.posted}
    assert keeps["snapshot"] == "drop"
    assert keeps["answer"] == keeps["answer/last"] == keeps["state"] == "latest"


async def test_a_camera_that_goes_offline_and_comes_back_is_told_with_the_reason(open_fake: OpenFake) -> None:
    is_plugged = threading.Event()
    is_plugged.set()

    class Plugged(SyntheticCapture):
        def grab(self) -> bool:
            if not is_plugged.is_set():
                raise SourceError("unplugged")
            return super().grab()

    def open_capture() -> Plugged:
        if not is_plugged.is_set():
            raise SourceError("there is no such camera")
        return Plugged(96, 96, 30.0)

    runtime, _ = open_fake(script="yes")
    session = Recorder()
    settings = CameraSettings(backoff=Backoff(0.05, 0.1))
    with Camera(open_capture, name="door", settings=settings) as camera:
        desk = CameraDesk(config_of(every_s=0.1), TOPICS, runtime, camera, session)
        async with running(desk):
            await until(session.answers)
            await until(lambda: session.messages("state") and session.last_state().status == "online")
            is_plugged.clear()
            await until(lambda: session.messages("state") and session.last_state().status == "offline")
            assert session.last_state().reason
            is_plugged.set()
            await until(lambda: session.last_state().status == "online")
            assert session.last_state().connections == 2
            assert session.last_state().width == 96
            desk.handle(told("enabled/set", "OFF"))
            await until(lambda: camera.state.status == "disabled")
            await until(lambda: session.last_state().status == "disabled")
    types = [event.type for event in session.events()]
    assert [type for type in types if type != "error"] == ["online", "offline", "online", "disabled"]
    assert session.events("offline")[0].reason


async def test_a_full_runtime_is_waited_for_without_a_word(open_fake: OpenFake) -> None:
    hang = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", max_waiting=1, faults=[hang])
    session, source = Recorder(), PushedFrames("door")
    other = runtime.stream(grey(9), "Other?")
    desk = CameraDesk(config_of(), TOPICS, runtime, source, session)
    async with running(desk):
        await until(hang.reached.is_set)
        source.push(grey(1))
        desk.handle(told("ask/set", "Who?"))
        await asyncio.sleep(0.2)
        hang.release.set()
        assert await asyncio.to_thread(lambda: other.answer.text) == "yes"
        await until(lambda: session.answers())
        source.push(grey(2))
        await until(lambda: len(session.answers()) >= 2)
    assert not session.events("error")
    assert "Who?" in {answer.question for answer in session.answers()}


def desk_question(desk: CameraDesk) -> bytes:
    return next(message.payload for message in desk.states() if message.topic == BASE + "question/state")


def scene(*, has_circle: bool) -> NDArray[np.uint8]:
    image = Image.new("RGB", (320, 240), "white")
    box = (20, 20, 100, 100)
    (ImageDraw.Draw(image).ellipse if has_circle else ImageDraw.Draw(image).rectangle)(
        box, fill="red" if has_circle else "blue"
    )
    return np.asarray(image)


async def test_the_bundled_model_watches_a_camera_over_a_real_broker(mosquitto: Mosquitto) -> None:
    config = config_of(
        question="What is at the top left?",
        when=(WhenConfig("circle", "Is there a red circle?", 1),),
        snapshot=True,
        every_s=0.05,
    )
    source = PushedFrames("door")
    with Runtime.open() as runtime, Observer(mosquitto.port, [BASE + "#"]) as observer:
        desk: CameraDesk

        def received(inbound: Inbound) -> None:
            desk.handle(inbound)

        session = Session(
            BrokerSettings(port=mosquitto.port, backoff=Backoff(0.05, 0.2)),
            filters={f"{BASE}+/set": 1},
            on_message=received,
            on_connect=lambda: desk.states(),
            on_state=None,
            outbox_bytes=1_000_000,
        )
        desk = CameraDesk(config, TOPICS, runtime, source, session)
        link = asyncio.create_task(session.run())
        await session.wait_connected(WAIT_S)
        async with running(desk):

            def heard(what: str) -> list[Any]:
                return [json.loads(one.payload) for one in observer.heard(BASE + what)]

            source.push(scene(has_circle=True))
            await until(lambda: heard("answer"))
            source.push(scene(has_circle=False))
            await until(lambda: len(heard("answer")) == 2)
            observer.publish(BASE + "question/set", b"What is in the picture?")
            await until(lambda: desk_question(desk) == b"What is in the picture?")
            source.push(scene(has_circle=True))
            await until(lambda: len(heard("answer")) == 3)
            await until(lambda: heard("state")[-1]["when"] == {"circle": True})
            await asyncio.to_thread(mosquitto.restart)  # it has forgotten what was retained
            await session.wait_connected(WAIT_S)
        await until(lambda: len(observer.heard(BASE + "question/state")) >= 3)
        answers = heard("answer")
        await session.stop()
        await link
        assert [answer["text"] for answer in answers[:2]] == ["a red circle", "a blue square"]
        assert answers[2]["question"] == "What is in the picture?"
        assert [answer["when"]["circle"] for answer in answers] == [True, False, True]
        assert [event["value"] for event in heard("event") if event["type"] == "when"] == [True, False, True]
        jpeg = next(one.payload for one in observer.heard() if one.topic == BASE + "snapshot")
        assert Image.open(io.BytesIO(jpeg)).size == (320, 240)
        with Observer(mosquitto.port, [BASE + "#"]) as late:
            await until(lambda: len({one.topic for one in late.heard()}) >= 6)
            kept = {one.topic.removeprefix(BASE): one for one in late.heard()}
        assert json.loads(kept["answer/last"].payload) == answers[-1]
        assert kept["question/state"].payload == b"What is in the picture?"
        assert set(kept) == {"state", "answer/last", "enabled/state", "question/state", "every_s/state", "ask/state"}


@given(
    st.lists(st.tuples(st.sampled_from(["enabled", "question", "every_s", "ask", "x", "enabled/set/set"]), payloads))
)
def test_whatever_is_sent_the_states_stay_such_as_can_be_sent_back(messages: list[tuple[str, bytes]]) -> None:
    async def send() -> None:
        session = Recorder()
        desk = CameraDesk(config_of(), TOPICS, NO_RUNTIME, PushedFrames("door"), session)
        for what, payload in messages:
            assert desk.handle(told(f"{what}/set", payload))
        shown = {message.topic.removeprefix(BASE): message.payload for message in desk.states()}
        assert read_enabled(shown["enabled/state"]) in (True, False)
        assert read_question(shown["question/state"])
        read_every_s(shown["every_s/state"])
        assert len(session.events("error")) <= 5 * 6  # a few of each kind
        read_message(shown["state"], CameraStateMessage)

    asyncio.run(send())


async def test_a_yes_no_event_is_told_though_the_camera_is_switched_off_during_the_next_question(
    open_fake: OpenFake,
) -> None:
    hang = FakeFault(stage="decode", at=3, kind="hang", times=2)
    runtime, _ = open_fake(script="yes", faults=[hang])
    session, source = Recorder(), PushedFrames("door")
    when = (WhenConfig("person", "Person?", 1), WhenConfig("fire", "Fire?", 1))
    desk = CameraDesk(config_of(question="", when=when), TOPICS, runtime, source, session)
    async with running(desk):
        source.push(grey(1))
        await until(hang.reached.is_set)
        assert desk._when["person"].state is True  # it is in the second question
        desk.handle(told("enabled/set", "OFF"))
        hang.release.set()
        await until(lambda: session.last_state().status == "disabled")
    assert session.answers() == []
    assert [(event.name, event.value, event.frame) for event in session.events("when")] == [("person", True, 0)]
