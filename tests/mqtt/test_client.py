"""Tests of the client against mosquitto and a gateway that says what the test wants."""

from __future__ import annotations

import asyncio
import base64
import functools
import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge_vl.mqtt
from edge_vl.backoff import Backoff
from edge_vl.errors import Aborted, BrokerError, DeadlineExceeded, ImageError, RemoteError, RequestError
from edge_vl.mqtt import Client, RemoteStream
from edge_vl.mqtt.broker_settings import BrokerSettings
from tests.mosquitto import Mosquitto, free_port, has_mosquitto, running_mosquitto
from tests.mqtt.gateway_double import (
    GatewayDouble,
    Reply,
    delta,
    end,
    running_double,
    silent,
    start,
    two_words,
)

PICTURES = Path(__file__).parent.parent.parent / "examples" / "pictures"


def client(broker: Mosquitto, **options: Any) -> Client:
    options.setdefault("node", None if "group" in options else "n1")
    protocol = options.pop("protocol", "auto")
    settings = BrokerSettings(port=broker.port, backoff=Backoff(0.05, 0.2), protocol=protocol)
    return Client(settings, **options)


async def read(stream: RemoteStream) -> list[str]:
    return [text async for text in stream]


def saying(*messages: dict[str, Any]) -> Reply:
    async def reply(gateway: GatewayDouble, request: dict[str, Any]) -> None:
        await gateway.send(request, *messages)

    return reply


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_text_streams_and_the_answer_has_the_rest(mosquitto: Mosquitto, protocol: str) -> None:
    async with running_double(mosquitto) as gateway, client(mosquitto, name="robot", protocol=protocol) as asking:
        stream = asking.ask(
            "What?",
            images=[{"camera": "door"}],
            timeout_s=8,
            max_tokens=9,
            conversation="c1",
            max_frame_age_s=1.5,
        )
        assert "".join(await read(stream)) == "two words"
        answer = await stream.answer()
    assert (answer.text, answer.finish_reason, answer.node, answer.model) == ("two words", "stop", "n1", "double")
    assert answer.usage["completion_tokens"] == 2
    assert answer.first_text_s is not None
    assert 0 < answer.first_text_s <= answer.total_s
    assert answer.upload_s is None
    assert answer.to_dict()["timings"] == {"total": 5}
    (request,) = gateway.requests
    assert request == {
        "v": 1,
        "id": stream.id,
        "client": "robot",
        "question": "What?",
        "images": [{"camera": "door"}],
        "conversation": "c1",
        "max_tokens": 9,
        "temperature": 0.0,
        "deadline_ms": 8000,
        "max_frame_age_ms": 1500,
    }


async def test_lost_repeated_foreign_and_damaged_messages_do_not_change_the_text(mosquitto: Mosquitto) -> None:
    async def reply(gateway: GatewayDouble, request: dict[str, Any]) -> None:
        topic = f"edge_vl/n1/response/{request['client']}/{request['id']}"
        await gateway.send(request, delta(2, "b"), start(), start(), delta(1, "a"), delta(1, "a"))
        for payload in (b"", b"\xff\xd8\xff", b"null", b"[]", b'{"type":"end"}', b"[" * 1000, b'{"a":NaN}', b"x" * 9):
            await gateway.say(topic, payload)
        await gateway.say(topic, b'{"v":1,"id":"other","seq":3,"type":"delta","t_ms":1,"text":"WRONG"}')
        await gateway.send({**request, "id": "unknown"}, delta(3, "WRONG"))
        await gateway.send(request, delta(-1, "WRONG"), delta(5, "e"), end(6, "abcde"), delta(7, "LATE"))

    async with running_double(mosquitto, reply), client(mosquitto) as asking:
        stream = asking.ask("What?")
        texts = await read(stream)
        assert texts == ["ab", "cde"]
        assert (await stream.answer()).text == "abcde"
        assert stream.text == "abcde"


