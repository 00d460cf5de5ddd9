from __future__ import annotations

import base64
import contextlib
import io
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.gateway_process import GatewayProcess
from tests.known_pictures import known_question
from tests.mosquitto import Mosquitto
from tests.mqtt_documents import stream_schema_faults
from tests.mqtt_observer import Observer, stream_faults
from tests.paced_engine import PacedEngine

STUCK = PacedEngine("stuck", token_s=30.0, is_endless=True)
LOADS_SLOWLY = PacedEngine("heavy", load_s=30.0)
SLOW = PacedEngine("slow", token_s=0.02, is_endless=True)


@pytest.fixture
def observer(mosquitto: Mosquitto) -> Iterator[Observer]:
    with Observer(mosquitto.port, ["edge_vl/#"]) as hearing:
        yield hearing


def ask(observer: Observer, id: str, topic: str = "edge_vl/gw/request", max_tokens: int = 500) -> None:
    observer.publish(topic, {"v": 1, "id": id, "client": "judge", "question": "Describe it.", "max_tokens": max_tokens})


def wait_message(observer: Observer, id: str, kind: str) -> None:
    words = f'"type":"{kind}"'.encode()
    observer.wait_for(lambda heard: heard.topic.endswith(f"/{id}") and words in heard.payload, f"{kind} of {id}", 30)


def test_the_bundled_model_answers_rightly_and_the_service_manager_is_told(
    tmp_path: Path, mosquitto: Mosquitto, observer: Observer
) -> None:
    asked = known_question(3)
    said: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0.2)
        listening = threading.Thread(target=listen, args=(manager, said), daemon=True)
        listening.start()
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        with GatewayProcess(tmp_path / "gw", mosquitto.port, environment=environment) as gateway:
            observer.publish("edge_vl/gw/request", asked.request("x1", "judge"))
            end = observer.wait_terminal("x1", 30)
            assert (end["type"], end["text"]) == ("end", asked.answer)
            assert stream_faults("x1", observer.stream("x1"), check=stream_schema_faults) == []
            timings = end["timings"]
            assert all(timings[name] is not None for name in ("encode", "prefill", "decode", "first_token"))
            time.sleep(0.2)
            assert gateway.stop() == 0, gateway.said()
        listening.join(5)
    kinds = [one.split(b"\n")[0] for one in said]
    assert kinds.index(b"READY=1") < kinds.index(b"STOPPING=1")
    assert kinds.count(b"WATCHDOG=1") >= 3


def listen(manager: socket.socket, said: list[bytes]) -> None:
    while b"STOPPING=1" not in said:
        with contextlib.suppress(TimeoutError):
            said.append(manager.recv(1024))


def test_a_stop_while_the_engine_is_in_a_long_unit_ends_the_stream_and_the_process_in_time(
    tmp_path: Path, mosquitto: Mosquitto, observer: Observer
) -> None:
    with GatewayProcess(tmp_path / "gw", mosquitto.port, engine=STUCK) as gateway:
        ask(observer, "x1")
        wait_message(observer, "x1", "start")
        time.sleep(0.3)  # so that the engine is at work
        began_s = time.monotonic()
        assert gateway.stop() == 0, gateway.said()
        assert time.monotonic() - began_s < 3
        assert observer.wait_terminal("x1", 1)["reason"] == "shutdown"
        observer.wait_payload("edge_vl/gw/status", b"stopped", 1)


def test_a_second_signal_ends_it_at_once_with_a_code_of_its_own(tmp_path: Path, mosquitto: Mosquitto) -> None:
    with GatewayProcess(tmp_path / "gw", mosquitto.port, engine=STUCK) as gateway:
        mosquitto.stop(is_kill=True)  # nobody confirms the last messages
        gateway.process.send_signal(signal.SIGTERM)
        gateway.process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        assert gateway.process.wait(5) == 7, gateway.said()
        assert time.monotonic() - began_s < 1
        mosquitto.start()


def test_after_a_crash_the_clients_are_told_and_only_once(
    tmp_path: Path, mosquitto: Mosquitto, observer: Observer
) -> None:
    top = f'state_dir = "{tmp_path / "state"}"'
    gateway = GatewayProcess(tmp_path / "gw", mosquitto.port, top=top, engine=SLOW)
    with gateway:
        ask(observer, "x1")
        wait_message(observer, "x1", "delta")
        observer.publish(
            "edge_vl/gw/request", {"v": 1, "id": "x2", "client": "judge", "question": "?", "max_tokens": 1}
        )
        observer.wait_terminal("x2", 30)
        time.sleep(0.1)  # until its confirmation is written down
        gateway.kill()
        for _ in range(2):
            gateway.start()
            assert gateway.stop() == 0
    aborted = observer.wait_terminal("x1", 10)
    assert (aborted["type"], aborted["reason"], aborted["seq"]) == ("aborted", "restart", None)
    assert stream_faults("x1", observer.stream("x1"), check=stream_schema_faults) == []
    assert stream_faults("x2", observer.stream("x2")) == []


