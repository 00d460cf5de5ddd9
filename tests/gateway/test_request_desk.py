from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from PIL import Image

from edge_vl.errors import Cancelled, QueueFull
from edge_vl.gateway.config import Limits
from edge_vl.testing import FakeFault, FakeLatencies
from tests.conftest import OpenFake
from tests.gateway.gateway_runs import config_for, request, running, terminal_of, until
from tests.mosquitto import Mosquitto
from tests.mqtt_observer import Observer, read_object, stream_faults

ALL = ["edge_vl/#"]
REQUEST = "edge_vl/gw/request"
CANCEL = "edge_vl/gw/cancel"


def kinds(observer: Observer, topic: str) -> list[Any]:
    return [read_object(heard.payload)["type"] for heard in observer.heard(topic)]


async def test_a_request_that_still_runs_is_not_answered_again_however_many_came_since(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
    limits = Limits(num_recent_ids=16)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=limits), runtime):
            observer.publish(REQUEST, request("runs"))
            await asyncio.to_thread(fault.reached.wait, 10)
            for number in range(40):
                observer.publish(REQUEST, request(f"x{number}"))
                observer.publish(CANCEL, {"id": f"x{number}"})
            await terminal_of(observer, "x39")
            observer.publish(REQUEST, request("runs"))
            observer.publish(REQUEST, request("last"))
            fault.release.set()
            await terminal_of(observer, "last")
        assert stream_faults("runs", observer.stream("runs")) == []


async def test_requests_that_are_refused_do_not_make_the_gateway_forget_those_that_it_has_answered(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    runtime, _ = open_fake(script="ok", max_waiting=8)
    limits = Limits(num_recent_ids=16, max_request_bytes=2048)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=limits), runtime):
            observer.publish(REQUEST, request("x"))
            await terminal_of(observer, "x")
            for number in range(40):
                observer.publish(REQUEST, request(f"bad{number}", question=""))
                observer.publish(REQUEST, request(f"away{number}", reply_to="elsewhere/x"))
            observer.publish(REQUEST, request("x"))
            observer.publish(REQUEST, request("last"))
            await terminal_of(observer, "last")
        assert stream_faults("x", observer.stream("x")) == []
        assert len(observer.stream("bad0")) == 1


async def test_a_request_that_was_taken_waits_for_room_in_the_runtime_and_is_never_overloaded(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    runtime, _ = open_fake(script="ok", max_waiting=1, latencies=FakeLatencies(decode_s=0.02))
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=Limits(max_active=3)), runtime):
            for number in range(6):
                observer.publish(REQUEST, request(f"x{number}"))
            for number in range(6):
                assert (await terminal_of(observer, f"x{number}"))["type"] == "end"


async def test_a_request_that_finds_no_room_in_the_runtime_until_its_deadline_is_late(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=1)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            observer.publish(REQUEST, request("runs"))
            await asyncio.to_thread(fault.reached.wait, 10)
            observer.publish(REQUEST, request("late", deadline_ms=300))
            error = (await terminal_of(observer, "late"))["error"]
            assert (error["type"], error["param"]) == ("deadline_exceeded", "deadline_ms")
            observer.publish(REQUEST, request("cancelled"))
            await until(lambda: bool(observer.stream("cancelled")))
            observer.publish(CANCEL, {"id": "cancelled"})
            assert (await terminal_of(observer, "cancelled"))["reason"] == "cancelled"
            fault.release.set()


async def test_the_room_of_a_cancelled_request_is_free_when_the_runtime_has_let_go_of_it(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=Limits(max_active=1)), runtime) as gateway:
            observer.publish(REQUEST, request("runs"))
            await asyncio.to_thread(fault.reached.wait, 10)
            observer.publish(REQUEST, request("next"))
            observer.publish(CANCEL, {"id": "runs"})
            await terminal_of(observer, "runs")
            desk = gateway._requests
            await until(lambda: desk.num_waiting == 1)
            await asyncio.sleep(0.05)
            assert (desk.num_active, desk.num_waiting) == (1, 1), "the engine is still at work on the first one"
            fault.release.set()
            assert (await terminal_of(observer, "next"))["type"] == "end"
            await until(lambda: desk.num_active == 0)


