"""The gateway from outside, against inputs and events that broke programs like it."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.gateway_process import GatewayProcess
from tests.known_pictures import known_question
from tests.link_proxy import Link, LinkProxy
from tests.mosquitto import Mosquitto
from tests.mqtt_documents import stream_schema_faults
from tests.mqtt_observer import PROTOCOLS, Observer, read_object, stream_faults, text_of
from tests.paced_engine import PacedEngine
from tests.wall_clock import WallClock, has_compiler

Protocol = Literal["3.1.1", "5"]

SLOW = PacedEngine("slow", token_s=0.02, is_endless=True)
QUICK_RETRY = {"retry_first_s": 0.1, "retry_max_s": 0.5, "connect_timeout_s": 1.0}
TIMEOUT_S = 0.5
SETTLE_S = 0.3  # what the broker has confirmed must be with the observer before the broker goes
ALL = "edge_vl/#"

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


def long_request(id: str, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "id": id, "client": "judge", "question": "Describe the picture.", "max_tokens": 1000, **fields}


def wait_delta(observer: Observer, id: str) -> None:
    observer.wait_for(
        lambda heard: heard.topic.endswith(f"/{id}") and b'"delta"' in heard.payload, f"delta of {id}", 30
    )


@protocols
def test_a_stop_during_a_stream_ends_it_says_so_and_takes_less_than_three_seconds(
    tmp_path: Path, mosquitto: Mosquitto, protocol: Protocol
) -> None:
    with (
        Observer(mosquitto.port, [ALL], protocol=protocol) as observer,
        GatewayProcess(tmp_path / "gw", mosquitto.port, broker={"protocol": protocol}, engine=SLOW) as gateway,
    ):
        observer.publish("edge_vl/gw/request", long_request("x"))
        wait_delta(observer, "x")
        began_s = time.monotonic()
        assert gateway.stop() == 0, gateway.said()
        assert time.monotonic() - began_s < 3
        terminal = observer.wait_terminal("x", 1)
        assert (terminal["type"], terminal["reason"]) == ("aborted", "shutdown")
        assert stream_faults("x", observer.stream("x")) == []
        observer.wait_payload("edge_vl/gw/status", b"stopped", 1)
    with Observer(mosquitto.port, ["edge_vl/gw/status"], protocol=protocol) as late:
        assert late.wait_payload("edge_vl/gw/status", b"stopped").is_retained


def test_a_broker_that_is_silent_does_not_hold_up_a_stop_and_a_second_signal_ends_it_at_once(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    with LinkProxy(mosquitto.port) as proxy:
        for shutdown_s, num_signals in ((2, 1), (60, 2)):
            gateway = GatewayProcess(
                tmp_path / f"gw{num_signals}",
                mosquitto.port,
                broker_port=proxy.port,
                tables=f"[limits]\nshutdown_s = {shutdown_s}",
                engine=SLOW,
            )
            with gateway, Observer(mosquitto.port, [ALL]) as observer:
                observer.publish("edge_vl/gw/request", long_request(f"x{num_signals}"))
                wait_delta(observer, f"x{num_signals}")
                proxy.link = Link(mode="black_hole")
                began_s = time.monotonic()
                gateway.process.send_signal(signal.SIGTERM)
                if num_signals == 2:
                    with pytest.raises(subprocess.TimeoutExpired):
                        gateway.process.wait(0.5)
                    gateway.process.send_signal(signal.SIGTERM)
                gateway.process.wait(10)
                assert time.monotonic() - began_s < 3, gateway.said()
                proxy.link = Link()
                proxy.cut()


@protocols
def test_a_broker_that_restarts_loses_no_answer(tmp_path: Path, mosquitto: Mosquitto, protocol: Protocol) -> None:
    with (
        LinkProxy(mosquitto.port) as proxy,
        Observer(mosquitto.port, [ALL], protocol=protocol) as observer,
        GatewayProcess(
            tmp_path / "gw",
            mosquitto.port,
            broker_port=proxy.port,
            broker={"protocol": protocol, **QUICK_RETRY},
            engine=SLOW,
        ) as gateway,
    ):
        for number in range(2):
            id = f"x{number}"
            observer.publish("edge_vl/gw/request", long_request(id, max_tokens=60))
            wait_delta(observer, id)
            proxy.link = Link(mode="closed")
            proxy.cut()
            time.sleep(SETTLE_S)
            mosquitto.restart(is_kill=bool(number))
            observer.wait_connected(number + 2)
            proxy.link = Link()
            terminal = observer.wait_terminal(id, 30)
            assert terminal["type"] == "end", gateway.said()
            assert stream_faults(id, observer.stream(id), may_repeat=True) == []
            gateway.wait_online(observer)
        info = [heard for heard in observer.heard("edge_vl/gw/info") if heard.payload]
        assert len(info) >= 3, "info is written anew after each connect"
        assert len({read_object(heard.payload)["boot_id"] for heard in info}) == 1


@protocols
def test_a_broker_that_accepts_and_never_answers_is_tried_again_without_a_storm(
    tmp_path: Path, mosquitto: Mosquitto, protocol: Protocol
) -> None:
    with (
        LinkProxy(mosquitto.port, Link(mode="black_hole")) as proxy,
        Observer(mosquitto.port, [ALL], protocol=protocol) as observer,
    ):
        gateway = GatewayProcess(
            tmp_path / "gw",
            mosquitto.port,
            broker_port=proxy.port,
            broker={"protocol": protocol, **QUICK_RETRY, "connect_timeout_s": TIMEOUT_S},
        )
        gateway.start(is_online=False)
        until_s = time.monotonic() + 30
        while proxy.num_connections < 2:
            assert time.monotonic() < until_s, gateway.said()
            time.sleep(0.02)
        began_s, num_before = time.monotonic(), proxy.num_connections
        time.sleep(4 * TIMEOUT_S)
        most = 1 + (time.monotonic() - began_s) / TIMEOUT_S
        assert 1 <= proxy.num_connections - num_before <= most, "each attempt waits for its time-out, and not longer"
        proxy.link = Link()
        gateway.wait_online(observer)
        assert gateway.stop() == 0


@protocols
def test_a_client_id_that_another_takes_again_and_again_is_no_storm_and_said_clearly(
    tmp_path: Path, mosquitto: Mosquitto, protocol: Protocol
) -> None:
    gateway = GatewayProcess(
        tmp_path / "gw", mosquitto.port, broker={"protocol": protocol, "client_id": "same", **QUICK_RETRY}
    )
    with gateway, LinkProxy(mosquitto.port) as proxy:
        with Observer(proxy.port, ["nothing"], protocol=protocol, client_id="same") as thief:
            until_s = time.monotonic() + 10
            while gateway.is_running and time.monotonic() < until_s:
                time.sleep(0.05)
            assert thief.num_connections < 40, "a storm of reconnects"
        if protocol == "5":
            assert not gateway.is_running, "it goes on, though its client id is taken again and again"
            assert gateway.process.returncode not in (0, None)
            assert "same" in gateway.said()
            assert "client id" in gateway.said().lower().replace("client_id", "client id")
            assert "Traceback" not in gateway.said()


GARBAGE = (
    b"\xff\xd8\xff\xe0\x00\x10JFIF", b"\xff\xfe", b"", b"null", b"[]", b'"str"', b'{"a": NaN}',
    b"[" * 1000 + b"]" * 1000, b'{"a":' * 1000 + b"0" + b"}" * 1000, b'{"id":"a","id":"b"}',
    b'{"v":1,"id":"big","question":"' + b"x" * 5_000_000 + b'"}',
)  # fmt: skip

WRONG: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({"question": ""}, "question"),
    ({"question": 7}, "question"),
    ({"v": 2}, "v"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"imagse": []}, "imagse"),
    ({"images": [{"camera": "none"}]}, "images[0]"),
    ({"images": [{"file": "/etc/passwd"}]}, "images[0]"),
    ({"images": [{"base64": "!"}]}, "images[0].base64"),
    ({"images": [{}]}, "images[0]"),
    ({"deadline_ms": 0.5}, "deadline_ms"),
    ({"reply_to": "edge_vl/gw/request"}, "reply_to"),
    ({"reply_to": "other/place"}, "reply_to"),
)


@protocols
def test_what_is_no_request_is_answered_with_an_error_where_that_is_possible_and_logged_in_few_words(
    tmp_path: Path, mosquitto: Mosquitto, protocol: Protocol
) -> None:
    with (
        Observer(mosquitto.port, ["edge_vl/gw/response/#", "other/#"], protocol=protocol) as observer,
        GatewayProcess(tmp_path / "gw", mosquitto.port, broker={"protocol": protocol}) as gateway,
    ):
        logged = len(gateway.said())
        for payload in GARBAGE:
            for what in ("request", "cancel"):
                observer.publish(f"edge_vl/gw/{what}", payload)
        for number, (fields, param) in enumerate(WRONG):
            id = f"wrong{number}"
            observer.publish("edge_vl/gw/request", {**long_request(id), **fields})
            terminal = observer.wait_terminal(id)
            assert terminal["type"] == "error", fields
            assert terminal["error"]["type"] in ("invalid_request", "image"), fields
            assert terminal["error"]["param"] == param, terminal
            assert terminal["error"]["message"]
        for number in range(200):
            observer.publish("edge_vl/gw/request", f'{{"marker": "do-not-log-{number}"', timeout_s=None)
        known = known_question(0)
        observer.publish("edge_vl/gw/request", known.request("right", "judge"))
        observer.wait_terminal("right")
        assert text_of(observer.stream("right")) == known.answer
        for id in observer.ids():
            assert stream_faults(id, observer.stream(id), check=stream_schema_faults) == []
        assert {heard.topic.split("/")[0] for heard in observer.heard()} == {"edge_vl"}
        said = gateway.said()[logged:]
        assert "do-not-log" not in said
        assert "JFIF" not in said
        assert len(said.splitlines()) < 40, said
        assert all(len(line) < 300 for line in said.splitlines()), said


@protocols
def test_a_request_that_comes_twice_is_answered_once_and_what_was_retained_is_ignored(
    tmp_path: Path, mosquitto: Mosquitto, protocol: Protocol
) -> None:
    known = known_question(3)
    with Observer(mosquitto.port, ["edge_vl/gw/response/#"], protocol=protocol) as observer:
        observer.publish("edge_vl/gw/request", known.request("old", "judge"), is_retained=True)
        observer.publish("edge_vl/gw/cancel", {"v": 1, "id": "twice"}, is_retained=True)
        with GatewayProcess(tmp_path / "gw", mosquitto.port, broker={"protocol": protocol}, engine=SLOW):
            request = known.request("twice", "judge", max_tokens=20)
            observer.publish("edge_vl/gw/request", request)
            observer.publish("edge_vl/gw/request", request)
            assert observer.wait_terminal("twice")["type"] == "end"
            observer.publish("edge_vl/gw/request", request)
            observer.publish("edge_vl/gw/request", known.request("last", "judge", max_tokens=20))
            observer.wait_terminal("last")
        assert sorted(observer.ids()) == ["last", "twice"]
        for id in observer.ids():
            assert stream_faults(id, observer.stream(id), check=stream_schema_faults) == []


CAMERA = """
[[camera]]
name = "door"
source = "synthetic:160x120@10"
question = "How many objects are there?"
every_s = 0.25
max_tokens = 4
"""


@pytest.mark.skipif(not has_compiler(), reason="gcc is not installed")
def test_a_wall_clock_that_jumps_changes_no_interval_and_no_deadline(tmp_path: Path, mosquitto: Mosquitto) -> None:
    clock = WallClock(tmp_path)
    with (
        Observer(mosquitto.port, [ALL]) as observer,
        GatewayProcess(
            tmp_path / "gw", mosquitto.port, tables=CAMERA, engine=SLOW, environment=clock.environment
        ) as gateway,
    ):
        usual_s = watch_period_s(observer)
        for number, shift_s in enumerate((-3600, 86_400)):
            running, short = f"running{number}", f"short{number}"
            observer.publish("edge_vl/gw/request", long_request(running, max_tokens=40, deadline_ms=60_000))
            wait_delta(observer, running)
            clock.shift(shift_s)
            assert observer.wait_terminal(running)["type"] == "end", gateway.said()
            began_s = time.monotonic()
            observer.publish("edge_vl/gw/request", long_request(short, deadline_ms=1000))
            terminal = observer.wait_terminal(short)
            took_s = time.monotonic() - began_s
            assert terminal["error"]["type"] == "deadline_exceeded"
            assert 0.9 < took_s < 10
            for id in (running, short):
                assert stream_faults(id, observer.stream(id), check=stream_schema_faults) == []
            assert watch_period_s(observer) < 4 * usual_s + 1
            answer = read_object(observer.heard("edge_vl/gw/camera/door/answer")[-1].payload)
            assert 0 <= answer["frame"]["age_ms"] < 60_000
        assert observer.heard("edge_vl/gw/status")[-1].payload == b"online"


def watch_period_s(observer: Observer, num_answers: int = 4) -> float:
    """Return the median time between the next answers of the camera."""
    num_before = len(observer.heard("edge_vl/gw/camera/door/answer"))
    until_s = time.monotonic() + 30
    while True:
        found = observer.heard("edge_vl/gw/camera/door/answer")[num_before:]
        if len(found) > num_answers:
            return statistics.median(b.received_s - a.received_s for a, b in itertools.pairwise(found))
        assert time.monotonic() < until_s, f"{len(found)} answers in 30 s: {json.dumps(len(observer.heard()))} messages"
        time.sleep(0.02)


@protocols
def test_a_cancel_right_behind_its_request_ends_it_and_holds_up_nobody(
    tmp_path: Path, mosquitto: Mosquitto, protocol: Protocol
) -> None:
    known = known_question(0)
    with (
        Observer(mosquitto.port, ["edge_vl/gw/response/#"], protocol=protocol) as observer,
        GatewayProcess(tmp_path / "gw", mosquitto.port, broker={"protocol": protocol}) as gateway,
    ):
        ids = [f"x{number}" for number in range(40)]
        for id in ids:
            observer.publish("edge_vl/gw/request", known.request(id, "judge"), timeout_s=None)
            observer.publish("edge_vl/gw/cancel", {"v": 1, "id": id}, timeout_s=None)
        observer.publish("edge_vl/gw/request", known.request("after", "judge"))
        for id in [*ids, "after"]:
            assert observer.wait_terminal(id)["type"] in ("aborted", "end"), gateway.said()
            assert stream_faults(id, observer.stream(id), check=stream_schema_faults) == []
        assert text_of(observer.stream("after")) == known.answer