async def test_several_questions_wait_at_once_and_none_hears_another(mosquitto: Mosquitto) -> None:
    async def reply(gateway: GatewayDouble, request: dict[str, Any]) -> None:
        number = request["question"]
        await gateway.send(request, start(), delta(1, number))
        await gateway.until(lambda double: len(double.requests) == 12)
        await gateway.send(request, delta(2, f"-{number}"), end(3, f"{number}-{number}"))

    async with running_double(mosquitto, reply), client(mosquitto) as asking:
        streams = [asking.ask(str(number)) for number in range(12)]
        answers = await asyncio.gather(*(stream.answer() for stream in streams))
    assert [answer.text for answer in answers] == [f"{number}-{number}" for number in range(12)]


async def test_pictures_go_ahead_of_the_request_as_they_are(mosquitto: Mosquitto) -> None:
    path = PICTURES / "bricks.jpg"
    pixels = np.zeros((24, 24, 3), np.uint8)
    async with running_double(mosquitto) as gateway, client(mosquitto, name="robot") as asking:
        answer = await asking.ask("What?", images=[path, pixels, {"file": "a.jpg"}]).answer()
        assert answer.upload_s is not None
        assert 0 < answer.upload_s <= answer.total_s
        await asking.ask("And here?", images=path).answer()
    first, second = gateway.requests
    topics = [f"edge_vl/n1/image/robot/{first['id']}-{index}" for index in (0, 1)]
    assert first["images"] == [{"topic": topics[0]}, {"topic": topics[1]}, {"file": "a.jpg"}]
    assert gateway.images[topics[0]] == path.read_bytes()
    assert gateway.images[topics[1]].startswith(b"\xff\xd8\xff")
    assert gateway.order.index("edge_vl/n1/request") == 2
    assert list(gateway.images.values())[2] == path.read_bytes()
    assert second["images"][0]["topic"].startswith("edge_vl/n1/image/robot/")


async def test_a_group_gets_small_pictures_within_the_request(mosquitto: Mosquitto) -> None:
    small = PICTURES / "shapes.png"
    async with running_double(mosquitto, group="g") as gateway, client(mosquitto, group="g") as asking:
        answer = await asking.ask("What?", images=[small]).answer()
        assert (answer.text, answer.node) == ("two words", "n1")
        large = np.random.default_rng(0).integers(0, 255, (400, 400, 3), np.uint8)
        with pytest.raises(RequestError, match="request to a group; make them smaller"):
            await asking.ask("What?", images=[large]).answer()
    (request,) = gateway.requests
    assert base64.b64decode(request["images"][0]["base64"]) == small.read_bytes()


async def test_of_two_workers_that_answer_the_first_is_heard(mosquitto: Mosquitto) -> None:
    async def reply(gateway: GatewayDouble, request: dict[str, Any]) -> None:
        await gateway.send(request, start(), delta(1, "mine"))
        topic = f"edge_vl/n2/response/{request['client']}/{request['id']}"
        await gateway.say(topic, f'{{"v":1,"id":"{request["id"]}","seq":2,"type":"delta","t_ms":1,"text":"WRONG"}}')
        await gateway.send(request, end(2, "mine"))

    async with running_double(mosquitto, reply, group="g"), client(mosquitto, group="g") as asking:
        assert await read(asking.ask("What?")) == ["mine"]


@pytest.mark.parametrize(
    "kind", ["invalid_request", "image", "context_length", "memory_budget", "overloaded", "engine"]
)
async def test_an_error_of_the_gateway_is_raised_with_its_kind(mosquitto: Mosquitto, kind: str) -> None:
    error = {"seq": 1, "type": "error", "error": {"type": kind, "message": "no such camera", "param": "images"}}
    async with running_double(mosquitto, saying(start(), error)), client(mosquitto) as asking:
        stream = asking.ask("What?")
        for _ in range(2):
            with pytest.raises(RemoteError, match="no such camera") as caught:
                await stream.answer()
            assert (caught.value.type, caught.value.param) == (kind, "images")