async def test_a_raw_picture_is_kept_as_long_as_its_request_waits_for_its_turn(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
    limits = Limits(max_active=1, image_wait_s=1.0)
    encoded = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(encoded, "JPEG")
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=limits), runtime) as gateway:
            observer.publish(REQUEST, request("runs"))
            await asyncio.to_thread(fault.reached.wait, 10)
            for name in ("waits", "cancelled"):
                topic = f"edge_vl/gw/image/judge/{name}"
                observer.publish(topic, encoded.getvalue())
                observer.publish(REQUEST, request(name, images=[{"topic": topic}]))
                await until(lambda name=name: bool(observer.stream(name)))  # type: ignore[misc]
            await asyncio.sleep(1.1)
            observer.publish(CANCEL, {"id": "cancelled"})
            await terminal_of(observer, "cancelled")
            fault.release.set()
            assert (await terminal_of(observer, "waits"))["type"] == "end"
            shelf = gateway._requests._shelf
            assert shelf.take("edge_vl/gw/image/judge/cancelled") is None, "nobody wants it any more"
            assert (len(shelf), shelf._wants) == (0, {})


async def test_a_cancel_that_names_its_client_ends_no_request_of_another(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            for client in ("alice", "bob", "carol"):
                observer.publish(REQUEST, request("q") | {"client": client})
            await asyncio.to_thread(fault.reached.wait, 10)
            observer.publish(CANCEL, {"id": "q", "client": "alice"})
            await until(lambda: kinds(observer, "edge_vl/gw/response/alice/q")[-1:] == ["aborted"])
            observer.publish(CANCEL, {"id": "early", "client": "alice"})
            for client in ("alice", "bob"):
                observer.publish(REQUEST, request("early") | {"client": client})
            fault.release.set()
            await until(lambda: kinds(observer, "edge_vl/gw/response/bob/early")[-1:] == ["end"])
            for client in ("bob", "carol"):
                await until(lambda client=client: kinds(observer, f"edge_vl/gw/response/{client}/q")[-1:] == ["end"])  # type: ignore[misc]
            assert kinds(observer, "edge_vl/gw/response/alice/early") == ["start", "aborted"]


async def test_a_cancel_of_a_request_that_has_just_ended_is_not_kept_for_another_with_its_id(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    runtime, _ = open_fake(script="ok", max_waiting=8)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            observer.publish(REQUEST, request("q") | {"client": "alice"})
            await until(lambda: kinds(observer, "edge_vl/gw/response/alice/q")[-1:] == ["end"])
            observer.publish(CANCEL, {"id": "q"})
            observer.publish(REQUEST, request("q") | {"client": "bob"})
            await until(lambda: len(kinds(observer, "edge_vl/gw/response/bob/q")) > 1)
            await until(lambda: kinds(observer, "edge_vl/gw/response/bob/q")[-1:] == ["end"])


async def test_an_answer_does_not_go_into_the_stream_of_another_with_the_same_id(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
    topic = "edge_vl/robot/x"
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            observer.publish(REQUEST, request("q", reply_to=topic) | {"client": "alice"})
            await asyncio.to_thread(fault.reached.wait, 10)
            for _ in range(2):
                observer.publish(REQUEST, request("q", reply_to=topic) | {"client": "bob"})
            await until(lambda: bool(observer.heard("edge_vl/gw/response/bob/q")))
            fault.release.set()
            await until(lambda: kinds(observer, topic)[-1:] == ["end"])
            observer.publish(REQUEST, request("last"))
            await terminal_of(observer, "last")
        refusals = [read_object(heard.payload) for heard in observer.heard("edge_vl/gw/response/bob/q")]
        assert [(one["error"]["type"], one["error"]["param"]) for one in refusals] == [("invalid_request", "reply_to")]
        assert stream_faults("q", observer.heard(topic)) == []


async def test_long_correlation_data_is_refused(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ALL, protocol="5") as observer:
        async with running(config_for(mosquitto.port), runtime):
            observer.publish(REQUEST, request("q"), correlation=b"k" * 513)
            error = await terminal_of(observer, "q")
            observer.publish(REQUEST, request("r"), correlation=b"k" * 512)
            assert (await terminal_of(observer, "r"))["type"] == "end"
    assert (error["error"]["type"], error["error"]["param"]) == ("invalid_request", "correlation")
    assert observer.stream("q")[0].correlation == b"q"
    assert observer.stream("r")[0].correlation == b"k" * 512


async def test_a_stream_is_released_when_the_engine_has_let_go_of_it(open_fake: OpenFake) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=1)
    stream = runtime.astream([], "?")
    assert stream.is_released, "it has not begun"
    answering = asyncio.create_task(stream.answer())
    await asyncio.to_thread(fault.reached.wait, 10)
    stream.cancel()
    with pytest.raises(Cancelled):
        await answering
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.released(), 0.05)
    refused = runtime.astream([], "?")
    with pytest.raises(QueueFull):
        await refused.answer()
    assert refused.is_released
    fault.release.set()
    async with asyncio.timeout(10):
        await stream.released()
    assert (await runtime.astream([], "?").answer()).text == "ok"
