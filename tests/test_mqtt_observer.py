from __future__ import annotations

import json
from typing import Any

import pytest

from tests.mosquitto import Mosquitto
from tests.mqtt_observer import PROTOCOLS, Heard, Observer, read_object, stream_faults, text_of

START: dict[str, Any] = {"type": "start", "node": "n", "boot_id": "b", "model": "m"}
END: dict[str, Any] = {
    "type": "end",
    "text": "a red circle",
    "finish_reason": "stop",
    "usage": {"completion_tokens": 4},
}
GOOD: list[dict[str, Any]] = [
    START,
    {"type": "delta", "text": "a red"},
    {"type": "delta", "text": " circle", "tokens": 2},
    END,
]


def heard(messages: list[dict[str, Any]], topic: str = "t") -> list[Heard]:
    return [
        Heard(topic, json.dumps({"v": 1, "id": "x", "seq": seq, "t_ms": seq, **message}).encode())
        for seq, message in enumerate(messages)
    ]


def faults(messages: list[dict[str, Any]]) -> str:
    return "; ".join(stream_faults("x", heard(messages)))


def test_a_right_stream_has_no_faults() -> None:
    assert stream_faults("x", heard(GOOD)) == []
    assert text_of(heard(GOOD)) == "a red circle"


def test_a_stream_may_consist_of_an_error_alone() -> None:
    error = {"type": "error", "error": {"type": "invalid_request", "message": "no"}}
    assert faults([error]) == ""
    assert faults([START, error]) == ""
    with pytest.raises(ValueError, match="no end"):
        text_of(heard([error]))


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "0 terminal messages"),
        (GOOD[:-1], "0 terminal messages"),
        ([*GOOD, END], "2 terminal messages"),
        ([START, END, {"type": "delta", "text": ""}], "after the terminal"),
        ([START, GOOD[2], END], "deltas are"),
        ([*GOOD[1:]], "start is not the first"),
        ([{"seq": 1, **START}, END], "seq is"),
        ([START, {"type": "delta", "text": "a", "seq": 3}, END], "seq is"),
        ([{**START, "t_ms": 5}, {**END, "t_ms": 4}], "t_ms goes back"),
        ([{**START, "t_ms": 0.5}, END], "t_ms is not"),
        ([{**START, "id": "y"}, END], "id is 'y'"),
        ([{**START, "v": 2}, END], "v is not 1"),
        ([START, {**END, "usage": {"completion_tokens": 1}}, GOOD[1]], "after the terminal"),
        ([START, GOOD[1], GOOD[2], {**END, "usage": {"completion_tokens": 2}}], "3 tokens in deltas"),
        ([START, GOOD[1], {"type": "aborted", "reason": "cancelled", "text": "a blue"}], "aborted says"),
        ([START, {"type": "aborted", "reason": "cancelled", "seq": None}], "seq is not a whole number"),
        ([START, {"type": "unheard", "seq": 1}, {**END, "seq": 2}], "unknown type"),
    ],
)
def test_what_is_wrong_with_a_stream_is_said(messages: list[dict[str, Any]], words: str) -> None:
    assert words in faults(messages)


def test_another_worker_does_not_know_the_number() -> None:
    assert faults([START, GOOD[1], {"type": "aborted", "reason": "worker_lost", "seq": None}]) == ""


def test_a_repeat_is_a_fault_unless_a_connection_was_lost() -> None:
    messages = heard(GOOD)
    repeated = [messages[0], messages[1], messages[0], messages[1], *messages[2:], messages[3]]
    assert "came twice" in "; ".join(stream_faults("x", repeated))
    assert stream_faults("x", repeated, may_repeat=True) == []
    changed = heard([*GOOD[:-1], {**END, "finish_reason": "length"}])
    assert "two different messages with seq 3" in "; ".join(
        stream_faults("x", [*messages, changed[3]], may_repeat=True)
    )


def test_what_is_no_message_of_a_stream_is_a_fault() -> None:
    for payload in (b"", b"[]", b"\xff", b'{"v":1,"v":1}', b'{"v":NaN}'):
        with pytest.raises(ValueError, match=r".*"):
            read_object(payload)
        assert "no message" in "; ".join(stream_faults("x", [*heard(GOOD), Heard("t", payload)]))


def test_a_stream_is_on_one_topic_with_qos_1_and_not_retained() -> None:
    messages = heard(GOOD)
    assert "several topics" in "; ".join(stream_faults("x", [*messages[:3], *heard(GOOD, "u")[3:]]))
    wrong = Heard("t", messages[3].payload, qos=0, is_retained=True)
    assert "QoS 0, retained: True" in "; ".join(stream_faults("x", [*messages[:3], wrong]))


def test_the_check_of_the_caller_is_asked_about_every_message() -> None:
    found = stream_faults("x", heard(GOOD), check=lambda message: ["strange"] if message["type"] == "delta" else [])
    assert found == ["strange", "strange"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_it_hears_what_a_broker_delivers(mosquitto: Mosquitto, protocol: Any) -> None:
    with Observer(mosquitto.port, ["a/#"], protocol=protocol) as observer:
        observer.publish("a/kept", b"before", is_retained=True)
        observer.publish("a/b", {"id": "x", "type": "end"}, response_topic="a/r", correlation=b"x")
        observer.publish("b", b"elsewhere")
        assert observer.wait_terminal("x") == {"id": "x", "type": "end"}
        assert [found.topic for found in observer.heard()] == ["a/kept", "a/b"]
        assert observer.heard("a/b")[0].correlation == (b"x" if protocol == "5" else None)
        assert observer.ids() == ["x"]
        observer.forget("x")
        assert observer.stream("x") == []
        assert [found.topic for found in observer.heard()] == ["a/kept"]
    with Observer(mosquitto.port, ["a/#"], protocol=protocol) as late:
        assert late.wait_payload("a/kept", b"before").is_retained
        with pytest.raises(AssertionError, match="no terminal message"):
            late.wait_terminal("x", 0.05)
        with pytest.raises(AssertionError, match="no a cat"):
            late.wait_for(lambda found: found.topic == "cat", "a cat", 0.05)


def test_it_comes_back_after_the_broker_was_restarted(mosquitto: Mosquitto) -> None:
    with Observer(mosquitto.port, ["#"]) as observer:
        mosquitto.restart(is_kill=True)
        observer.wait_connected(2)
        observer.publish("a", b"again")
        observer.wait_payload("a", b"again")