async def test_a_deadline_that_the_gateway_has_seen_pass_is_a_deadline(mosquitto: Mosquitto) -> None:
    error = {"seq": 2, "type": "error", "error": {"type": "deadline_exceeded", "message": "2 s passed during decode"}}
    async with running_double(mosquitto, saying(start(), delta(1, "so far"), error)), client(mosquitto) as asking:
        with pytest.raises(DeadlineExceeded, match="2 s passed during decode") as caught:
            await asking.ask("What?", timeout_s=2).answer()
    assert (caught.value.text, caught.value.deadline_s) == ("so far", 2)


async def test_an_aborted_request_says_why_and_keeps_its_text(mosquitto: Mosquitto) -> None:
    aborted = {"seq": None, "type": "aborted", "reason": "worker_lost"}
    async with running_double(mosquitto, saying(start(), delta(1, "so far"), aborted)), client(mosquitto) as asking:
        with pytest.raises(Aborted, match="worker_lost") as caught:
            await asking.ask("What?").answer()
    assert (caught.value.reason, caught.value.text) == ("worker_lost", "so far")


async def test_silence_ends_with_the_deadline(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto, silent) as gateway, client(mosquitto) as asking:
        began_s = time.monotonic()
        stream = asking.ask("What?", timeout_s=0.3)
        with pytest.raises(DeadlineExceeded, match=r"waiting for a gateway; the gateway 'n1' is online; it is busy"):
            await stream.answer()
        assert time.monotonic() - began_s >= 0.3
        await gateway.until(lambda double: stream.id in double.cancels)
    assert gateway.requests[0]["deadline_ms"] == 300


async def test_where_no_gateway_is_that_is_said_long_before_the_deadline(mosquitto: Mosquitto) -> None:
    async with client(mosquitto) as asking, client(mosquitto, group="g") as group:
        one, other = asking.ask("What?", timeout_s=60), group.ask("What?", timeout_s=60)
        with pytest.raises(Aborted, match="the broker knows of no gateway 'n1'") as caught:
            await one.answer()
        assert caught.value.reason == "nobody"
        with pytest.raises(Aborted, match="no gateway of the group 'g' that is online"):
            await other.answer()


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_a_group_without_a_worker_is_given_up_soon_though_other_gateways_are_online(
    mosquitto: Mosquitto, protocol: str
) -> None:
    async with running_double(mosquitto), client(mosquitto, group="g", protocol=protocol) as asking:
        began_s = time.monotonic()
        with pytest.raises(Aborted, match="no gateway of the group 'g' that is online; of others there are") as caught:
            await asking.ask("What?", timeout_s=60).answer()
    assert caught.value.reason == "nobody"
    assert time.monotonic() - began_s < 10


async def test_who_is_said_to_be_online_and_does_not_listen_is_given_up_on_mqtt_5(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto, node="n2") as gateway:
        await gateway.say("edge_vl/n1/status", "online", is_retained=True)
        async with client(mosquitto, protocol="5") as asking:
            with pytest.raises(Aborted, match="'n1' is online, but does not listen to requests"):
                await asking.ask("What?", timeout_s=60).answer()


