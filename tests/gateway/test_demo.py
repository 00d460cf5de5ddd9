"""Tests of `edge-vl gateway --demo` and of its broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from edge_vl.errors import BrokerError
from edge_vl.gateway.config import GatewayConfig
from edge_vl.gateway.demo import lines_to_try, run_demo
from edge_vl.gateway.demo_broker import DemoBroker
from edge_vl.mqtt import Fleet
from edge_vl.mqtt.broker_settings import BrokerSettings
from tests.mosquitto import free_port

ROOT = Path(__file__).parent.parent.parent


class Demo:
    """The demo in a process of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edge_vl", "gateway", "--demo", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._shown = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_shown(self) -> None:
        assert self._shown.wait(60), self.lines

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(10)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("Ctrl-C"):
                self._shown.set()
        self._shown.set()


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    one = Demo(free_port())
    one.wait_shown()
    yield one
    one.end()


def run_line(line: str, timeout_s: float = 20.0) -> str:
    """Run what the demo prints as a user would, in a shell that has this environment's commands."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, timeout=timeout_s, env={**os.environ, "PATH": paths}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_lines_that_it_prints_work_as_they_stand(demo: Demo) -> None:
    commands = [line.strip() for line in demo.lines if line.startswith("  ")]
    assert commands == [line.strip() for line in lines_to_try(demo.port) if line.startswith("  ")]
    status, ask, *_ = commands
    assert "scene: online 640x480" in run_line(status)
    answer = run_line(ask)
    assert answer == "nothing\n" or answer.startswith(("a ", "an ")), answer


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto-clients is not installed")
def test_the_lines_for_mosquittos_programs_work_as_they_stand(demo: Demo) -> None:
    commands = [line.strip() for line in demo.lines if line.startswith("  ")]
    follow, by_hand = (next(line for line in commands if f"{part}'" in line) for part in ("answer", "response/#"))
    assert follow.startswith("mosquitto_sub ")
    seen = json.loads(run_line(f"{follow} -C 1 -W 10"))
    assert " at the " in seen["text"]
    assert seen["frame"]["source"] == "scene"
    stream = run_line(by_hand.replace("response/#'", "response/#' -C 3 -W 10") + "; wait")
    types = [json.loads(line)["type"] for line in stream.splitlines()]
    assert types[0] == "start"
    assert types[-1] in ("delta", "end")
    assert len(types) == 3


def test_the_guide_works_as_it_stands(demo: Demo, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "mqtt.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    script = tmp_path / "guide.py"
    script.write_text(program.replace("mqtt://127.0.0.1", f"mqtt://127.0.0.1:{demo.port}"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    described, asked = done.stdout.splitlines()
    assert " at the " in described
    assert re.fullmatch(r"a red circle, [0-9.]+ s from here, [0-9.]+ ms of them at demo", asked)
    if shutil.which("mosquitto_sub") is None:
        return
    by_hand = next(block for block in re.findall(r"```sh\n(.*?)```", guide, re.DOTALL) if "mosquitto_pub" in block)
    by_hand = by_hand.replace("mosquitto_sub -R", f"mosquitto_sub -p {demo.port} -R -C 4 -W 10")
    by_hand = by_hand.replace("&\n", "& sleep 1\n").replace("mosquitto_pub", f"mosquitto_pub -p {demo.port}")
    messages = [json.loads(line) for line in run_line(f"{by_hand.rstrip()}; wait").splitlines()]
    assert [(message["id"], message["seq"]) for message in messages] == [("q1", number) for number in range(4)]


def test_its_broker_is_for_this_machine_alone(demo: Demo) -> None:
    listening = [link for link in psutil.Process(demo.process.pid).net_connections() if link.status == "LISTEN"]
    assert [(link.laddr.ip, link.laddr.port) for link in listening] == [("127.0.0.1", demo.port)]


def test_an_interrupt_ends_it_in_order(demo: Demo) -> None:
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(10) == 0
    time.sleep(0.1)
    assert demo.lines[-1] == "Ctrl-C ends it.", demo.lines[-3:]


async def test_a_client_that_tries_mqtt_5_first_is_served() -> None:
    with DemoBroker(free_port()) as broker:
        async with asyncio.timeout(5), Fleet(broker.url) as fleet:
            await fleet.settle(quiet_s=0.1)
            assert fleet.gateways == {}


async def test_a_client_with_a_user_name_is_served_too() -> None:
    with DemoBroker(free_port()) as broker:
        settings = BrokerSettings(port=broker.port, username="me", password="x", connect_timeout_s=6.0)
        async with asyncio.timeout(8), Fleet(settings) as fleet:
            await fleet.settle(quiet_s=0.1)
            assert fleet.gateways == {}


def test_a_port_that_is_taken_is_named() -> None:
    with DemoBroker(free_port()) as broker, pytest.raises(BrokerError, match=f"port {broker.port} .* is taken"):
        DemoBroker(broker.port).__enter__()


def test_it_says_why_its_broker_listens_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(_config: GatewayConfig, *, on_ready: Callable[[], object]) -> int:
        on_ready()
        return 0

    monkeypatch.setattr("edge_vl.gateway.service.run_gateway", ready)
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = taken.getsockname()[1]
        for module in ("demo", "demo_broker"):
            monkeypatch.setattr(f"edge_vl.gateway.{module}.DEFAULT_PORT", usual)
        assert run_demo(say=lines.append) == 0
    found = re.fullmatch(
        rf"edge-vl: port {usual} is taken by another broker, so ([0-9]+); use the lines below", lines[0]
    )
    assert found is not None, lines
    assert lines[2:] == lines_to_try(int(found[1]))
    lines.clear()
    assert run_demo(free_port(), say=lines.append) == 0
    assert not any("is taken" in line for line in lines)


def test_without_amqtt_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amqtt.broker", None)
    with pytest.raises(BrokerError, match=r"pip install 'edge-vl\[onnx,demo\]'"):
        DemoBroker(free_port()).__enter__()
