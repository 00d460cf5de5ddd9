"""Tests of `edge-vl mqtt` against mosquitto and a gateway with the bundled model and a drawn camera."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_vl.cli.exit_codes import exit_code
from edge_vl.errors import Aborted, BrokerError, RemoteError
from tests.cli.conftest import RunCli
from tests.gateway_process import GatewayProcess
from tests.mosquitto import free_port, has_mosquitto, running_mosquitto

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
        (["gw", "What?", "--image", __file__], 3, "text, not a picture"),
        (["gw", "Describe the picture.", "--camera", "scene", "--timeout-s", "0.001"], 6, "deadline"),
        (["gw", "What?", "--max-tokens", "0"], 2, "max_tokens"),
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
        assert watching.wait(10) == 7
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
        assert cli("mqtt", "status", url).code == 4
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