async def test_that_answers_may_not_be_readable_is_said_long_before_the_deadline(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge_vl.mqtt.attendant._DOUBT_AFTER_S", 0.1)
    async with running_double(mosquitto, silent), client(mosquitto, name="robot") as asking:
        stream = asking.ask("What?", timeout_s=60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.answer(), 1.0)
    (said,) = caplog.messages
    assert "this user may not read edge_vl/n1/response/robot/+" in said


RULES = """
topic readwrite edge_vl/#
user robot
topic write edge_vl/n1/request
topic write edge_vl/n1/cancel
topic read  edge_vl/n1/response/robot/+
topic read  edge_vl/n1/status
topic read  edge_vl/n1/info
"""


async def test_under_access_rules_a_user_is_heard_by_its_own_name_and_told_what_it_may_not(tmp_path: Path) -> None:
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    users, rules = tmp_path / "users", tmp_path / "rules"
    make_user = ["mosquitto_passwd", "-b", "-c", str(users), "robot", "pw"]
    await asyncio.to_thread(subprocess.run, make_user, check=True)
    rules.write_text(RULES)
    with running_mosquitto(tmp_path, options=[f"password_file {users}", f"acl_file {rules}"]) as broker:
        url = f"mqtt://robot@127.0.0.1:{broker.port}"
        async with running_double(broker):
            async with Client(url, node="n1", password="pw") as asking:
                assert (await asking.ask("What?").answer()).text == "two words"
            async with Client(url, node="n1", password="pw", name="arm") as deaf:
                with pytest.raises(DeadlineExceeded, match=r"may not read edge_vl/n1/response/arm/\+ by the broker's"):
                    await deaf.ask("What?", timeout_s=0.5).answer()
            async with Client(url, node="n2", password="pw") as misspelt:
                with pytest.raises(BrokerError, match=r"for edge_vl/n2/request \(not authorized: .* is misspelt\)"):
                    await misspelt.ask("What?").answer()


async def test_a_connection_that_was_lost_is_named_when_the_deadline_passes(mosquitto: Mosquitto) -> None:
    async with client(mosquitto) as asking:
        async with running_double(mosquitto, silent) as gateway:
            stream = asking.ask("What?", timeout_s=1.5)
            await gateway.until(lambda double: bool(double.requests))
        await asyncio.to_thread(mosquitto.restart)
        with pytest.raises(DeadlineExceeded, match="the connection to the broker was lost in between"):
            await stream.answer()


async def test_what_a_gateway_is_can_be_asked(mosquitto: Mosquitto) -> None:
    info = {
        "v": 1, "node": "n1", "version": "0", "boot_id": "b", "started_at": "2026-01-01T00:00:00+00:00",
        "protocol": "5", "model": "m", "profile": "p", "vision_engine": "onnx", "language_engine": "onnx",
        "cameras": ["door"], "limits": dict.fromkeys(
            ("max_active", "max_waiting", "max_per_client", "max_request_bytes", "max_image_bytes", "max_tokens",
             "default_deadline_ms"), 1),
    }  # fmt: skip
    async with client(mosquitto) as early, running_double(mosquitto) as gateway:
        assert await early.info() is None
        await gateway.say("edge_vl/n1/info", json.dumps(info), is_retained=True)
        async with client(mosquitto) as asking, client(mosquitto, group="g") as group:
            known = await asking.info(10)
            assert known is not None
            assert known.cameras == ["door"]
            assert await group.info() is None


def test_a_client_is_called_as_its_user_where_that_can_be_a_name() -> None:
    assert Client("mqtt://robot@127.0.0.1", node="a").name == "robot"
    assert Client("mqtt://robot@127.0.0.1", node="a", name="arm").name == "arm"
    assert "@" not in Client("mqtt://robot%40home@127.0.0.1", node="a").name


async def test_a_gateway_that_was_offline_before_is_named(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl.mqtt.presence.UNKNOWN_AFTER_S", 0.3)
    async with running_double(mosquitto, silent) as gateway:
        await gateway.say("edge_vl/n1/status", "offline", is_retained=True)
        async with client(mosquitto) as asking:
            with pytest.raises(Aborted, match="the gateway 'n1' is offline"):
                await asking.ask("What?").answer()


async def test_a_gateway_that_dies_while_it_answers_is_waited_for_and_given_up(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vl.mqtt.presence.OFFLINE_GRACE_S", 0.5)
    async with running_double(mosquitto, saying(start(), delta(1, "so far"))) as gateway, client(mosquitto) as asking:
        stream = asking.ask("What?")
        assert await anext(stream) == "so far"
        await gateway.say("edge_vl/n1/status", "offline", is_retained=True)
        with pytest.raises(Aborted, match="the gateway 'n1' is offline") as caught:
            await stream.answer()
    assert (caught.value.reason, caught.value.text) == ("worker_lost", "so far")


async def test_a_gateway_that_comes_back_may_say_itself_what_became_of_it(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto, saying(start())) as gateway, client(mosquitto) as asking:
        stream = asking.ask("What?")
        await gateway.until(lambda double: bool(double.requests))
        await gateway.say("edge_vl/n1/status", "offline", is_retained=True)
        await gateway.say("edge_vl/n1/status", "online", is_retained=True)
        await gateway.send(gateway.requests[0], {"seq": None, "type": "aborted", "reason": "restart"})
        with pytest.raises(Aborted, match="restart"):
            await stream.answer()


async def test_cancel_is_asked_for_and_the_gateways_word_ends_the_stream(mosquitto: Mosquitto) -> None:
    async def reply(gateway: GatewayDouble, request: dict[str, Any]) -> None:
        await gateway.send(request, start(), delta(1, "a"))
        await gateway.until(lambda double: request["id"] in double.cancels)
        await gateway.send(request, {"seq": 2, "type": "aborted", "reason": "cancelled", "text": "ab"})

    async with running_double(mosquitto, reply), client(mosquitto) as asking:
        stream = asking.ask("What?")
        assert await anext(stream) == "a"
        stream.cancel()
        stream.cancel()
        assert await anext(stream) == "b"
        with pytest.raises(Aborted, match="cancelled"):
            await anext(stream)


async def leave_by_break(stream: RemoteStream) -> None:
    async for _ in stream:
        break


async def leave_by_with(stream: RemoteStream) -> None:
    async with stream:
        await anext(stream)


async def leave_by_timeout(stream: RemoteStream) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.answer(), 0.2)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_with, leave_by_timeout])
async def test_who_leaves_a_stream_early_cancels_it(mosquitto: Mosquitto, leave: Callable[[RemoteStream], Any]) -> None:
    async with running_double(mosquitto, saying(start(), delta(1, "a"))) as gateway, client(mosquitto) as asking:
        stream = asking.ask("What?")
        id = stream.id
        await leave(stream)
        del stream
        gc.collect()
        await gateway.until(lambda double: id in double.cancels)
        assert (await gateway_says_two_words(asking, gateway)).text == "two words"


