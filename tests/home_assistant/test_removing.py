"""Tests of taking a gateway out of Home Assistant."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from edge_vl.errors import BrokerError
from edge_vl.gateway.config import GatewayConfig
from edge_vl.home_assistant.removing import remove_discovery
from edge_vl.mqtt.broker_settings import BrokerSettings
from tests.mosquitto import Mosquitto, free_port
from tests.mqtt_observer import Observer


def test_the_command_empties_what_the_gateway_file_announced(mosquitto: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f"""
[broker]
url = "mqtt://127.0.0.1:{mosquitto.port}"
client_id = "the-gateway"
[node]
name = "pi"
[[camera]]
name = "front-door"
source = "synthetic"
[home_assistant]
enabled = true
discovery_prefix = "ha"
"""
    )
    topics = ["ha/device/edge_vl-pi-camera-front--door/config", "ha/device/edge_vl-pi/config"]
    with Observer(mosquitto.port, ["ha/#"], client_id="the-gateway") as home:
        home.publish(topics[0], b"{}", is_retained=True)
        done = subprocess.run(
            [sys.executable, "-m", "edge_vl", "gateway", str(file), "--remove-discovery"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"removed {topic}" for topic in topics]
        home.wait_payload(topics[1], b"")
        assert [heard.topic for heard in home.heard() if heard.payload == b""] == topics
        assert home.num_connections == 1  # a gateway of the same client id was not thrown out
    with Observer(mosquitto.port, ["ha/#"]) as late:
        late.publish("ha/end", b"")
        late.wait_payload("ha/end", b"")
        assert len(late.heard()) == 1  # the retained message is gone, too


async def test_a_broker_that_is_not_there_is_an_error() -> None:
    config = GatewayConfig(BrokerSettings(port=free_port()), "pi")
    with pytest.raises(BrokerError) as caught:
        await asyncio.wait_for(remove_discovery(config, timeout_s=0.3), 10)
    assert caught.value.reason == "unreachable"
