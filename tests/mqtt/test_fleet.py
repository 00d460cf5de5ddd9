"""Tests of listening to all gateways, against mosquitto."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import aiomqtt
import pytest

from edge_vl.errors import BrokerError, RequestError
from edge_vl.mqtt import Fleet
from edge_vl.mqtt.node_messages import CameraAnswer, CameraEvent
from edge_vl.mqtt.packet import Inbound
from edge_vl.mqtt.session import Session
from tests.mosquitto import Mosquitto


def answer(text: str, state: str | None = None) -> str:
    frame = {"source": "door", "index": 1, "captured_at": "2026-01-01T00:00:00+00:00", "age_ms": 90}
    times = {"at": "2026-01-01T00:00:00+00:00", "t_ms": 5, "total_ms": 80, "trigger": "interval"}
    fields: dict[str, Any] = {"camera": "door", "question": "What?", "text": text, "state": state or text, "model": "m"}
    return json.dumps({"v": 1, **fields, **times, "frame": frame})


def event(name: str, value: bool) -> str:
    times = {"at": "2026-01-01T00:00:00+00:00", "t_ms": 5}
    return json.dumps({"v": 1, "camera": "door", "type": "when", **times, "name": name, "value": value})


async def test_answers_and_events_are_heard_and_what_is_damaged_or_old_is_not(mosquitto: Mosquitto) -> None:
    base = "edge_vl/gw/camera/door"
    async with aiomqtt.Client("127.0.0.1", mosquitto.port) as gateway:
        await gateway.publish(f"{base}/answer", answer("old"), qos=1, retain=True)
        async with Fleet(f"mqtt://127.0.0.1:{mosquitto.port}") as fleet:
            await fleet.settle(quiet_s=0.2)
            for payload in (b"", b"\xff\xd8", b"null", b"{}", b"[" * 2000, b'{"camera":"door"}'):
                for what in ("answer", "event", "state"):
                    await gateway.publish(f"{base}/{what}", payload, qos=1)
                await gateway.publish("edge_vl/gw/info", payload, qos=1)
                await gateway.publish("edge_vl/gw/status", payload, qos=1)
            await gateway.publish(f"{base}/answer", answer("a red star"), qos=1)
            await gateway.publish(f"{base}/event", event("person", True), qos=1)
            heard = [await asyncio.wait_for(anext(fleet.heard()), 5) for _ in range(2)]
            assert fleet.gateways["gw"].to_dict() == {"status": "unknown", "info": None, "cameras": {}}
    first, second = (one.message for one in heard)
    assert isinstance(first, CameraAnswer)
    assert isinstance(second, CameraEvent)
    assert (heard[0].node, first.text) == ("gw", "a red star")
    assert (second.name, second.value) == ("person", True)


async def test_what_the_broker_has_kept_is_there_when_it_settles(mosquitto: Mosquitto) -> None:
    async with aiomqtt.Client("127.0.0.1", mosquitto.port) as gateway:
        for node, status in (("one", "online"), ("two", "offline")):
            await gateway.publish(f"site/edge/{node}/status", status, qos=1, retain=True)
        async with Fleet(f"mqtt://127.0.0.1:{mosquitto.port}/site/edge") as fleet:
            await fleet.settle()
            assert {name: one.status for name, one in fleet.gateways.items()} == {"one": "online", "two": "offline"}


async def test_of_answers_that_nobody_takes_the_newest_are_kept(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl.mqtt.fleet._MAX_WAITING", 3)
    async with (
        aiomqtt.Client("127.0.0.1", mosquitto.port) as gateway,
        Fleet(f"mqtt://127.0.0.1:{mosquitto.port}") as fleet,
    ):
        for number in range(8):
            await gateway.publish("edge_vl/gw/camera/door/event", event(f"e{number}", True), qos=1)
        await fleet.settle(quiet_s=0.3)
        names = []
        for _ in range(3):
            message = (await asyncio.wait_for(anext(fleet.heard()), 5)).message
            assert isinstance(message, CameraEvent)
            names.append(message.name)
    assert names == ["e5", "e6", "e7"]


def test_a_prefix_is_checked() -> None:
    with pytest.raises(RequestError, match="prefix"):
        Fleet("127.0.0.1", prefix="a/b/c")


def hear(fleet: Fleet, topic: str, payload: bytes) -> None:
    fleet._hear(Inbound(topic, payload, received_s=1.0))


async def test_however_many_names_are_forged_what_is_known_is_bounded_and_the_last_heard_of_stay() -> None:
    fleet = Fleet("127.0.0.1")
    state = {"v": 1, "camera": "c", "status": "online", "since": "", "at": "", "t_ms": 1}
    tracemalloc.start()
    try:
        for number in range(20_000):
            hear(fleet, f"edge_vl/m{number}/status", b"online")
            hear(fleet, "edge_vl/gw/status", b"online")
        for number in range(3000):
            hear(fleet, f"edge_vl/n{number}/camera/c/state", json.dumps({**state, "question": "q" * 60_000}).encode())
            hear(fleet, f"edge_vl/one/camera/c{number}/state", json.dumps({**state, "question": "q" * 60_000}).encode())
            hear(fleet, f"edge_vl/n{number}/camera/c/event", b"{}")
            hear(fleet, f"edge_vl/one/camera/c{number}/event", b"{}")
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes < 24 << 20
    assert max(len(gateway.cameras) for gateway in fleet.gateways.values()) == 4  # 256 KiB of one
    assert "n2999" in fleet.gateways
    hear(fleet, "edge_vl/gw/status", b"online")
    for number in range(1023):
        hear(fleet, f"edge_vl/m{number}/status", b"offline")
    assert len(fleet.gateways) == 1024
    assert fleet.gateways["gw"].status == "online"


async def test_it_may_be_entered_again_and_begins_anew(mosquitto: Mosquitto) -> None:
    fleet = Fleet(f"mqtt://127.0.0.1:{mosquitto.port}")
    async with aiomqtt.Client("127.0.0.1", mosquitto.port) as gateway:
        for name in ("first", "second"):
            async with fleet:
                with pytest.raises(RequestError, match="connected already"):
                    await fleet.__aenter__()
                assert fleet.gateways == {}
                await gateway.publish(f"edge_vl/{name}/status", "online", qos=1)
                await gateway.publish("edge_vl/gw/camera/door/event", event(name, True), qos=1)
                message = (await asyncio.wait_for(anext(fleet.heard()), 5)).message
                assert isinstance(message, CameraEvent)
                assert message.name == name
            assert list(fleet.gateways) == [name, "gw"]


async def test_a_defect_in_what_listens_is_told_to_whoever_waits(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Defective(Session):
        async def run(self) -> None:
            running = asyncio.create_task(super().run())
            await self.wait_connected(5)
            await asyncio.sleep(0.2)
            running.cancel()
            raise ZeroDivisionError("a defect")

    monkeypatch.setattr("edge_vl.mqtt.running_session.Session", Defective)
    async with Fleet(f"mqtt://127.0.0.1:{mosquitto.port}") as fleet:
        with pytest.raises(BrokerError, match="ended with ZeroDivisionError: a defect"):
            await asyncio.wait_for(anext(fleet.heard()), 5)
    assert "ended with a defect" in caplog.text


async def test_what_nobody_takes_is_bounded_in_bytes() -> None:
    fleet = Fleet("127.0.0.1")
    for number in range(300):
        hear(fleet, "edge_vl/gw/camera/door/answer", answer(f"{number} " + "x" * 200_000, state="...").encode())
    taken = []
    while not fleet._heard.empty():
        message = (await anext(fleet.heard())).message
        assert isinstance(message, CameraAnswer)
        taken.append(int(message.text.split()[0]))
    assert taken == list(range(300 - len(taken), 300))
    assert 30 <= len(taken) <= 42
