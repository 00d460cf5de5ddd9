"""Tests of `edge-vl gateway`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import RunCli
from tests.mosquitto import Mosquitto, free_port


@pytest.fixture
def file(tmp_path: Path, mosquitto: Mosquitto) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(
        f"""
[broker]
url = "mqtt://127.0.0.1:{mosquitto.port}"
[node]
name = "pi"
state_dir = "state"
[[camera]]
name = "door"
source = "synthetic"
question = "What is it?"
every_s = 3600
"""
    )
    return path


def test_check_prints_one_line_for_each_fact_and_that_it_is_ready(cli: RunCli, file: Path) -> None:
    done = cli("gateway", str(file), "--check")
    assert done.code == 0
    *lines, last = done.out.splitlines()
    assert last == "ready"
    assert len(lines) > 6
    assert all(line.startswith("ok       ") for line in lines)


def test_check_as_json_is_one_object(cli: RunCli, file: Path) -> None:
    done = cli("gateway", str(file), "--check", "--json")
    told = json.loads(done.out)
    assert told["is_ready"]
    assert {finding["subject"] for finding in told["findings"]} >= {"model", "camera door", "broker", "state"}
    assert all(finding["error"] is None for finding in told["findings"])


def test_check_leaves_with_the_code_of_the_first_problem(cli: RunCli, file: Path) -> None:
    text = file.read_text()
    broken = text.replace('source = "synthetic"', 'source = "clip.mp4"')
    file.write_text(broken)
    done = cli("gateway", str(file), "--check")
    assert done.code == 3
    assert done.out.splitlines()[-1] == "not ready: 1 problem"
    lines = broken.splitlines()
    lines[2] = f'url = "mqtt://127.0.0.1:{free_port()}"'
    file.write_text("\n".join(lines))
    done = cli("gateway", str(file), "--check")
    assert done.code == 3
    assert done.out.splitlines()[-1] == "not ready: 2 problems"
    file.write_text("\n".join(lines).replace("clip.mp4", "synthetic"))
    assert cli("gateway", str(file), "--check", "--json").code == 4


def test_a_file_with_a_mistake_is_a_usage_error(cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('[broker]\nurl = "mqtt://x"\nkeepalives = 5\n')
    done = cli("gateway", str(path))
    assert done.code == 2
    assert "did you mean 'broker.keepalive_s'" in done.err
    done = cli("gateway", str(path), "--check", "--json")
    assert done.code == 2
    assert json.loads(done.out)["error"]["type"] == "ConfigError"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "edge-vl gateway CONFIG.toml"),
        (["x.toml", "--json"], "--json goes with --check"),
        (["x.toml", "--demo"], "--demo takes no gateway file"),
        (["--demo", "--check"], "--demo takes no gateway file"),
        (["x.toml", "--port", "1883"], "--port goes with --demo"),
        (["none.toml"], "none.toml"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(cli: RunCli, arguments: list[str], words: str) -> None:
    done = cli("gateway", *arguments)
    assert done.code == 2
    assert words in done.err


def test_a_missing_library_is_told_with_the_command_that_installs_it(
    cli: RunCli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = cli("gateway", str(file))
    assert done.code == 4
    assert "pip install 'edge-vl[mqtt]'" in done.err


_INTERRUPTED = """
import asyncio, runpy, signal, sys
from edge_vl.mqtt.opener import Opener

async def connect(opener, is_ending):
    asyncio.get_running_loop().call_soon(signal.raise_signal, NUMBER)
    await is_ending.wait()

Opener.open = connect
sys.argv = ["edge-vl", "gateway", *ARGUMENTS]
runpy.run_module("edge_vl", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("option", ["--check", "--remove-discovery"])
def test_a_signal_while_it_connects_ends_it_in_order(file: Path, option: str, number: int) -> None:
    facts = f"NUMBER, ARGUMENTS = {int(number)}, {[str(file), option]!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", facts + _INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (7, "edge-vl: cancelled\n")


def test_the_command_runs_a_gateway_until_it_is_told_to_stop(file: Path, mosquitto: Mosquitto) -> None:
    status = ["mosquitto_sub", "-p", str(mosquitto.port), "-t", "edge_vl/pi/status", "-C", "1", "-W", "60"]
    with (
        subprocess.Popen(status, stdout=subprocess.PIPE) as first,
        subprocess.Popen([sys.executable, "-m", "edge_vl", "gateway", str(file)]) as gateway,
    ):
        try:
            assert first.communicate(timeout=90)[0] == b"online\n"
        finally:
            gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(10) == 0
    assert subprocess.run(status, capture_output=True, check=True).stdout == b"stopped\n"
