"""`edge-vl watch --mqtt`: answers on the camera's topics of the contract."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from edge_vl.cli.watch_publisher import WatchPublisher, read_target
from edge_vl.drawn_scene import Scene, draw_scene
from edge_vl.errors import RequestError
from edge_vl.sources.camera_state import CameraState
from tests.cli.conftest import RunCli
from tests.mosquitto import Mosquitto, free_port
from tests.mqtt_documents import schema_faults, topic_schema
from tests.mqtt_observer import Heard, Observer, read_object

WAIT_S = 20.0
NODE = "edge_vl/porch"


def draw(folder: Path, shapes: list[str]) -> Path:
    folder.mkdir()
    for number, shape in enumerate(shapes):
        Image.fromarray(draw_scene(Scene(((shape, "red", "top left"),), 230))).save(folder / f"{number}.png")
    return folder


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.005)


def check_schemas(heard: list[Heard]) -> None:
    for message in heard:
        name = topic_schema(message.topic)
        if name is not None:
            assert list(schema_faults(name, read_object(message.payload))) == []


def test_answers_events_and_states_come_as_the_contract_says(cli: RunCli, tmp_path: Path, mosquitto: Mosquitto) -> None:
    folder = draw(tmp_path / "pictures", ["circle", "circle", "star", "star"])
    with Observer(mosquitto.port, ["edge_vl/#"]) as observer:
        done = cli(
            "watch", str(folder), "What is at the top left?", "--when", "Is there a red circle?", "--name", "door",
            "--mqtt", f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}",
        )  # fmt: skip
        assert done.code == 0, done.err
        wait_for(lambda: b"stopped" in [heard.payload for heard in observer.heard(f"{NODE}/status")])
        answers = [json.loads(heard.payload) for heard in observer.heard(f"{NODE}/camera/door/answer")]
        events = [json.loads(heard.payload) for heard in observer.heard(f"{NODE}/camera/door/event")]
        statuses = [heard.payload for heard in observer.heard(f"{NODE}/status")]
        check_schemas(observer.heard())
    assert [answer["text"] for answer in answers] == ["a red circle", "a red circle", "a red star", "a red star"]
    assert [answer["frame"]["index"] for answer in answers] == [0, 1, 2, 3]
    assert all(answer["frame"]["age_ms"] >= 0 and answer["frame"]["captured_at"] for answer in answers)
    assert [(event["type"], event["value"], event["frame"]) for event in events] == [
        ("when", True, 1),
        ("when", False, 3),
    ]
    assert statuses == [b"online", b"stopped"]
    with Observer(mosquitto.port, ["edge_vl/#"]) as late:
        wait_for(lambda: len(late.heard()) >= 3)
        kept = {heard.topic: heard.payload for heard in late.heard()}
    assert kept[f"{NODE}/status"] == b"stopped"
    assert json.loads(kept[f"{NODE}/camera/door/answer/last"])["text"] == "a red star"
    state = json.loads(kept[f"{NODE}/camera/door/state"])
    assert (state["status"], state["answers"], state["when"]) == ("closed", 4, {"Is there a red circle?": False})


def test_a_camera_that_comes_and_goes_is_told(mosquitto: Mosquitto) -> None:
    publisher = WatchPublisher(
        f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}", "yard", trigger="interval", note=print, on_failure=lambda: None
    )
    with Observer(mosquitto.port, [f"{NODE}/#"]) as observer:
        publisher.start()
        publisher.state(CameraState("offline", "unplugged", since_s=time.monotonic()))
        publisher.state(CameraState("online", since_s=time.monotonic(), num_frames=4, fps=15.0, width=64, height=48))
        wait_for(lambda: len(observer.heard(f"{NODE}/camera/yard/event")) == 2)
        publisher.close()
        events = [json.loads(heard.payload) for heard in observer.heard(f"{NODE}/camera/yard/event")]
        check_schemas(observer.heard())
    assert [(event["type"], event["reason"]) for event in events] == [("offline", "unplugged"), ("online", "")]


def test_a_broker_that_is_away_holds_up_nothing(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle"])
    began_s = time.monotonic()
    done = cli("watch", str(folder), "What is at the top left?", "--mqtt", f"mqtt://127.0.0.1:{free_port()}/{NODE}")
    assert done.code == 0
    assert "a red circle" in done.out
    assert "broker: unreachable" in done.err
    assert time.monotonic() - began_s < 10


def test_a_broker_that_refuses_ends_the_watch_with_the_reason(cli: RunCli, tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    broker = Mosquitto(folder, options=["allow_anonymous false"])
    broker.start()
    try:
        done = cli(
            "watch", "synthetic:96x96", "What is at the top left?", "--mqtt", f"mqtt://127.0.0.1:{broker.port}/{NODE}"
        )
    finally:
        broker.stop()
    assert done.code == 4
    assert "refuse" in done.err
    assert threading.active_count() < 50


@pytest.mark.parametrize(
    "url", ["mqtt://host", "mqtt://host/porch", "host/edge_vl/porch", "mqtt://host/a/b/c/d", "mqtt://host/a/b c"]
)
def test_an_address_without_prefix_and_node_is_refused(url: str) -> None:
    with pytest.raises(RequestError):
        read_target(url)


def test_the_node_is_the_last_name_and_a_prefix_may_have_two() -> None:
    settings, topics = read_target("mqtts://me@host:8884/home/edge_vl/porch/")
    assert (settings.host, settings.port, settings.is_tls, settings.username) == ("host", 8884, True, "me")
    assert (topics.prefix, topics.node) == ("home/edge_vl", "porch")
