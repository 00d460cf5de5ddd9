from __future__ import annotations

import asyncio
import base64
import io
import logging
import signal
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

from edge_vl.gateway.config import CameraConfig, HomeAssistantConfig, Limits
from edge_vl.gateway.gateway import Gateway
from edge_vl.gateway.node_state import NodeState
from edge_vl.home_assistant import announcer
from edge_vl.mqtt.outbox import Keep
from edge_vl.mqtt.packet import Outbound
from edge_vl.rate_limited_log import RateLimitedLog
from edge_vl.sources.pushed import PushedFrames
from edge_vl.testing import FakeFault, FakeLatencies
from tests.conftest import OpenFake
from tests.gateway.gateway_runs import config_for, request, running, stream_of, terminal_of, until
from tests.mosquitto import Mosquitto, free_port
from tests.mqtt_documents import stream_schema_faults
from tests.mqtt_observer import PROTOCOLS, Observer, read_object, stream_faults

ALL = ["edge_vl/#", "robot/#"]

both = pytest.mark.parametrize("protocol", PROTOCOLS)


def jpeg(shade: int = 200) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (shade, 40, 40)).save(file, "JPEG")
    return file.getvalue()


@both
async def test_an_answer_begins_with_start_comes_in_pieces_and_ends_with_the_whole_text(
    mosquitto: Mosquitto, open_fake: OpenFake, protocol: Literal["3.1.1", "5"]
) -> None:
    runtime, _ = open_fake(script="a red square", max_waiting=8, latencies=FakeLatencies(decode_s=0.01))
    config = config_for(mosquitto.port, protocol=protocol)
    with Observer(mosquitto.port, ALL, protocol=protocol) as observer:
        async with running(config, runtime):
            observer.publish("edge_vl/gw/request", request("x1"), correlation=b"\x00k" if protocol == "5" else None)
            messages = await stream_of(observer, "x1")
        heard = observer.stream("x1")
        assert stream_faults("x1", heard, check=stream_schema_faults) == []
        assert [message["type"] for message in messages[:2]] == ["start", "delta"]
        assert len(messages) > 3, "an answer is not sent in one piece on a fast link"
        end = messages[-1]
        assert (end["type"], end["text"], end["finish_reason"]) == ("end", "a red square", "stop")
        assert {heard.topic for heard in heard} == {"edge_vl/gw/response/judge/x1"}
        if protocol == "5":
            assert {(one.content_type, one.correlation) for one in heard} == {("application/json", b"\x00k")}
            assert all(one.expiry_s for one in heard)
        timings = end["timings"]
        assert timings["wait"] + timings["first_token"] <= 2 * timings["total"]
        assert timings["publish"] is not None, "messages before the end were confirmed"
        assert await last_status(observer) == b"stopped"
        statuses = [one.payload for one in observer.heard("edge_vl/gw/status")]
        assert statuses[-2:] == [b"online", b"stopped"]