def test_a_broker_that_refuses_the_password_ends_it_with_the_code_for_unavailable(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    mosquitto.stop()
    folder = tmp_path / "closed"
    folder.mkdir()
    closed = Mosquitto(folder, options=["allow_anonymous false"])
    closed.start()
    try:
        gateway = GatewayProcess(tmp_path / "gw", closed.port)
        gateway.start(is_online=False)
        assert gateway.process.wait(60) == 4, gateway.said()
        assert "Traceback" not in gateway.said()
    finally:
        closed.stop()


def test_of_two_workers_both_work_and_the_requests_of_a_killed_one_end_once(
    tmp_path: Path, mosquitto: Mosquitto, observer: Observer
) -> None:
    one, two = (
        GatewayProcess(tmp_path / node, mosquitto.port, node=node, top='group = "pool"', engine=SLOW)
        for node in ("one", "two")
    )
    with one, two:
        ids = [f"x{number}" for number in range(4)]
        for id in ids:
            ask(observer, id, "edge_vl/group/pool/request", 60)
            wait_message(observer, id, "delta")
        one.kill()
        ends = [observer.wait_terminal(id, 60) for id in ids]
        reasons = [end.get("reason") for end in ends]
        assert reasons.count("worker_lost") == 2, reasons
        assert [end["type"] for end in ends].count("end") == 2
        time.sleep(0.3)  # for a second end, if there is one
        for id in ids:
            assert stream_faults(id, observer.stream(id), check=stream_schema_faults) == []


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_a_stop_while_the_model_is_loaded_ends_it_at_once_by_the_signal(
    tmp_path: Path, mosquitto: Mosquitto, delay_s: float
) -> None:
    gateway = GatewayProcess(tmp_path / "gw", mosquitto.port, engine=LOADS_SLOWLY)
    gateway.start(is_online=False)
    wait_file(tmp_path / "gw" / "loading", gateway)
    time.sleep(delay_s)
    began_s = time.monotonic()
    assert gateway.stop() == -signal.SIGTERM, gateway.said()
    assert time.monotonic() - began_s < 2
    assert "install" not in gateway.said()
    assert "Traceback" not in gateway.said()


def wait_file(path: Path, gateway: GatewayProcess) -> None:
    until_s = time.monotonic() + 60
    while not path.exists():
        assert gateway.is_running, gateway.said()
        assert time.monotonic() < until_s
        time.sleep(0.02)


def large_png(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG", compress_level=9)
    return file.getvalue()


def test_large_pictures_are_refused_by_their_header_or_decoded_one_after_the_other(
    tmp_path: Path, mosquitto: Mosquitto, observer: Observer
) -> None:
    bomb, largest = (base64.b64encode(large_png(side)).decode() for side in (9_990, 4_900))
    assert len(bomb) < 20_000
    with GatewayProcess(tmp_path / "gw", mosquitto.port) as gateway:
        before_mib = memory_mib(gateway, "VmRSS")
        for client in ("a", "b", "c", "d"):
            for id, picture in (("bomb", bomb), ("large", largest)):
                asked = {"id": f"{id}-{client}", "client": client, "question": "?", "max_tokens": 1}
                observer.publish("edge_vl/gw/request", asked | {"images": [{"base64": picture}] * 4})
        for client in ("a", "b", "c", "d"):
            error = observer.wait_terminal(f"bomb-{client}", 60)["error"]
            assert (error["type"], error["param"]) == ("image", "images[0]")
            assert "25000000" in error["message"]
            assert observer.wait_terminal(f"large-{client}", 60)["type"] == "end"
        # 24 megapixels at 10 to 20 bytes each, once; four at the same time would be 960 MiB or more.
        assert memory_mib(gateway, "VmHWM") - before_mib < 600


def memory_mib(gateway: GatewayProcess, name: str) -> int:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(f"{name}:")) >> 10


def test_a_stop_while_pictures_are_decoded_ends_in_time(
    tmp_path: Path, mosquitto: Mosquitto, observer: Observer
) -> None:
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "large.png").write_bytes(large_png(9_900))
    with GatewayProcess(
        tmp_path / "gw",
        mosquitto.port,
        top=f'folders = ["{tmp_path / "shots"}"]',
        tables="[limits]\nmax_image_mpx = 100",
    ) as gateway:
        for client in ("a", "b", "c", "d"):
            asked = {"id": f"x{client}", "client": client, "question": "?", "max_tokens": 1}
            observer.publish("edge_vl/gw/request", asked | {"images": [{"file": "large.png"}] * 16})
            wait_message(observer, f"x{client}", "start")
        time.sleep(0.5)
        began_s = time.monotonic()
        assert gateway.stop() == 0, gateway.said()
        assert time.monotonic() - began_s < 3
        for client in ("a", "b", "c", "d"):
            assert observer.wait_terminal(f"x{client}", 1)["reason"] == "shutdown"
