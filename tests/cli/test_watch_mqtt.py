"""`edge-vl watch --mqtt`: answers on the camera's topics of the contract."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_vl.cli.watch_publisher import WatchPublisher, read_target
from edge_vl.drawn_scene import Scene, draw_scene
from edge_vl.errors import RequestError
from edge_vl.frame import Frame
from edge_vl.sources.camera_state import CameraState, CameraStatus
from edge_vl.sources.pushed import PushedFrames
from tests.cli.conftest import RunCli
from tests.mosquitto import Mosquitto, free_port, has_mosquitto, running_mosquitto
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
        if name is not None and message.payload:
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
        states = [json.loads(heard.payload) for heard in observer.heard(f"{NODE}/camera/door/state") if heard.payload]
        check_schemas(observer.heard())
    assert [answer["text"] for answer in answers] == ["a red circle", "a red circle", "a red star", "a red star"]
    assert [answer["frame"]["index"] for answer in answers] == [0, 1, 2, 3]
    assert all(answer["frame"]["age_ms"] >= 0 and answer["frame"]["captured_at"] for answer in answers)
    assert [(event["type"], event["value"], event["frame"]) for event in events] == [
        ("online", None, None),
        ("when", True, 1),
        ("when", False, 3),
    ]
    assert statuses == [b"online", b"stopped"]
    assert [(state["answers"], state["when"]) for state in states][-1] == (4, {"Is there a red circle?": False})


def test_at_its_end_only_the_last_answer_and_that_it_ended_are_kept(
    cli: RunCli, tmp_path: Path, mosquitto: Mosquitto
) -> None:
    folder = draw(tmp_path / "pictures", ["circle", "star"])
    url = f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}"
    assert cli("watch", str(folder), "What is at the top left?", "--mqtt", url).code == 0
    with Observer(mosquitto.port, ["edge_vl/#"]) as late:
        wait_for(lambda: len(late.heard()) >= 2)
        late.publish("edge_vl/end/status", b"x")
        wait_for(lambda: bool(late.heard("edge_vl/end/status")))
        kept = {heard.topic: heard.payload for heard in late.heard() if heard.is_retained}
    assert kept.pop(f"{NODE}/status") == b"stopped"
    assert json.loads(kept.pop(f"{NODE}/camera/camera/answer/last"))["text"] == "a red star"
    assert kept == {}


class Told(PushedFrames):
    """A camera that says of itself what it is told to."""

    def __init__(self) -> None:
        super().__init__("yard")
        self.state = CameraState("connecting", since_s=time.monotonic())

    def become(self, status: CameraStatus, reason: str = "", **more: int) -> None:
        self.state = CameraState(status, reason, since_s=time.monotonic(), **more)


def test_a_camera_that_comes_and_goes_is_told_from_its_first_moment(mosquitto: Mosquitto) -> None:
    publisher = WatchPublisher(
        f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}", "yard", trigger="interval", note=print, on_failure=lambda: None
    )
    camera = Told()
    with Observer(mosquitto.port, [f"{NODE}/#"]) as observer:

        def states() -> list[dict[str, Any]]:
            return [
                read_object(heard.payload) for heard in observer.heard(f"{NODE}/camera/yard/state") if heard.payload
            ]

        def events() -> list[tuple[object, object]]:
            heard = [read_object(heard.payload) for heard in observer.heard(f"{NODE}/camera/yard/event")]
            return [(event["type"], event["reason"]) for event in heard]

        publisher.start(camera)
        wait_for(lambda: len(states()) >= 1)
        assert {state["status"] for state in states()} == {"connecting"}
        assert events() == []
        camera.become("online", num_connections=1)
        wait_for(lambda: events() == [("online", "")])
        camera.become("offline", "unplugged", num_connections=1)
        wait_for(lambda: events()[1:] == [("offline", "unplugged")])
        camera.become("online", num_connections=2)
        camera.push(np.zeros((48, 64, 3), np.uint8))
        wait_for(lambda: events()[2:] == [("online", "")])
        wait_for(lambda: states()[-1]["status"] == "online")
        assert states()[-1]["age_ms"] is not None
        camera.become("online", num_connections=2, num_frames=99)
        wait_for(lambda: states()[-1]["frames"] == 99)
        publisher.close()
        check_schemas(observer.heard())


def test_questions_are_told_before_they_have_an_answer(mosquitto: Mosquitto) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}"
    publisher = WatchPublisher(url, "yard", trigger="interval", note=print, on_failure=lambda: None)
    with Observer(mosquitto.port, [f"{NODE}/#"]) as observer:
        publisher.start(Told(), ["Is it open?", "Is it wet?"])
        wait_for(lambda: bool(observer.heard(f"{NODE}/camera/yard/state")))
        publisher.close()
        state = read_object(observer.heard(f"{NODE}/camera/yard/state")[0].payload)
        assert state["when"] == {"Is it open?": None, "Is it wet?": None}
        check_schemas(observer.heard())


def test_words_that_cannot_be_written_do_not_end_publishing(mosquitto: Mosquitto) -> None:
    def note(text: str) -> None:
        raise OSError(errno.EIO, "the terminal is gone")

    url = f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}"
    publisher = WatchPublisher(url, "yard", trigger="interval", note=note, on_failure=lambda: None)
    camera = Told()
    with Observer(mosquitto.port, [f"{NODE}/#"]) as observer:
        publisher.start(camera)
        wait_for(lambda: bool(observer.heard(f"{NODE}/camera/yard/state")))
        camera.become("online", num_connections=1)
        wait_for(lambda: bool(observer.heard(f"{NODE}/camera/yard/event")))
        publisher.close()
    assert publisher.failure is None


@pytest.mark.parametrize("num_looks", [0, 1, 2, 5])
def test_a_publisher_that_breaks_off_says_so(mosquitto: Mosquitto, num_looks: int) -> None:
    class Breaking(Told):
        looks = 0

        def latest(self) -> Frame | None:
            self.looks += 1
            if self.looks > num_looks:
                raise OSError("the camera's memory is gone")
            return super().latest()

    ended = threading.Event()
    url = f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}"
    publisher = WatchPublisher(url, "yard", trigger="interval", note=print, on_failure=ended.set)
    publisher.start(Breaking())
    assert ended.wait(WAIT_S)
    assert "the camera's memory is gone" in str(publisher.failure)
    publisher.close()


def test_a_camera_that_never_comes_is_not_told_as_online(mosquitto: Mosquitto) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}"
    command = [sys.executable, "-m", "edge_vl", "watch", f"rtsp://127.0.0.1:{free_port()}/x", "What?", "--mqtt", url]
    with Observer(mosquitto.port, [f"{NODE}/#"]) as observer:
        watch = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: len(observer.heard(f"{NODE}/camera/camera/event")) >= 1)
        watch.terminate()
        assert watch.wait(WAIT_S) == 0
        told = [heard for what in ("event", "state") for heard in observer.heard(f"{NODE}/camera/camera/{what}")]
        event = read_object(observer.heard(f"{NODE}/camera/camera/event")[0].payload)
    assert (event["type"], event["reason"] != "") == ("offline", True)
    assert all(b'"online"' not in heard.payload for heard in told)


def test_a_broker_that_is_away_holds_up_nothing_and_what_was_not_published_is_said(cli: RunCli, tmp_path: Path) -> None:
    folder = draw(tmp_path / "pictures", ["circle"])
    began_s = time.monotonic()
    done = cli("watch", str(folder), "What is at the top left?", "--mqtt", f"mqtt://127.0.0.1:{free_port()}/{NODE}")
    assert done.code == 4
    assert "a red circle" in done.out
    assert done.err.count("broker: unreachable") == 1
    assert "1 answers were not published" in done.err
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
    assert "broker: stopped" not in done.err
    assert threading.active_count() < 50


@pytest.mark.parametrize(
    "url", ["mqtt://host", "mqtt://host/porch", "host/edge_vl/porch", "mqtt://host/a/b/c/d", "mqtt://host/a/b c"]
)
def test_an_address_without_prefix_and_node_is_refused(url: str) -> None:
    with pytest.raises(RequestError):
        read_target(url)


@pytest.mark.parametrize("password", ["hunter2", "hunter2/", "12/hunter2", "hunter2?", "hunter2#", "a@hunter2"])
@pytest.mark.parametrize("place", ["host/a/b", "[::1/a/b"])
def test_a_password_in_the_address_is_never_shown(password: str, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_target(f"mqtt://user:{password}@{place}")
    assert "hunter2" not in str(caught.value)


def test_the_node_is_the_last_name_and_a_prefix_may_have_two() -> None:
    settings, topics = read_target("mqtts://me@host:8884/home/edge_vl/porch/")
    assert (settings.host, settings.port, settings.is_tls, settings.username) == ("host", 8884, True, "me")
    assert (topics.prefix, topics.node) == ("home/edge_vl", "porch")


RULES = """
user reader
topic read edge_vl/#
"""


def test_a_user_who_may_not_publish_there_hears_so_once_and_gets_a_code(
    cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    users, rules = tmp_path / "users", tmp_path / "rules"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(users), "reader", "pw"], check=True)
    rules.write_text(RULES)
    monkeypatch.setenv("EDGE_VL_MQTT_PASSWORD", "pw")
    options = ["allow_anonymous false", f"password_file {users}", f"acl_file {rules}"]
    folder = draw(tmp_path / "pictures", ["circle", "star"])
    with running_mosquitto(tmp_path, options=options) as broker:
        url = f"mqtt://reader@127.0.0.1:{broker.port}/{NODE}"
        done = cli("watch", str(folder), "What is at the top left?", "--mqtt", url)
    assert done.code == 4
    assert done.err.count(f"the broker does not take messages for {NODE}/... (not authorized") == 1, done.err


def test_the_name_of_a_gateway_that_is_online_is_left_alone(cli: RunCli, tmp_path: Path, mosquitto: Mosquitto) -> None:
    folder = draw(tmp_path / "pictures", ["circle"])
    url = f"mqtt://127.0.0.1:{mosquitto.port}/{NODE}"
    with Observer(mosquitto.port, [f"{NODE}/#"]) as observer:
        observer.publish(f"{NODE}/status", b"online", is_retained=True)
        wait_for(lambda: bool(observer.heard(f"{NODE}/status")))
        done = cli("watch", str(folder), "What is at the top left?", "--mqtt", url)
        assert [heard.payload for heard in observer.heard()] == [b"online"]
    assert done.code == 4
    assert "of the name 'porch' is online" in done.err


def test_without_the_extra_the_error_says_what_to_install(tmp_path: Path) -> None:
    for library in ("msgspec", "paho"):
        code = (
            f"import sys; sys.modules['{library}'] = None; from edge_vl.cli import run; "
            "sys.exit(run(['watch', 'synthetic', 'What?', '--mqtt', 'mqtt://127.0.0.1/edge_vl/porch']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 4, done.stderr
        assert "pip install 'edge-vl[mqtt]'" in done.stderr
        assert "Traceback" not in done.stderr