async def test_without_streaming_there_are_two_messages(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            observer.publish("edge_vl/gw/request", request("x1", stream=False, reply_to="edge_vl/robot/answers"))
            messages = await stream_of(observer, "x1")
        assert [(message["type"], message["seq"]) for message in messages] == [("start", 0), ("end", 1)]
        assert observer.stream("x1")[0].topic == "edge_vl/robot/answers"


async def test_pictures_come_from_cameras_files_topics_and_the_request_itself(
    mosquitto: Mosquitto, open_fake: OpenFake, tmp_path: Path
) -> None:
    runtime, engine = open_fake(script="ok", max_waiting=8)
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "door.jpg").write_bytes(jpeg(10))
    camera = PushedFrames("door")
    for shade in (20, 30):
        camera.push(np.full((32, 32, 3), shade, np.uint8))
    ways: list[tuple[dict[str, Any], str]] = [
        ({"camera": "door"}, "door"),
        ({"file": "door.jpg"}, "file"),
        ({"base64": base64.b64encode(jpeg(40)).decode()}, "base64"),
        ({"topic": "edge_vl/gw/image/judge/p1"}, "topic"),
    ]
    config = config_for(
        mosquitto.port,
        folders=(tmp_path / "shots",),
        cameras=(CameraConfig("door", "synthetic"),),
    )
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config, runtime, {"door": camera}):
            observer.publish("edge_vl/gw/image/judge/p1", jpeg(50))
            for number, (ref, source) in enumerate(ways):
                observer.publish("edge_vl/gw/request", request(f"x{number}", images=[ref]))
                end = await terminal_of(observer, f"x{number}")
                assert end["type"] == "end", end
                assert end["usage"]["image_tokens"] > 0
                assert end["frame"]["source"] == source
                assert end["frame"]["index"] == (1 if source == "door" else 0)
                assert end["timings"]["frame_age"] >= 0
        assert sum(call.stage == "encode" for call in engine.calls) >= len(ways)


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"images": [{"camera": "none"}]}, "image", "images[0]"),
        ({"images": [{"file": "../secret.jpg"}]}, "image", "images[0]"),
        ({"images": [{"topic": "edge_vl/gw/image/other/p1"}]}, "image", "images[0]"),
        ({"images": [{"base64": base64.b64encode(b"no picture").decode()}]}, "image", "images[0]"),
        ({"question": " "}, "invalid_request", "question"),
        ({"max_tokens": 100_000}, "invalid_request", "max_tokens"),
        ({"colour": "red"}, "invalid_request", "colour"),
        ({"reply_to": "homeassistant/lock"}, "invalid_request", "reply_to"),
    ],
)
async def test_what_cannot_be_answered_ends_with_one_error_that_names_the_field(
    mosquitto: Mosquitto, open_fake: OpenFake, fields: dict[str, Any], kind: str, param: str
) -> None:
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ["edge_vl/#", "homeassistant/#"]) as observer:
        async with running(config_for(mosquitto.port), runtime):
            observer.publish("edge_vl/gw/request", request("x1", **fields))
            error = await terminal_of(observer, "x1")
            assert error["type"] == "error", error
            assert error["error"]["type"] == kind, error
            assert error["error"]["param"].startswith(param), error
            observer.publish("edge_vl/gw/request", request("x2"))
            assert (await terminal_of(observer, "x2"))["type"] == "end"
        assert stream_faults("x1", observer.stream("x1"), check=stream_schema_faults) == []
        assert not observer.heard("homeassistant/lock")


@both
async def test_a_request_that_is_delivered_twice_is_answered_once_and_a_retained_one_never(
    mosquitto: Mosquitto, open_fake: OpenFake, protocol: Literal["3.1.1", "5"]
) -> None:
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ALL, protocol=protocol) as observer:
        observer.publish("edge_vl/gw/request", request("old"), is_retained=True)
        async with running(config_for(mosquitto.port, protocol=protocol), runtime):
            for _ in range(2):
                observer.publish("edge_vl/gw/request", request("x1"))
            observer.publish("edge_vl/gw/request", request("x1") | {"client": "other"})
            for _ in range(2):
                observer.publish("edge_vl/gw/request", request("x2", colour="red"))
            observer.publish("edge_vl/gw/request", request("last"))
            await terminal_of(observer, "last")
            await until(lambda: len(observer.heard("edge_vl/gw/response/other/x1")) > 2)
        assert stream_faults("x1", observer.heard("edge_vl/gw/response/judge/x1")) == []
        assert len(observer.stream("x2")) == 1
        assert not observer.stream("old")


async def test_requests_beyond_the_limits_are_refused_and_the_others_answered_in_turn(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
    limits = Limits(max_active=1, max_waiting=2)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=limits), runtime):
            for number in range(4):
                observer.publish("edge_vl/gw/request", request(f"x{number}"))
            refused = await terminal_of(observer, "x3")
            assert (refused["error"]["type"], refused["seq"]) == ("overloaded", 0)
            fault.release.set()
            for number in range(3):
                assert (await terminal_of(observer, f"x{number}"))["type"] == "end"


async def test_a_deadline_counts_from_the_request_also_while_it_waits(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=Limits(max_active=1)), runtime):
            observer.publish("edge_vl/gw/request", request("runs", deadline_ms=400))
            observer.publish("edge_vl/gw/request", request("waits", deadline_ms=200))
            for id, deadline_ms in (("waits", 200), ("runs", 400)):
                error = await terminal_of(observer, id)
                assert error["error"]["type"] == "deadline_exceeded", error
                assert f"{deadline_ms} ms" in error["error"]["message"]
                assert error["t_ms"] >= deadline_ms - 5
            fault.release.set()