async def gateway_says_two_words(asking: Client, gateway: GatewayDouble) -> Any:
    gateway._reply = two_words
    return await asking.ask("What?").answer()


async def test_an_interrupt_in_a_shell_cancels_the_request(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto, saying(start(), delta(1, "so far"))) as gateway:
        url = f"mqtt://127.0.0.1:{mosquitto.port}"
        shell = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edge_vl", "mqtt", "ask", url, "n1", "What?"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert shell.stdout is not None
        assert await asyncio.wait_for(shell.stdout.read(6), 20) == b"so far"
        shell.send_signal(signal.SIGINT)
        _, said = await asyncio.wait_for(shell.communicate(), 10)
        assert (shell.returncode, said) == (7, b"edge-vl: cancelled\n")
        await gateway.until(lambda double: double.cancels == [gateway.requests[0]["id"]])


async def test_a_program_without_an_event_loop_asks_with_one_call(mosquitto: Mosquitto) -> None:
    pieces: list[str] = []
    async with running_double(mosquitto):
        url = f"mqtt://127.0.0.1:{mosquitto.port}"
        answer = await asyncio.to_thread(edge_vl.mqtt.ask, url, "n1", "What?", on_text=pieces.append, timeout_s=9)
    assert (answer.text, "".join(pieces)) == ("two words", "two words")


async def test_the_one_call_takes_what_a_client_takes(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto) as gateway:
        await asyncio.to_thread(
            functools.partial(
                edge_vl.mqtt.ask, f"mqtt://127.0.0.1:{mosquitto.port}/other", "n1", "What?",
                prefix="edge_vl", name="robot", images={"camera": "door"}, max_tokens=9, seed=4, timeout_s=8,
            )
        )  # fmt: skip
    (request,) = gateway.requests
    assert (request["client"], request["images"], request["max_tokens"]) == ("robot", [{"camera": "door"}], 9)
    with pytest.raises(RequestError, match="either a node or a group"):
        await asyncio.to_thread(edge_vl.mqtt.ask, "127.0.0.1", "n1", "What?", group="g")


