"""Tests of what a gateway says when it is ready."""

from __future__ import annotations

import shlex

from edge_vl.gateway.config import CameraConfig, GatewayConfig
from edge_vl.gateway.ready_line import ready_line
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.broker_url import read_broker_url


def command_of(line: str) -> list[str]:
    return shlex.split(line.partition("; try: ")[2])


def test_it_names_everything_and_a_command_that_can_be_copied() -> None:
    config = GatewayConfig(
        BrokerSettings(host="fd00::1", port=8884, is_tls=True, username="pi5", password="x"),
        "pi5",
        prefix="home/vision",
        cameras=(CameraConfig("door", "synthetic"), CameraConfig("hall", "synthetic")),
    )
    line = ready_line(config, "bundled")
    assert line.startswith("node pi5, topics home/vision/pi5/..., model bundled, cameras door, hall; try: ")
    assert "\n" not in line
    program, part, what, url, node, question, *about = command_of(line)
    assert (program, part, what, node, question) == ("edge-vl", "mqtt", "ask", "pi5", "What is there?")
    settings, prefix = read_broker_url(url)
    assert (settings.host, settings.port, settings.is_tls, prefix) == ("fd00::1", 8884, True, "home/vision")
    assert about == ["--camera", "door"]


def test_without_a_camera_a_picture_is_asked_about() -> None:
    line = ready_line(GatewayConfig(BrokerSettings(), "pi5"), "bundled")
    assert "no camera" in line
    assert command_of(line)[3:] == ["mqtt://127.0.0.1:1883", "pi5", "What is there?", "--image", "picture.jpg"]