async def test_cancels_end_what_runs_what_waits_and_what_comes_after_them(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", at=2, kind="hang")
    runtime, _ = open_fake(script="a long answer", faults=[fault], max_waiting=8)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=Limits(max_active=1)), runtime):
            observer.publish("edge_vl/gw/request", request("runs"))
            await asyncio.to_thread(fault.reached.wait, 10)
            observer.publish("edge_vl/gw/request", request("waits"))
            for id in ("late", "waits", "runs", "unknown"):
                observer.publish("edge_vl/gw/cancel", {"v": 1, "id": id})
            observer.publish("edge_vl/gw/request", request("late"))
            for id in ("late", "waits", "runs"):
                aborted = await terminal_of(observer, id)
                assert (aborted["type"], aborted["reason"]) == ("aborted", "cancelled"), aborted
                assert stream_faults(id, observer.stream(id)) == []
            text = (await terminal_of(observer, "runs"))["text"]
            assert text
            assert "a long answer".startswith(text)
            fault.release.set()
            observer.publish("edge_vl/gw/request", request("next"))
            assert (await terminal_of(observer, "next"))["type"] == "end"


async def test_an_engine_that_fails_fails_one_request(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    faults = [FakeFault("decode"), FakeFault("decode", at=1, error=ZeroDivisionError("a defect"))]
    runtime, _ = open_fake(script="ok", faults=faults)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            for number, kind in enumerate(["error", "error", "end"]):
                observer.publish("edge_vl/gw/request", request(f"x{number}"))
                terminal = await terminal_of(observer, f"x{number}")
                assert terminal["type"] == kind, terminal
                if kind == "error":
                    assert terminal["error"]["type"] == "engine"


async def test_turns_of_a_conversation_follow_each_other_and_the_eldest_makes_room(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    runtime, _ = open_fake(script="ok", max_waiting=8)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=Limits(max_conversations=1)), runtime):
            for number in range(3):
                observer.publish("edge_vl/gw/request", request(f"a{number}", conversation="one"))
            ends = [await terminal_of(observer, f"a{number}") for number in range(3)]
            prompts = [end["usage"]["prompt_tokens"] for end in ends]
            assert prompts == sorted(set(prompts)), "each turn's prompt holds those before it"
            observer.publish("edge_vl/gw/request", request("b0", conversation="two"))
            await terminal_of(observer, "b0")
            observer.publish("edge_vl/gw/request", request("a3", conversation="one"))
            end = await terminal_of(observer, "a3")
            assert end["usage"]["prompt_tokens"] == prompts[0]
            assert any("begins anew" in note for note in end["degraded"])


async def test_a_stop_ends_streams_with_what_they_have_though_the_engine_hangs(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", at=2, kind="hang")
    runtime, _ = open_fake(script="a long answer", faults=[fault], max_waiting=8)
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=Limits(max_active=1)), runtime) as gateway:
            observer.publish("edge_vl/gw/request", request("runs"))
            await asyncio.to_thread(fault.reached.wait, 10)
            observer.publish("edge_vl/gw/request", request("waits"))
            await until(lambda: len(observer.stream("waits")) == 1)
            async with asyncio.timeout(2):
                await gateway.stop()
            for id in ("runs", "waits"):
                aborted = await terminal_of(observer, id)
                assert aborted["reason"] == "shutdown"
        fault.release.set()


async def test_an_answer_outlives_the_broker(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="a long answer", latencies=FakeLatencies(decode_s=0.05))
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            observer.publish("edge_vl/gw/request", request("x1"))
            await until(lambda: len(observer.stream("x1")) > 3)
            await asyncio.to_thread(mosquitto.restart, is_kill=True)
            end = await terminal_of(observer, "x1")
            assert (end["type"], end["text"]) == ("end", "a long answer")
            await until(lambda: observer.heard("edge_vl/gw/status")[-1].payload == b"online")


async def test_stats_and_info_say_what_it_is_and_does(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, stats_every_s=0.1), runtime):
            observer.publish("edge_vl/gw/request", request("x1"))
            observer.publish("edge_vl/gw/request", request("x2", colour="red"))
            await terminal_of(observer, "x1")
            await until(lambda: len(observer.heard("edge_vl/gw/stats")) > 0)
            seen = len(observer.heard("edge_vl/gw/stats"))
            await until(lambda: len(observer.heard("edge_vl/gw/stats")) > seen + 1)
        stats = read_object(observer.heard("edge_vl/gw/stats")[-1].payload)
        info = read_object(observer.heard("edge_vl/gw/info")[-1].payload)
        assert (stats["answered"], stats["failed"], stats["bad_payloads"], stats["active"]) == (1, 1, 1, 0)
        assert stats["first_token_ms"] > 0
        assert stats["link"]["connections"] == 1
        assert info["boot_id"] == stats["boot_id"]
        assert info["limits"]["max_active"] == Limits().max_active
        assert info["language_engine"] == "fake"


