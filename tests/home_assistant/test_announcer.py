"""Tests of when Home Assistant is told what is there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable

import pytest

from edge_vl.gateway.config import CameraConfig, GatewayConfig, HomeAssistantConfig
from edge_vl.home_assistant import announcer
from edge_vl.home_assistant.announcer import Announcer, removals
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.outbox import Keep
from edge_vl.mqtt.packet import Inbound, Outbound
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import NodeTopics
from tests.mosquitto import Mosquitto
from tests.mqtt_observer import Observer

WAIT_S = 20.0
TOPICS = NodeTopics("edge_vl", "pi")
CONFIG = GatewayConfig(
    BrokerSettings(),
    "pi",
    cameras=(CameraConfig("door", "0"), CameraConfig("yard", "1")),
    home_assistant=HomeAssistantConfig(True, "ha"),
)
STATE = Outbound("edge_vl/pi/status", b"online", is_retained=True)
DISCOVERY = [
    "ha/device/edge_vl-pi/config",
    "ha/device/edge_vl-pi-camera-door/config",
    "ha/device/edge_vl-pi-camera-yard/config",
]


class Recorder:
    def __init__(self) -> None:
        self.topics: asyncio.Queue[str] = asyncio.Queue()

    def post(self, message: Outbound, keep: Keep) -> asyncio.Future[float]:
        self.topics.put_nowait(message.topic)
        assert keep == "latest"
        return asyncio.get_running_loop().create_future()

    async def take(self, number: int) -> list[str]:
        async with asyncio.timeout(WAIT_S):
            return [await self.topics.get() for _ in range(number)]


def states() -> Iterable[Outbound]:
    return [STATE]


def birth(payload: bytes = b"online", topic: str = "ha/status", *, is_retained: bool = False) -> Inbound:
    return Inbound(topic, payload, time.monotonic(), is_retained=is_retained)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "BIRTH_DELAY_S", (0.05, 0.1))
    monkeypatch.setattr(announcer, "STATES_DELAY_S", 0.05)


@pytest.mark.usefixtures("quick")
async def test_a_birth_is_answered_after_a_pause_once_and_with_the_states_last() -> None:
    recorder = Recorder()
    told = Announcer(CONFIG, TOPICS, recorder, states, model="bundled")
    assert told.filters() == {"ha/status": 1}
    assert [message.topic for message in told.messages()] == DISCOVERY
    for payload in (b"online", b"online", b"offline", b"\xff", b""):
        assert told.handle(birth(payload))
    assert not told.handle(birth(topic="homeassistant/status"))
    assert recorder.topics.empty()
    assert await recorder.take(4) == [*DISCOVERY, STATE.topic]
    await asyncio.sleep(0.2)
    assert recorder.topics.empty()
    assert told.handle(birth(is_retained=True))
    assert await recorder.take(4) == [*DISCOVERY, STATE.topic]


@pytest.mark.usefixtures("quick")
async def test_nothing_is_told_after_the_end() -> None:
    recorder = Recorder()
    told = Announcer(CONFIG, TOPICS, recorder, states, model="bundled")
    told.handle(birth())
    told.close()
    told.close()
    await asyncio.sleep(0.3)
    assert recorder.topics.empty()


def test_the_pause_is_some_seconds_and_random() -> None:
    least_s, most_s = announcer.BIRTH_DELAY_S
    assert 1 <= least_s < most_s <= 30


@pytest.mark.usefixtures("quick")
async def test_home_assistant_hears_it_over_a_real_broker_and_forgets_it_when_told_so(mosquitto: Mosquitto) -> None:
    told: Announcer

    def received(inbound: Inbound) -> None:
        told.handle(inbound)

    session = Session(
        BrokerSettings(port=mosquitto.port),
        filters={"ha/status": 1},
        on_message=received,
        on_connect=lambda: [*told.messages(), *states()],
        on_state=None,
        outbox_bytes=1_000_000,
    )
    told = Announcer(CONFIG, TOPICS, session, states, model="bundled")
    with Observer(mosquitto.port, ["ha/device/#", STATE.topic]) as home:
        link = asyncio.create_task(session.run())
        await asyncio.to_thread(home.wait_for, lambda heard: heard.topic == STATE.topic)
        assert [heard.topic for heard in home.heard()] == [*DISCOVERY, STATE.topic]
        assert json.loads(home.heard(DISCOVERY[1])[0].payload)["device"]["via_device"] == "edge_vl-pi"
        home.forget_all()
        home.publish("ha/status", b"online")
        await asyncio.to_thread(home.wait_for, lambda heard: heard.topic == STATE.topic)
        assert [heard.topic for heard in home.heard()] == [*DISCOVERY, STATE.topic]
        for message in removals(CONFIG, TOPICS):
            await session.post(message, "terminal")
        last = await asyncio.to_thread(home.wait_for, lambda heard: heard.payload == b"")
        assert last.topic == DISCOVERY[1]  # the cameras first, the gateway that they hang behind last
        await asyncio.to_thread(home.wait_payload, DISCOVERY[0], b"")
        await session.stop()
        await link
    with Observer(mosquitto.port, ["ha/#"]) as late:
        late.publish("ha/end", b"x")
        await asyncio.to_thread(late.wait_for, lambda heard: heard.topic == "ha/end")
        assert [heard.topic for heard in late.heard()] == ["ha/end"]  # nothing of it is retained


@pytest.mark.usefixtures("quick")
async def test_a_birth_after_the_end_is_not_answered() -> None:
    recorder = Recorder()
    told = Announcer(CONFIG, TOPICS, recorder, states, model="bundled")
    told.close()
    assert told.handle(birth())
    await asyncio.sleep(0.3)
    assert recorder.topics.empty()
