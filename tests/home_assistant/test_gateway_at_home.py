"""Tests of a whole gateway as Home Assistant sees it: real broker, real model, its messages read by its own code."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from edge_vl import Runtime
from edge_vl.gateway.config import CameraConfig, HomeAssistantConfig, WhenConfig
from edge_vl.sources.pushed import PushedFrames
from tests.gateway.gateway_runs import config_for, running, until
from tests.home_assistant.judging import NEEDS_HOME_ASSISTANT, judged
from tests.mosquitto import Mosquitto
from tests.mqtt_observer import Observer

pytestmark = NEEDS_HOME_ASSISTANT

CAMERA = "edge_vl-gw-camera-door"
CONFIG = "homeassistant/device/{}/config"


def scene(shape: str, colour: str) -> NDArray[np.uint8]:
    image = Image.new("RGB", (320, 240), "white")
    draw = ImageDraw.Draw(image)
    (draw.ellipse if shape == "circle" else draw.rectangle)((20, 20, 100, 100), fill=colour)
    return np.asarray(image)


def by_topic(home: Observer) -> dict[str, str]:
    """Return the newest message of each topic."""
    return {heard.topic: heard.payload.decode(errors="replace") for heard in home.heard()}


def told(home: Observer) -> list[dict[str, Any]]:
    """Return the discovery payloads heard last."""
    newest = by_topic(home)
    return [json.loads(newest[CONFIG.format(id)]) for id in ("edge_vl-gw", CAMERA)]


async def test_a_gateway_appears_shows_what_it_sees_and_does_what_it_is_told(mosquitto: Mosquitto) -> None:
    config = config_for(
        mosquitto.port,
        cameras=(
            CameraConfig(
                "door",
                "pushed",
                question="What is at the top left?",
                when=(WhenConfig("circle", "Is there a red circle?", 1),),
                snapshot=True,
                every_s=3600.0,
            ),
        ),
        home_assistant=HomeAssistantConfig(True),
        stats_every_s=0.2,
    )
    frames = PushedFrames("door")
    with Runtime.open(max_waiting=16) as runtime, Observer(mosquitto.port, ["#"]) as home:
        async with running(config, runtime, {"door": frames}):
            frames.push(scene("circle", "red"))
            await until(lambda: bool(home.heard("edge_vl/gw/camera/door/snapshot")))
            await until(lambda: '"circle":true' in by_topic(home).get("edge_vl/gw/camera/door/state", ""))
            await until(lambda: '"status":"online"' in by_topic(home)["edge_vl/gw/camera/door/state"])
            await until(lambda: bool(home.heard("edge_vl/gw/stats")))
            verdict = judged(told(home), by_topic(home))
            assert verdict["faults"] == []
            seen = verdict["shown"]
            assert seen[f"{CAMERA}-last_answer"] == {"state": "a red circle", "available": True}
            assert seen[f"{CAMERA}-when_circle"] == {"state": "ON", "available": True}
            assert seen[f"{CAMERA}-enabled"]["state"] == "ON"
            assert seen[f"{CAMERA}-question"]["state"] == "What is at the top left?"
            assert seen[f"{CAMERA}-every_s"]["state"] == "3600"
            assert float(seen[f"{CAMERA}-first_token"]["state"]) > 0
            assert seen["edge_vl-gw-status"]["state"] == "online"
            assert seen["edge_vl-gw-waiting"]["state"] == "0"
            components = told(home)[1]["components"]
            picture = home.heard(components["snapshot"]["image_topic"])[-1].payload
            assert Image.open(io.BytesIO(picture)).format == "JPEG"

            frames.push(scene("square", "blue"))
            button = components["ask"]
            await asyncio.to_thread(home.publish, button["command_topic"], button["payload_press"])
            await until(lambda: "a blue square" in by_topic(home)["edge_vl/gw/camera/door/answer"])
            switch = components["enabled"]
            await asyncio.to_thread(home.publish, switch["command_topic"], switch["payload_off"])
            await until(lambda: '"status":"disabled"' in by_topic(home)["edge_vl/gw/camera/door/state"])
            seen = judged(told(home), by_topic(home))["shown"]
            assert seen[f"{CAMERA}-enabled"] == {"state": "OFF", "available": True}
            assert seen[f"{CAMERA}-when_circle"] == {"state": "OFF", "available": False}
            assert seen[f"{CAMERA}-connected"]["state"] == "OFF"
        await until(lambda: by_topic(home)["edge_vl/gw/status"] == "stopped")
        seen = judged(told(home), by_topic(home))["shown"]
        assert {name for name, one in seen.items() if one["available"]} == {"edge_vl-gw-status"}
