"""Answers that the broker does not take: they cost their own client the answer, and nobody else anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from edge_vl.gateway.config import Limits
from edge_vl.runtime import Runtime
from edge_vl.testing import FakeLatencies
from tests.gateway.gateway_runs import config_for, request, running, stream_of, terminal_of, until
from tests.mosquitto import has_mosquitto, running_mosquitto
from tests.mqtt_observer import PROTOCOLS, Observer, stream_faults

OpenFake = Callable[..., tuple[Runtime, Any]]

pytestmark = pytest.mark.skipif(not has_mosquitto(), reason="mosquitto is not installed")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_answer_larger_than_the_broker_takes_ends_with_a_small_error_and_the_gateway_lives_on(
    tmp_path: Path, open_fake: OpenFake, protocol: Literal["3.1.1", "5"]
) -> None:
    runtime, _ = open_fake(script="a red square " * 100, context_length=4096)
    with (
        running_mosquitto(tmp_path, options=["max_packet_size 1500"]) as broker,
        Observer(broker.port, ["edge_vl/gw/#"], protocol=protocol) as observer,
    ):
        async with running(config_for(broker.port, protocol=protocol), runtime) as gateway:
            observer.publish("edge_vl/gw/request", request("long", max_tokens=1024))
            observer.publish("edge_vl/gw/request", request("short", max_tokens=5))
            messages = await stream_of(observer, "long", 30)
            numbers = list(dict.fromkeys(message["seq"] for message in messages))  # a loss may repeat some
            assert numbers == list(range(len(numbers)))
            assert (messages[-1]["type"], messages[-1]["error"]["type"]) == ("error", "engine")
            assert "larger than the broker takes" in messages[-1]["error"]["message"]
            assert (await terminal_of(observer, "short"))["type"] == "end"
            num_connections = gateway._session.num_connections
            observer.publish("edge_vl/gw/request", request("long too", max_tokens=1024) | {"id": "long-2"})
            assert (await terminal_of(observer, "long-2"))["type"] == "error"
            assert gateway._session.num_connections == num_connections, "what is known to be too large is not tried"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_reply_topic_on_which_the_broker_hangs_up_costs_no_other_answer_and_no_later_start(
    tmp_path: Path, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch, protocol: Literal["3.1.1", "5"]
) -> None:
    """Such as a broker of a cloud does for topics that this user may not write to; here it is one of many levels."""
    monkeypatch.setattr("edge_vl.mqtt.reply_rule.MAX_LEVELS", 1000)
    bad = "edge_vl/x" + "/a" * 250
    runtime, _ = open_fake(script="a red square")
    with (
        running_mosquitto(tmp_path) as broker,
        Observer(broker.port, ["edge_vl/gw/#"], protocol=protocol) as observer,
    ):
        config = config_for(broker.port, protocol=protocol, state_dir=tmp_path / "state")
        async with running(config, runtime):
            for number in range(3):
                observer.publish("edge_vl/gw/request", request(f"good-{number}", client=f"c{number}"))
            observer.publish("edge_vl/gw/request", request("bad", reply_to=bad))
            for number in range(3, 6):
                observer.publish("edge_vl/gw/request", request(f"good-{number}", client=f"c{number}"))
            ends = [await terminal_of(observer, f"good-{number}", 30) for number in range(6)]
            assert [end["type"] for end in ends] == ["end"] * 6
            journal = tmp_path / "state" / "in_flight.jsonl"
            await until(lambda: b'"end":"bad"' in journal.read_bytes())
        observer.forget_all()
        async with running(config, runtime):
            observer.publish("edge_vl/gw/request", request("after"))
            assert (await terminal_of(observer, "after"))["type"] == "end"
            await asyncio.sleep(0.3)
            statuses = [heard.payload for heard in observer.heard("edge_vl/gw/status")]
            assert b"offline" not in statuses


async def test_a_flood_of_bad_requests_costs_no_honest_client_a_message(tmp_path: Path, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="a red square", latencies=FakeLatencies(decode_s=0.05))
    unlimited = ["max_queued_messages 0", "max_inflight_messages 0"]
    bad = {"client": "z", "question": "", "reply_to": "edge_vl/z/" + "y" * 1000}
    with (
        running_mosquitto(tmp_path, options=unlimited) as broker,
        Observer(broker.port, ["edge_vl/gw/response/#"]) as observer,
        Observer(broker.port) as flooder,
    ):
        config = config_for(broker.port, limits=Limits(outbox_mib=1))
        async with running(config, runtime) as gateway:
            for number in range(8):
                observer.publish("edge_vl/gw/request", request(f"good-{number}", client=f"c{number}"))
            for number in range(3000):
                flooder.publish("edge_vl/gw/request", {"id": f"bad-{number}", **bad}, qos=0, timeout_s=None)
            for number in range(8):
                messages = await stream_of(observer, f"good-{number}", 30)
                assert stream_faults(f"good-{number}", observer.stream(f"good-{number}")) == []
                assert messages[-1]["type"] == "end"
            dropped = gateway._session.num_dropped
            assert dropped.get("refusal", 0) > 100, "the flood was too small to fill the outbox"
            assert dropped.get("terminal", 0) == dropped.get("delta", 0) == 0
