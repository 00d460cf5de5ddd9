"""Tests of `edge-vl mqtt` against mosquitto and a gateway with the bundled model and a drawn camera."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_vl.cli.exit_codes import exit_code
from edge_vl.cli.mqtt import _as_line
from edge_vl.errors import Aborted, BrokerError, RemoteError
from edge_vl.mqtt.fleet import Heard
from edge_vl.mqtt.node_messages import CameraEvent
from tests.cli.conftest import RunCli
from tests.gateway_process import GatewayProcess
from tests.mosquitto import Mosquitto, free_port, has_mosquitto, running_mosquitto
from tests.mqtt.gateway_double import GatewayDouble, Reply, delta, end, running_double, start
from tests.mqtt_observer import Observer

PICTURES = Path(__file__).parent.parent.parent / "examples" / "pictures"

CAMERA = """
[[camera]]
name = "scene"
source = "synthetic:320x240"
question = "Describe the picture."
every_s = 0.5
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a broker and a gateway for all tests of this module."""
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    folder = tmp_path_factory.mktemp("mqtt")
    with (
        running_mosquitto(folder) as broker,
        GatewayProcess(folder / "gateway", broker.port, top='group = "g"', tables=CAMERA),
    ):
        yield f"mqtt://127.0.0.1:{broker.port}"


def test_the_answer_streams_to_standard_output(cli: RunCli, url: str) -> None:
    scenes = json.loads((PICTURES / "scenes.json").read_text())
    question, truth = next(iter(scenes["bricks.jpg"].items()))
    done = cli("mqtt", "ask", url, "gw", question, "--image", str(PICTURES / "bricks.jpg"))
    assert (done.code, done.out, done.err) == (0, f"{truth}\n", "")


def test_a_group_is_asked_without_a_node(cli: RunCli, url: str) -> None:
    done = cli("mqtt", "ask", url, "What is at the top left?", "--group", "g", "--image", str(PICTURES / "shapes.png"))
    assert (done.code, done.out) == (0, "a red circle\n")


def test_json_has_one_object_with_all_that_a_script_needs(cli: RunCli, url: str) -> None:
    done = cli("mqtt", "ask", url, "gw", "How many objects are there?", "--camera", "scene", "--json")
    answer = json.loads(done.out)
    assert answer["text"] in ("1", "2", "3", "4")
    assert (answer["node"], answer["model"], answer["finish_reason"]) == ("gw", "bundled", "stop")
    assert answer["frame"]["source"] == "scene"
    assert answer["timings"]["total"] > 0
    assert answer["total_s"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["gw", "What?", "--camera", "nowhere"], 3, "there is no camera nowhere"),
        (["gw", "What?", "--image", __file__], 3, f"{__file__}): it is text, not a picture"),
        (["gw", "Describe the picture.", "--camera", "scene", "--timeout-s", "0.001"], 6, "deadline"),
        (
            ["gw", "What?", "--no-picture", "--max-tokens", "0"],
            2,
            "max_tokens should be a whole number from 1 to 32768",
        ),
        (["gw", "Describe the picture."], 2, "no picture was given; the cameras are: scene; name one by --camera"),
        (["gw", "What?", "--camera", "scene", "--no-picture"], 2, "goes with neither"),
        (["ghost", "What?"], 4, "no gateway 'ghost'"),
        (["What?"], 2, "URL NODE QUESTION"),
        (["gw", "What?", "--group", "g"], 2, "URL QUESTION --group GROUP"),
    ],
)
def test_what_goes_wrong_has_a_code_and_words(cli: RunCli, url: str, words: list[str], code: int, said: str) -> None:
    done = cli("mqtt", "ask", url, *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1, done.err


def test_an_error_is_json_where_json_is_wanted(cli: RunCli, url: str) -> None:
    done = cli("mqtt", "ask", url, "gw", "What?", "--camera", "nowhere", "--json")
    assert done.code == 3
    assert json.loads(done.out)["error"]["type"] == "RemoteError"


def test_status_lists_gateways_and_cameras(cli: RunCli, url: str) -> None:
    done = cli("mqtt", "status", url)
    assert done.code == 0
    first, second = done.out.splitlines()
    assert first.startswith("gw: online  bundled, profile ")
    assert first.endswith(", group g")
    assert second.startswith("  scene: online 320x240 at ")
    gateways = json.loads(cli("mqtt", "status", url, "--json").out)
    assert gateways["gw"]["info"]["model"] == "bundled"
    assert gateways["gw"]["cameras"]["scene"]["status"] == "online"


def test_a_question_without_a_picture_is_asked_where_that_is_meant(cli: RunCli, url: str) -> None:
    done = cli("mqtt", "ask", url, "gw", "What is at the top left?", "--no-picture")
    assert done.code == 0, done.err
    assert done.out.strip()


def test_cameras_of_a_gateway_that_is_gone_are_not_said_to_be_online(cli: RunCli, mosquitto: Mosquitto) -> None:
    state = {
        "v": 1, "camera": "door", "status": "online", "since": "2026-01-01T00:00:00+00:00",
        "at": "2026-01-01T00:00:01+00:00", "t_ms": 1, "fps": 9.0, "width": 640, "height": 480,
    }  # fmt: skip
    url = f"mqtt://127.0.0.1:{mosquitto.port}"
    with Observer(mosquitto.port, []) as observer:
        observer.publish("edge_vl/gw/camera/door/state", json.dumps(state).encode(), is_retained=True)
        observer.publish("edge_vl/gw/status", b"offline", is_retained=True)
        done = cli("mqtt", "status", url)
        as_json = json.loads(cli("mqtt", "status", url, "--json").out)
    assert done.out.splitlines() == ["gw: offline", "  door: unknown, last online (2026-01-01T00:00:01+00:00)"]
    camera = as_json["gw"]["cameras"]["door"]
    assert (camera["status"], camera["last_status"]) == ("unknown", "online")


def test_an_answer_that_breaks_off_ends_its_line(cli: RunCli, mosquitto: Mosquitto) -> None:
    with Observer(mosquitto.port, ["edge_vl/n1/request"]) as gateway:

        def answer() -> None:
            request = json.loads(gateway.wait_for(lambda heard: heard.topic.endswith("/request")).payload)
            base = {"v": 1, "id": request["id"], "t_ms": 1}
            for more in (
                {"seq": 0, "type": "start", "node": "n1", "boot_id": "b", "model": "m"},
                {"seq": 1, "type": "delta", "text": "top right"},
                {"seq": 2, "type": "aborted", "reason": "shutdown"},
            ):
                gateway.publish(f"edge_vl/n1/response/me/{request['id']}", json.dumps(base | more).encode())

        thread = threading.Thread(target=answer)
        thread.start()
        done = cli("mqtt", "ask", f"mqtt://127.0.0.1:{mosquitto.port}", "n1", "What?", "--name", "me")
        thread.join()
    assert (done.code, done.out) == (4, "top right\n")
    assert "shutdown" in done.err


def test_status_says_so_where_there_is_nothing(cli: RunCli, url: str) -> None:
    done = cli("mqtt", "status", f"{url}/other/site")
    assert (done.code, done.out) == (0, "")
    assert "no gateway under other/site/" in done.err


def test_watch_follows_the_answers_until_it_is_interrupted(url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "edge_vl", "mqtt", "watch", url, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        lines: list[dict[str, Any]] = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == ""
    assert [(line["node"], line["camera"]) for line in lines] == [("gw", "scene")] * 2
    assert " at the " in lines[0]["text"]


def test_a_broker_that_is_not_there_is_said_at_once(cli: RunCli) -> None:
    done = cli("mqtt", "status", f"127.0.0.1:{free_port()}")
    assert done.code == 4
    assert "cannot be reached" in done.err


def test_a_password_comes_from_the_environment_or_a_file_and_never_from_the_address(
    cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = cli("mqtt", "status", "mqtt://user:hunter2@127.0.0.1")
    assert refused.code == 2
    assert "EDGE_VL_MQTT_PASSWORD" in refused.err
    assert "hunter2" not in refused.err
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    users = tmp_path / "users"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(users), "robot", "hunter2"], check=True)
    with running_mosquitto(tmp_path, options=[f"password_file {users}", "allow_anonymous false"]) as broker:
        url = f"mqtt://robot@127.0.0.1:{broker.port}"
        refused = cli("mqtt", "status", url)
        assert refused.code == 4
        assert "as user 'robot' without a password, for none was given (EDGE_VL_MQTT_PASSWORD" in refused.err
        monkeypatch.setenv("EDGE_VL_MQTT_PASSWORD", "hunter2")
        assert cli("mqtt", "status", url).code == 0
        monkeypatch.setenv("EDGE_VL_MQTT_PASSWORD", "wrong")
        (tmp_path / "password").write_text("hunter2\n")
        assert cli("mqtt", "status", url, "--password-file", str(tmp_path / "password")).code == 0
        assert cli("mqtt", "status", url, "--password-file", str(tmp_path / "nothing")).code == 2


def test_every_kind_of_remote_error_has_its_code() -> None:
    codes = {
        "invalid_request": 2,
        "image": 3,
        "context_length": 3,
        "overloaded": 4,
        "engine": 4,
        "memory_budget": 5,
        "deadline_exceeded": 6,
    }
    assert {kind: exit_code(RemoteError("x", type=kind)) for kind in codes} == codes
    assert exit_code(Aborted("cancelled")) == 7
    assert exit_code(Aborted("worker_lost")) == exit_code(BrokerError("x", reason="lost")) == 4


ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"


async def rogue_reply(gateway: GatewayDouble, request: dict[str, Any]) -> None:
    if request["question"] == "fail":
        facts = {"type": "engine", "message": f"bad{ESCAPES}", "param": None}
        await gateway.send(request, {"seq": 0, "type": "error", "error": facts})
    else:
        await gateway.send(request, start(), delta(1, f"one\n{ESCAPES}"), end(2, f"one\n{ESCAPES}"))


async def contradicting_reply(gateway: GatewayDouble, request: dict[str, Any]) -> None:
    await gateway.send(request, start(), delta(1, "I am "), end(2, "something else"))


async def run_beside(
    broker: Mosquitto, reply: Reply, *calls: tuple[str, ...]
) -> list[subprocess.CompletedProcess[str]]:
    """Run `edge-vl mqtt` with a gateway that says what a test wants; `URL` stands for the broker."""
    url = f"mqtt://127.0.0.1:{broker.port}"
    about = {"v": 1, "node": "n1", "boot_id": "b", "started_at": "", "protocol": "5", "vision_engine": "",
             "language_engine": "", "model": ESCAPES, "version": ESCAPES, "profile": ESCAPES, "group": "g",
             "limits": dict.fromkeys(("max_active", "max_waiting", "max_per_client", "max_request_bytes",
                                      "max_image_bytes", "max_tokens", "default_deadline_ms"), 1)}  # fmt: skip
    state = {"v": 1, "camera": "c", "status": "offline", "reason": ESCAPES, "since": "", "at": "", "t_ms": 1}
    async with running_double(broker, reply) as gateway:
        await gateway.say("edge_vl/n1/info", json.dumps(about), is_retained=True)
        await gateway.say("edge_vl/n1/camera/c/state", json.dumps(state | {"question": ESCAPES}), is_retained=True)
        done = []
        for call in calls:
            words = [sys.executable, "-m", "edge_vl", "mqtt", *(url if word == "URL" else word for word in call)]
            done.append(await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60))
    return done


async def test_whatever_a_gateway_says_does_not_steer_the_terminal(mosquitto: Mosquitto) -> None:
    asked, failed, listed, as_json, failed_json, listed_json = await run_beside(
        mosquitto,
        rogue_reply,
        ("ask", "URL", "n1", "q", "--no-picture"),
        ("ask", "URL", "n1", "fail", "--no-picture"),
        ("status", "URL"),
        ("ask", "URL", "n1", "q", "--no-picture", "--json"),
        ("ask", "URL", "n1", "fail", "--no-picture", "--json"),
        ("status", "URL", "--json"),
    )
    for done in (asked, failed, listed, as_json, failed_json, listed_json):
        assert not any(character in f"{done.stdout}{done.stderr}" for character in "\x1b\x07\x9b\u202e"), done
    assert asked.stdout == "one\n�]0;title��[2J�31m�\n"
    assert "bad�]0;title" in failed.stderr
    assert listed.stdout.count("�]0;title") == 4
    assert json.loads(as_json.stdout)["text"] == f"one\n{ESCAPES}"
    assert json.loads(failed_json.stdout)["error"]["message"].endswith(ESCAPES)
    assert json.loads(listed_json.stdout)["n1"]["info"]["model"] == ESCAPES


def test_a_line_about_a_camera_does_not_steer_the_terminal() -> None:
    event = CameraEvent(camera="c", type="offline", reason=ESCAPES, at=ESCAPES, t_ms=1)
    line = _as_line(Heard("n1", event))
    assert line.count("�]0;title") == 2
    assert line.isprintable()


async def test_an_answer_that_the_gateway_contradicts_is_told(mosquitto: Mosquitto) -> None:
    (asked,) = await run_beside(mosquitto, contradicting_reply, ("ask", "URL", "n1", "q", "--no-picture"))
    assert (asked.returncode, asked.stdout) == (0, "I am \n")
    assert "the gateway's last message has another text: something else" in asked.stderr