async def test_one_client_with_many_requests_does_not_hold_up_another(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    fault = FakeFault("decode", kind="hang")
    runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
    ended: list[str] = []
    lock = threading.Lock()
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, limits=Limits(max_active=1)), runtime):
            for number in range(4):
                observer.publish("edge_vl/gw/request", request(f"many{number}"))
            observer.publish("edge_vl/gw/request", request("single") | {"client": "other"})
            await until(lambda: len(observer.stream("single")) == 1)
            fault.release.set()
            for id in ("many0", "many1", "many2", "many3", "single"):
                await terminal_of(observer, id)
        with lock:
            for one in observer.heard():
                if b'"type":"end"' in one.payload:
                    ended.append(read_object(one.payload)["id"])
    assert ended.index("single") <= 2, ended


async def test_a_will_that_comes_late_is_contradicted(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            observer.publish("edge_vl/gw/status", b"offline", is_retained=True)
            await until(
                lambda: [one.payload for one in observer.heard("edge_vl/gw/status")][-2:] == [b"offline", b"online"]
            )
        assert await last_status(observer) == b"stopped"


async def test_an_answer_waits_for_a_camera_that_has_just_been_opened(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    runtime, _ = open_fake(script="ok", max_waiting=8)
    camera = PushedFrames("door")
    config = config_for(mosquitto.port, cameras=(CameraConfig("door", "synthetic"),))
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config, runtime, {"door": camera}):
            observer.publish("edge_vl/gw/request", request("x1", images=[{"camera": "door"}]))
            error = await terminal_of(observer, "x1")
            assert (error["type"], error["error"]["type"]) == ("error", "image")
            assert "gives no frames" in error["error"]["message"]
            observer.publish("edge_vl/gw/request", request("x2", images=[{"camera": "door"}]))
            await until(lambda: len(observer.stream("x2")) == 1)
            camera.push(np.full((32, 32, 3), 20, np.uint8))
            assert (await terminal_of(observer, "x2"))["type"] == "end"


@both
async def test_a_command_for_a_camera_that_there_is_not_is_answered_where_its_events_would_be(
    mosquitto: Mosquitto, open_fake: OpenFake, protocol: Literal["3.1.1", "5"], caplog: pytest.LogCaptureFixture
) -> None:
    runtime, _ = open_fake(script="ok", max_waiting=8)
    config = config_for(mosquitto.port, protocol=protocol, cameras=(CameraConfig("scene", "synthetic"),))
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config, runtime, {"scene": PushedFrames("scene")}):
            observer.publish("edge_vl/gw/camera/scen/enabled/set", b"OFF")
            observer.publish("edge_vl/gw/camera/scene/enabled/set", b"OFF")
            observer.publish("edge_vl/gw/camera/scene/foo/set", b"OFF")
            events = [f"edge_vl/gw/camera/{name}/event" for name in ("scen", "scene")]
            await until(lambda: b"'foo'" in b"".join(heard.payload for heard in observer.heard(events[1])))
            await until(lambda: len(observer.heard(events[0])) == 1)
            states = [heard.payload for heard in observer.heard("edge_vl/gw/camera/scene/enabled/state")]
            assert states[-1] == b"OFF"
            assert states.count(b"OFF") == 1, "a command is carried out once"
    event = read_object(observer.heard(events[0])[0].payload)
    assert (event["camera"], event["type"]) == ("scen", "error")
    assert event["error"]["message"] == "there is no camera 'scen' at gw; did you mean scene?"
    assert "there is no camera 'scen' at gw; did you mean scene?" in caplog.text


