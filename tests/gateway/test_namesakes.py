"""Tests of whether another gateway uses the same name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge_vl.gateway.namesakes import Namesakes, NameVerdict
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.node_messages import Info, InfoLimits

EARLY, LATE = "2026-01-01T10:00:00.000+00:00", "2026-01-01T10:00:00.001+00:00"

LIMITS = InfoLimits(
    max_active=1,
    max_waiting=1,
    max_per_client=1,
    max_request_bytes=1,
    max_image_bytes=1,
    max_tokens=1,
    default_deadline_ms=1,
)


def info(boot_id: str, started_at: str) -> bytes:
    return encode(
        Info(
            node="pi",
            version="1",
            boot_id=boot_id,
            started_at=started_at,
            protocol="5",
            model="m",
            profile="p",
            vision_engine="",
            language_engine="x",
            limits=LIMITS,
        )
    )


def heard(gateway: Namesakes, payload: bytes, now_s: float = 100.0) -> NameVerdict:
    return gateway.judge(payload, now_s, is_kept=False)


def test_the_later_one_asks_twice_and_goes_and_the_earlier_one_answers_each_time() -> None:
    first, second = Namesakes("a", EARLY), Namesakes("b", LATE)
    assert [heard(second, info("a", EARLY)) for _ in range(3)] == ["older", "older", "leave"]
    assert [heard(first, info("b", LATE)) for _ in range(3)] == ["younger"] * 3


def test_of_two_that_started_in_the_same_moment_one_goes() -> None:
    one, other = Namesakes("a", EARLY), Namesakes("b", EARLY)
    assert (heard(one, info("b", EARLY)), heard(other, info("a", EARLY))) == ("younger", "older")


def test_the_same_moment_in_another_time_zone_is_the_same() -> None:
    assert heard(Namesakes("b", EARLY), info("a", "2026-01-01T12:00:00.000+02:00")) == "older"
    assert heard(Namesakes("b", EARLY), info("c", "2026-01-01T12:00:00.000+02:00")) == "younger"


def test_what_the_broker_kept_of_the_last_run_is_no_other_gateway() -> None:
    gateway = Namesakes("b", LATE)
    assert [gateway.judge(info("a", EARLY), 1.0, is_kept=True) for _ in range(5)] == ["nothing"] * 5
    assert gateway.other is None


def test_its_own_words_are_known() -> None:
    assert heard(Namesakes("a", EARLY), info("a", EARLY)) == "own"


def test_an_old_info_that_is_delivered_again_and_again_ends_nothing() -> None:
    gateway = Namesakes("b", LATE)
    assert [heard(gateway, info("a", EARLY), 60.0 * minute) for minute in range(100)] == ["older"] * 100


def test_a_run_that_was_heard_once_and_then_another_one_end_nothing() -> None:
    gateway = Namesakes("z", LATE)
    assert [heard(gateway, info(f"a{number}", EARLY)) for number in range(100)] == ["older"] * 100


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(info("a", EARLY)), **fields}).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"\xff",
        changed(started_at="yesterday"),
        changed(started_at="0001-01-01T00:00:00"),
        changed(boot_id=5),
        b"[" * 10_000,
    ],
)
def test_what_is_no_info_says_nothing(payload: bytes) -> None:
    gateway = Namesakes("b", LATE)
    assert [heard(gateway, payload) for _ in range(3)] == ["nothing"] * 3
