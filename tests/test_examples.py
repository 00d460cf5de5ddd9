"""The examples run as they stand, against the bundled model and a real broker."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from edge_vl import Runtime
from edge_vl.drawn_scene import Scene, draw_scene
from edge_vl.errors import BrokerError
from edge_vl.gateway.config import CameraConfig, WhenConfig
from edge_vl.gateway.gateway_file import read_gateway_file
from edge_vl.gateway.gateway_schema import KEYS
from edge_vl.mqtt import BrokerSettings, Client
from edge_vl.sources.pushed import PushedFrames
from tests.gateway.gateway_runs import config_for, running
from tests.mosquitto import Mosquitto, free_port, has_mosquitto

EXAMPLES = Path(__file__).parent.parent / "examples"

EMPTY_SIDE = Scene((("star", "blue", "top left"),), 220)
RED_LEFT = Scene((("circle", "red", "bottom left"), ("star", "blue", "top right")), 220)
RED_RIGHT = Scene((("square", "green", "top left"), ("circle", "red", "top right")), 220)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime.open("bundled", threads=1) as opened:
        yield opened


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_robot_turns_to_what_it_sees(runtime: Runtime) -> None:
    robot_loop = example("robot_loop")
    scenes = iter([RED_RIGHT, EMPTY_SIDE])
    turns: list[float | None] = []
    camera = PushedFrames("robot")

    def drive(turn: float | None, age_s: float) -> None:
        assert 0 <= age_s < 1.5
        turns.append(turn)
        if (scene := next(scenes, None)) is not None:
            camera.push(draw_scene(scene))

    camera.push(draw_scene(RED_LEFT))
    robot_loop.run(runtime, camera, drive, answers=3)
    camera.close()
    assert turns == [-1.0, 1.0, None]


def test_the_robot_is_not_misled_by_what_is_no_answer() -> None:
    steer = example("robot_loop").steer
    for text in (
        "",
        "I see a red circle",
        "{",
        '{"shape": "circle"}',
        "[1, null]",
        '[{"shape": "circle", "color": "red"',
    ):
        assert steer(text) is None


def test_the_robot_runs_from_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "robot_loop.py"), str(EXAMPLES / "pictures" / "shapes.png")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.fullmatch(r"turn left  \(frame \d+ ms old\)\n", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("source", "words"),
    [("nowhere.jpg", "robot_loop: there is no file or folder 'nowhere.jpg'"), ("synthetic:1x1", "96 to 4096 pixels")],
)
def test_a_wrong_source_is_said_without_a_traceback(source: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "robot_loop.py"), source], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("interruptible")
def test_the_robot_ends_quietly_when_it_is_interrupted() -> None:
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "robot_loop.py"), "synthetic:160x120"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as robot:
        assert robot.stdout is not None
        assert robot.stderr is not None
        assert "frame" in robot.stdout.readline()
        robot.send_signal(signal.SIGINT)
        _, said = robot.communicate(timeout=20)
    assert (robot.returncode, said) == (0, "the camera is online\n")


def test_an_alarm_without_a_broker_says_so_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "camera_alarm.py"), f"mqtt://127.0.0.1:{free_port()}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "camera_alarm: the broker 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("interruptible")
async def test_an_alarm_says_which_questions_there_are(mosquitto: Mosquitto, runtime: Runtime) -> None:
    camera = PushedFrames("door")
    camera.push(draw_scene(EMPTY_SIDE))
    red = WhenConfig("red", "Is there a red circle?", after=1)
    config = config_for(mosquitto.port, cameras=(CameraConfig("door", "pushed", every_s=0.05, when=(red,)),))
    async with running(config, runtime, {"door": camera}):
        alarm = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLES / "camera_alarm.py"), f"mqtt://127.0.0.1:{mosquitto.port}"),
            *("--question", "read"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert alarm.stderr is not None
        said = [(await asyncio.wait_for(alarm.stderr.readline(), 20)).decode() for _ in range(3)]
        alarm.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(alarm.communicate(), 20)
    camera.close()
    assert said[0].startswith("listening on mqtt://")
    assert re.fullmatch(r"gw/door \(online\) asks red: (no|not known yet)\n", said[1])
    assert said[2] == "no camera here asks 'read' yet; waiting for one that does. Asked is: red\n"
    assert (alarm.returncode, out) == (0, b"")
    assert b"Traceback" not in err


async def test_the_alarm_goes_off_when_an_answer_turns_to_yes(
    mosquitto: Mosquitto, runtime: Runtime, tmp_path: Path
) -> None:
    camera = PushedFrames("door")
    red = WhenConfig("red", "Is there a red circle?", after=1)
    config = config_for(mosquitto.port, cameras=(CameraConfig("door", "pushed", every_s=0.05, when=(red,)),))
    camera.push(draw_scene(EMPTY_SIDE))
    alarm = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / "camera_alarm.py"), f"mqtt://127.0.0.1:{mosquitto.port}"),
        *("--question", "red", "--alarms", "1", "--command"),
        *(sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))"),
        str(tmp_path / "alarm.txt"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert alarm.stdout is not None
    assert alarm.stderr is not None
    try:
        assert (await asyncio.wait_for(alarm.stderr.readline(), 20)).startswith(b"listening on mqtt://")
        assert (await asyncio.wait_for(alarm.stderr.readline(), 20)).startswith(
            b"no camera here asks a yes/no question"
        )
        async with running(config, runtime, {"door": camera}):
            await keep_pushing(camera, EMPTY_SIDE, 0.5)
            assert not (tmp_path / "alarm.txt").exists()
            pushing = asyncio.create_task(keep_pushing(camera, RED_LEFT, 20))
            said = await asyncio.wait_for(alarm.stdout.readline(), 20)
            assert await asyncio.wait_for(alarm.wait(), 20) == 0
            pushing.cancel()
    finally:
        camera.close()
        if alarm.returncode is None:
            alarm.kill()
            await alarm.wait()
    assert said.endswith(b"ALARM  gw/door: red\n")
    assert (tmp_path / "alarm.txt").read_text() == "gw/door red"


async def keep_pushing(camera: PushedFrames, scene: Scene, duration_s: float) -> None:
    for _ in range(int(duration_s / 0.05)):
        camera.push(draw_scene(scene))
        await asyncio.sleep(0.05)


def test_the_gateway_file_is_read_and_has_every_key(tmp_path: Path) -> None:
    path = EXAMPLES / "gateway.toml"
    config = read_gateway_file(path)
    assert (config.node, config.broker.port, config.model.name) == ("kitchen", 1883, "bundled")
    (camera,) = config.cameras
    assert camera.when == (WhenConfig("red_circle", "Is there a red circle?", 2),)
    text = path.read_text()
    missing = [
        key
        for key in KEYS
        if not key.endswith((".password", "model.profile"))
        and not re.search(rf"^(# )?{key.rpartition('.')[2]} = ", text, re.MULTILINE)
    ]
    assert not missing
    # What the comments show can be taken into use, all of it.
    (tmp_path / "gateway.toml").write_text(
        re.sub(r"^# (?=\w+ = )(?!password_|cert |key |ca |username = \"viewer)", "", text, flags=re.MULTILINE)
    )
    read_gateway_file(tmp_path / "gateway.toml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "edge-vl-gateway.service"
    text = (EXAMPLES / "systemd" / unit.name).read_text()
    assert "Type=notify" in text
    assert "LoadCredential=" in text
    unit.write_text(text.replace("/opt/edge-vl/bin/edge-vl", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert done.stderr == "", done.stderr
    assert done.returncode == 0


@pytest.fixture
def strict_broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Run mosquitto with the example's configuration and access rules, on a port of the test's own."""
    if not has_mosquitto() or shutil.which("openssl") is None:
        pytest.skip("mosquitto or openssl is not installed")
    users = tmp_path / "edge_vl.passwd"
    for number, user in enumerate(("kitchen", "robot", "homeassistant", "operator", "stranger")):
        create = ["-c"] if number == 0 else []
        subprocess.run(["mosquitto_passwd", "-b", *create, str(users), user, f"secret-{user}"], check=True)
    shutil.copy(EXAMPLES / "mosquitto.acl", tmp_path / "edge_vl.acl")
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run(
        [*certificate, "-keyout", str(tmp_path / "server.key"), "-out", str(tmp_path / "server.crt")],
        check=True,
        capture_output=True,
    )
    shutil.copy(tmp_path / "server.crt", tmp_path / "ca.crt")
    port = free_port()
    text = (EXAMPLES / "mosquitto.conf").read_text()
    text = text.replace("/etc/mosquitto/certs", str(tmp_path)).replace("/etc/mosquitto", str(tmp_path))
    text = text.replace("listener 1883 ", f"listener {port} ").replace("listener 8883", f"listener {free_port()}")
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "persistence"))]
    (tmp_path / "broker").mkdir()
    for path in tmp_path.glob("*.*"):
        path.chmod(0o600)
    broker = Mosquitto(tmp_path / "broker", port=port, options=lines)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.mark.parametrize("group", [None, "vision"])