async def test_a_broker_that_is_away_is_named_once_in_a_line(
    open_fake: OpenFake, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, _ = open_fake(script="ok")
    port = free_port()
    gateway = Gateway(config_for(port), runtime)
    serving = asyncio.create_task(gateway.run())
    await until(lambda: "cannot be reached" in caplog.text)
    await gateway.stop()
    await serving
    line = next(one.getMessage() for one in caplog.records if "cannot be reached" in one.getMessage())
    assert line.startswith(f"the broker 127.0.0.1:{port} cannot be reached: ")
    assert line.count("the broker") == 1


async def test_lines_that_were_left_out_are_written_by_and_by(
    mosquitto: Mosquitto, open_fake: OpenFake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl.gateway.gateway._TIDY_EVERY_S", 0.05)
    log = RateLimitedLog(logging.getLogger("edge_vl.test"), every_s=0.2, burst=1)
    runtime, _ = open_fake(script="ok")
    async with running(config_for(mosquitto.port), runtime):
        for number in range(3):
            log.warning("payload", "bad %d", number)
        await until(lambda: "bad 2 (and 1 more since the last such line)" in caplog.text, 5)


async def test_of_a_few_bad_requests_each_one_is_in_the_log(
    mosquitto: Mosquitto, open_fake: OpenFake, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port), runtime):
            for number in range(5):
                observer.publish("edge_vl/gw/request", request(f"x{number}", question=""))
            await until(lambda: caplog.text.count("was refused") == 5, 5)


async def last_status(observer: Observer) -> bytes:
    """Wait until the gateway has said that it stopped and nothing else comes, and return its last status."""
    await until(lambda: any(one.payload == b"stopped" for one in observer.heard("edge_vl/gw/status")))
    observer.publish("edge_vl/end", b"x")
    await until(lambda: len(observer.heard("edge_vl/end")) == 1)
    return observer.heard("edge_vl/gw/status")[-1].payload


async def test_home_assistants_birth_during_a_stop_does_not_make_it_online_again(
    mosquitto: Mosquitto, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer, "BIRTH_DELAY_S", (0.0, 0.0))
    monkeypatch.setattr(announcer, "STATES_DELAY_S", 0.2)
    runtime, _ = open_fake(script="ok")
    config = config_for(mosquitto.port, home_assistant=HomeAssistantConfig(True))
    with Observer(mosquitto.port, [*ALL, "homeassistant/#"]) as observer:
        async with running(config, runtime) as gateway:
            observer.publish("homeassistant/status", b"online")
            await until(lambda: len(observer.heard("homeassistant/device/edge_vl-gw/config")) == 2)
            assert mosquitto._process is not None
            mosquitto._process.send_signal(signal.SIGSTOP)  # `stopped` stays unconfirmed for a while
            asyncio.get_running_loop().call_later(0.5, mosquitto._process.send_signal, signal.SIGCONT)
            await gateway.stop()
        assert await last_status(observer) == b"stopped"


@pytest.mark.parametrize("group", [None, "pool"])
async def test_a_connection_lost_during_the_stop_does_not_make_it_online_again(
    mosquitto: Mosquitto, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, group=group), runtime) as gateway:
            session = gateway._session
            await until(lambda: session._outbox.is_empty)  # else the first `online` would come again
            post = session.post

            def post_and_cut(message: Outbound, keep: Keep) -> asyncio.Future[float]:
                receipt = post(message, keep)
                if message.payload == b"stopped":
                    assert session._connection is not None
                    session._connection.abandon("cut")
                return receipt

            monkeypatch.setattr(session, "post", post_and_cut)
            await gateway.stop()
        assert await last_status(observer) == b"stopped"
        assert [one.payload for one in observer.heard("edge_vl/gw/status")].count(b"online") == 1


async def test_a_late_will_is_contradicted_in_a_group_by_one_message(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, group="pool"), runtime):
            observer.publish("edge_vl/gw/status", b"offline", is_retained=True)
            await until(lambda: len(observer.heard("edge_vl/gw/status")) > 2)
        assert await last_status(observer) == b"stopped"
        statuses = [one.payload for one in observer.heard("edge_vl/gw/status")]
        assert statuses == [b"online", b"offline", b"online", b"stopped"]


async def test_what_is_done_from_time_to_time_goes_on_after_a_failure(
    mosquitto: Mosquitto, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl.gateway.gateway._TIDY_EVERY_S", 0.05)
    num_tidied = num_stats = 0
    stats = NodeState.stats

    def tidy() -> None:
        nonlocal num_tidied
        num_tidied += 1
        if num_tidied == 1:
            raise RuntimeError("the first one fails")

    def first_fails(self: NodeState, **facts: Any) -> Any:
        nonlocal num_stats
        num_stats += 1
        if num_stats == 1:
            raise RuntimeError("the first one fails")
        return stats(self, **facts)

    monkeypatch.setattr("edge_vl.gateway.gateway.tell_left_out", tidy)
    monkeypatch.setattr(NodeState, "stats", first_fails)
    runtime, _ = open_fake(script="ok")
    with Observer(mosquitto.port, ALL) as observer:
        async with running(config_for(mosquitto.port, stats_every_s=0.05), runtime):
            await until(lambda: num_tidied > 1, 5)
            await until(lambda: len(observer.heard("edge_vl/gw/stats")) > 0, 5)
