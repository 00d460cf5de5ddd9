"""Tests of whether a gateway is heard, and alone under its name: against a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from edge_vl import Runtime
from edge_vl.errors import BrokerError
from edge_vl.gateway import presence_watch
from edge_vl.gateway.config import GatewayConfig
from edge_vl.gateway.gateway import Gateway
from edge_vl.mqtt.broker_settings import BrokerSettings
from tests.conftest import OpenFake
from tests.gateway.gateway_runs import config_for, request, running, terminal_of, until
from tests.mosquitto import Mosquitto, has_mosquitto, running_mosquitto
from tests.mqtt_observer import PROTOCOLS, Observer, read_object

ALL = ["edge_vl/#"]
STATUS, INFO = "edge_vl/gw/status", "edge_vl/gw/info"

both = pytest.mark.parametrize("protocol", PROTOCOLS)


def runs(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


async def failure_of(gateway: Gateway, timeout_s: float = 10.0) -> BrokerError:
    """Run a gateway that is expected to end by itself; return why it did."""
    with pytest.raises(BrokerError) as raised:
        await asyncio.wait_for(gateway.run(), timeout_s)
    return raised.value


@both
@pytest.mark.parametrize("group", [None, "pool"])
async def test_a_second_gateway_of_a_name_ends_and_the_first_one_goes_on(
    mosquitto: Mosquitto,
    open_fake: OpenFake,
    protocol: Literal["3.1.1", "5"],
    group: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime, _ = open_fake(script="ok", max_waiting=8)
    config = config_for(mosquitto.port, protocol=protocol, group=group)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config, runtime):
            await asyncio.sleep(0.05)  # it started in an earlier millisecond
            first = read_object(observer.heard(INFO)[-1].payload)
            error = await failure_of(Gateway(config, runtime))
            assert error.reason == "taken_over"
            assert "another gateway with the name 'gw' is online" in str(error)
            assert first["started_at"] in str(error)
            await until(lambda: read_object(observer.heard(INFO)[-1].payload)["boot_id"] == first["boot_id"])
            assert {heard.payload for heard in observer.heard(STATUS)} == {b"online"}, "it did not say that it stopped"
            observer.publish("edge_vl/gw/request", request("x1"))
            assert (await terminal_of(observer, "x1"))["text"] == "ok"
            await asyncio.sleep(0.2)
            ends = [heard for heard in observer.stream("x1") if b'"type":"end"' in heard.payload]
            assert len(ends) == 1
    assert len(runs(caplog, "another gateway with the name 'gw' has started")) == 1


async def test_a_run_that_crashed_does_not_keep_the_next_one_from_starting(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    runtime, _ = open_fake(script="ok", max_waiting=8)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            await until(lambda: bool(observer.heard(INFO)))
            left = observer.heard(INFO)[-1].payload
        observer.publish(INFO, left, is_retained=True)
        observer.publish(STATUS, b"online", is_retained=True)
        async with running(config_for(mosquitto.port), runtime):
            observer.publish("edge_vl/gw/request", request("x1"))
            assert (await terminal_of(observer, "x1"))["text"] == "ok"


async def test_the_later_one_goes_also_when_the_earlier_one_comes_to_the_broker_last(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    """As when it was started while the earlier one had no connection."""
    runtime, _ = open_fake(script="ok", max_waiting=8)
    first = Gateway(config_for(mosquitto.port), runtime)
    await asyncio.sleep(0.05)  # the other one starts in a later millisecond
    second = Gateway(config_for(mosquitto.port), runtime)
    ending = asyncio.create_task(failure_of(second))
    with Observer(mosquitto.port, ALL) as observer:
        await asyncio.to_thread(observer.wait_for, lambda heard: heard.payload == b"online", "online", 10)
        serving = asyncio.create_task(first.run())
        assert "is online on this broker" in str(await asyncio.wait_for(ending, 10))
        assert not serving.done()
        await first.stop()
        await serving


@asynccontextmanager
async def shut_in(tmp_path: Path, runtime: Runtime, protocol: Literal["3.1.1", "5"], rules: str) -> AsyncIterator[None]:
    """Run a gateway as user `kitchen` on a broker with rules."""
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    file = tmp_path / "acl"
    file.write_text(rules)
    file.chmod(0o600)
    with running_mosquitto(tmp_path, options=[f"acl_file {file}"]) as broker:
        settings = BrokerSettings(port=broker.port, protocol=protocol, username="kitchen", password="x")
        async with running(GatewayConfig(settings, "gw"), runtime):
            yield


RULES = "the access rules do not let user kitchen write to edge_vl/gw/...; with a rule like edge_vl/%u/# the user must"


@both
async def test_a_gateway_that_may_not_write_says_so(
    tmp_path: Path,
    open_fake: OpenFake,
    protocol: Literal["3.1.1", "5"],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence_watch, "ECHO_S", 1.0)
    runtime, _ = open_fake(script="ok")
    async with shut_in(tmp_path, runtime, protocol, "topic read edge_vl/#\npattern readwrite edge_vl/%u/#\n"):
        await until(lambda: bool(runs(caplog, RULES)), 5)
        await asyncio.sleep(1.5)
    lines = [record for record in caplog.records if RULES in record.getMessage()]
    assert {record.levelno for record in lines} == {logging.WARNING}
    is_told = "reason 135 of the broker" in lines[0].getMessage()
    assert is_told == (protocol == "5")
    assert len(lines) == 1


@both
async def test_a_gateway_that_may_write_hears_itself_and_says_nothing(
    tmp_path: Path,
    open_fake: OpenFake,
    protocol: Literal["3.1.1", "5"],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence_watch, "ECHO_S", 0.5)
    runtime, _ = open_fake(script="ok")
    async with shut_in(tmp_path, runtime, protocol, "user kitchen\ntopic readwrite edge_vl/gw/#\n"):
        await asyncio.sleep(1.0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_it_says_once_that_it_is_ready_and_how_to_try_it(
    mosquitto: Mosquitto, open_fake: OpenFake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="edge_vl")
    runtime, _ = open_fake(script="ok")
    async with running(config_for(mosquitto.port), runtime) as gateway:
        mosquitto.restart()
        await until(lambda: gateway._session.num_connections == 2)
        await until(lambda: gateway._session.is_connected)
    (ready,) = runs(caplog, "ready: ")
    assert f"edge-vl mqtt ask mqtt://127.0.0.1:{mosquitto.port} gw" in ready
    (lost,) = runs(caplog, "connection to the broker was lost") or runs(caplog, "the broker closed the connection")
    assert lost.count("lost") <= 1