async def test_the_access_rules_let_everybody_do_what_they_must_and_no_more(
    strict_broker: Mosquitto, runtime: Runtime, group: str | None
) -> None:
    def settings(user: str) -> BrokerSettings:
        return BrokerSettings(port=strict_broker.port, username=user, password=f"secret-{user}")

    camera = PushedFrames("door")
    camera.push(draw_scene(RED_LEFT))
    config = config_for(strict_broker.port, node="kitchen", group=group, cameras=(CameraConfig("door", "pushed"),))
    config = dataclasses.replace(config, broker=settings("kitchen"))
    async with running(config, runtime, {"door": camera}):
        await ask_and_be_answered(settings("operator"), "anyone", group)
        await ask_and_be_answered(settings("robot"), "robot", None)
        async with Client(settings("stranger"), node="kitchen", name="stranger") as stranger:
            with pytest.raises(BrokerError, match="does not take messages for edge_vl/kitchen/request"):
                await stranger.ask("What is at the top right?", images=[{"camera": "door"}]).answer()
        async with Client(settings("robot"), node="kitchen", name="not-robot") as robot:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(robot.ask("What?", images=[{"camera": "door"}]).answer(), 1.0)
    camera.close()


async def ask_and_be_answered(settings: BrokerSettings, name: str, group: str | None) -> None:
    node = "kitchen" if group is None else None
    async with Client(settings, node=node, group=group, name=name) as asking:
        if group is None:
            answer = await asking.ask("Where is the red circle?", images=[{"camera": "door"}]).answer()
            assert answer.text == "bottom left"
        picture = draw_scene(RED_RIGHT, 128, 96)
        assert (await asking.ask("Where is the red circle?", images=[picture]).answer()).text == "top right"