async def test_closing_the_client_cancels_what_waits(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto, silent) as gateway:
        async with client(mosquitto) as asking:
            stream = asking.ask("What?")
            await gateway.until(lambda double: bool(double.requests))
        with pytest.raises(Aborted, match="cancelled"):
            await stream.answer()
        await gateway.until(lambda double: double.cancels == [stream.id])
        with pytest.raises(RequestError, match="not connected"):
            asking.ask("What?")


async def test_a_broker_that_restarts_does_not_end_the_client(mosquitto: Mosquitto) -> None:
    async with client(mosquitto) as asking:
        async with running_double(mosquitto):
            assert (await asking.ask("What?").answer()).text == "two words"
        await asyncio.to_thread(mosquitto.restart)
        async with running_double(mosquitto):
            # Perhaps asked before the client is connected again: the request waits for that.
            assert (await asking.ask("And now?").answer()).text == "two words"


async def test_a_broker_that_is_not_there_is_said_at_once() -> None:
    began_s = time.monotonic()
    with pytest.raises(BrokerError, match="cannot be reached") as caught:
        async with Client(f"mqtt://127.0.0.1:{free_port()}", node="n1"):
            pass
    assert caught.value.reason == "unreachable"
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"question": ""}, r"^question should be a text of 1 to 16384 characters, not an empty text$"),
        ({"question": "  "}, r"^question holds no word$"),
        ({"question": b"x"}, r"^question "),
        ({"question": object()}, r"request"),
        ({"question": "x", "timeout_s": 0}, "timeout_s"),
        ({"question": "x", "timeout_s": float("nan")}, "timeout_s"),
        ({"question": "x", "max_frame_age_s": -1}, "max_frame_age_s"),
        ({"question": "x", "max_tokens": 0}, r"^max_tokens should be a whole number from 1 to 32768, not"),
        ({"question": "x", "max_tokens": 40_000}, r"^max_tokens should be a whole number from 1 to 32768, not"),
        ({"question": "x", "temperature": -1}, r"^temperature should be a number from 0 to 100, not"),
        ({"question": "x", "temperature": float("nan")}, "temperature"),
        ({"question": "x", "conversation": "no spaces"}, "conversation"),
        ({"question": "x", "seed": 1 << 70}, "seed"),
        ({"question": "x", "images": [{"url": "http://x"}]}, "picture 1"),
        ({"question": "x", "images": [{"camera": "a"}] * 17}, "images"),
    ],
)
async def test_what_makes_no_sense_is_refused_here(mosquitto: Mosquitto, fields: dict[str, Any], words: str) -> None:
    async with client(mosquitto) as asking:
        with pytest.raises(RequestError, match=words):
            asking.ask(**fields)


async def test_a_picture_that_is_none_ends_the_stream(mosquitto: Mosquitto, tmp_path: Path) -> None:
    async with running_double(mosquitto) as gateway, client(mosquitto) as asking:
        with pytest.raises(ImageError, match=r"picture 1 .*missing.jpg"):
            await asking.ask("What?", images=[tmp_path / "missing.jpg"]).answer()
    assert not gateway.requests


async def test_a_picture_that_is_too_large_for_the_broker_ends_its_own_request_only(tmp_path: Path) -> None:
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    large = np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8)
    with running_mosquitto(tmp_path, options=["message_size_limit 50000"]) as broker:
        async with running_double(broker), client(broker) as asking:
            with pytest.raises(BrokerError, match=r"the largest has \d+ bytes; it may allow less"):
                await asking.ask("What?", images=[large], timeout_s=20).answer()
            assert (await asking.ask("What?").answer()).text == "two words"


def test_a_client_asks_one_node_or_one_group() -> None:
    for options in ({}, {"node": "a", "group": "b"}, {"node": "a/b"}, {"node": "a", "name": "b c"}):
        with pytest.raises(RequestError):
            Client("127.0.0.1", **options)  # type: ignore[arg-type]


def test_importing_the_package_does_not_load_the_library() -> None:
    code = "import edge_vl.mqtt, sys; print([name for name in ('aiomqtt', 'paho', 'msgspec') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['msgspec'] = None; from edge_vl.mqtt import Client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("install it with: pip install 'edge-vl[mqtt]'")
