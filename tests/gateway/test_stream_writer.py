from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from edge_vl.errors import BrokerError
from edge_vl.gateway.stream_writer import StreamWriter
from edge_vl.mqtt.coalescer import Coalescer
from edge_vl.mqtt.messages import End, ErrorFacts
from edge_vl.mqtt.packet import Outbound
from tests.mqtt_observer import Heard, read_object, stream_faults


class Link:
    """Takes messages, and confirms them when it is told to."""

    def __init__(self) -> None:
        self.posted: list[tuple[Outbound, str, asyncio.Future[float]]] = []

    def post(self, message: Outbound, keep: str) -> asyncio.Future[float]:
        receipt: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.posted.append((message, keep, receipt))
        return receipt

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [read_object(outbound.payload) for outbound, _, receipt in self.posted if not receipt.cancelled()]

    @property
    def faults(self) -> list[str]:
        heard = [Heard(outbound.topic, outbound.payload) for outbound, _, _ in self.posted]
        return stream_faults("x", heard, may_repeat=any(receipt.cancelled() for _, _, receipt in self.posted))

    async def confirm_all(self) -> None:
        for _, _, receipt in self.posted:
            if not receipt.done():
                receipt.set_result(0.02)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def writer_on(
    link: Link, window_s: float = 0.0, on_terminal: Callable[..., object] = lambda message, future: None
) -> StreamWriter:
    now_s = time.monotonic()
    return StreamWriter(
        link.post,
        Coalescer(lambda: window_s),
        id="x",
        topic="edge_vl/x",
        received_s=now_s,
        expires_s=now_s + 60,
        correlation=b"x",
        on_terminal=on_terminal,
    )


def end(writer: StreamWriter, text: str, num_tokens: int) -> None:
    usage = {"completion_tokens": num_tokens}
    writer.end(
        lambda seq, t_ms: End(id="x", seq=seq, t_ms=t_ms, text=text, finish_reason="stop", usage=usage, timings={})
    )


async def test_messages_are_numbered_and_nothing_follows_the_end() -> None:
    link = Link()
    writer = writer_on(link)
    writer.start("gw", "1", "tiny")
    for text in "ab":
        writer.add(text)
    end(writer, "ab", 2)
    writer.add("c")
    writer.error(ErrorFacts("engine", "too late"))
    writer.abort("cancelled")
    assert link.faults == []
    assert [message["type"] for message in link.messages] == ["start", "delta", "delta", "end"]
    assert [keep for _, keep, _ in link.posted] == ["terminal", "delta", "delta", "terminal"]


async def test_on_a_slow_link_text_is_gathered_but_never_the_first() -> None:
    link = Link()
    writer = writer_on(link, window_s=0.03)
    writer.start("gw", "1", "tiny")
    for text in "abcd":
        writer.add(text)
    assert [message.get("text") for message in link.messages] == [None, "a"]
    await link.confirm_all()
    await asyncio.sleep(0.06)
    assert [message.get("text") for message in link.messages] == [None, "a", "bcd"]
    writer.add("e")
    end(writer, "abcde", 5)
    assert link.faults == []
    assert [message.get("tokens") for message in link.messages[1:-1]] == [1, 3, 1]


async def test_while_the_broker_is_away_text_grows_in_one_piece() -> None:
    link = Link()
    writer = writer_on(link, window_s=0.001)
    writer.start("gw", "1", "tiny")
    for number in range(200):
        writer.add("x")
        if number % 50 == 0:
            await asyncio.sleep(0.005)
    assert len(link.posted) <= 3
    await link.confirm_all()
    end(writer, "x" * 200, 200)
    assert link.faults == []


async def test_what_is_held_is_sent_in_order_and_what_was_not_confirmed_is_sent_again_as_it_was() -> None:
    link = Link()
    writer = writer_on(link)
    writer.hold()
    writer.start("gw", "1", "tiny")
    for text in "abc":
        writer.add(text)
    assert link.posted == []
    writer.resume()
    writer.add("d")
    writer.hold()
    writer.add("e")
    end(writer, "abcde", 5)
    assert len(link.posted) == 3
    writer.resume()
    assert link.faults == []
    assert [message.get("text") for message in link.messages] == [None, "abc", "d", "e", "abcde"]


async def test_what_is_dropped_is_taken_back_and_has_no_end() -> None:
    link = Link()
    writer = writer_on(link)
    writer.start("gw", "1", "tiny")
    await link.confirm_all()
    writer.add("a")
    writer.hold()
    writer.drop()
    end(writer, "a", 1)
    writer.resume()
    assert [message["type"] for message in link.messages] == ["start"]


async def test_the_median_of_the_round_trips_is_what_publishing_takes() -> None:
    link = Link()
    assert writer_on(link).publish_s is None
    writer = writer_on(link)
    writer.start("gw", "1", "tiny")
    writer.add("a")
    await link.confirm_all()
    assert writer.publish_s == 0.02
    end(writer, "a", 1)


REFUSED = BrokerError("too large", reason="refused")


async def refuse(link: Link) -> None:
    """Let what is under way be undeliverable."""
    for _, _, receipt in link.posted:
        if not receipt.done():
            receipt.set_exception(REFUSED)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def delivered(link: Link) -> list[dict[str, Any]]:
    return [
        read_object(outbound.payload)
        for outbound, _, receipt in link.posted
        if not receipt.done() or (not receipt.cancelled() and receipt.exception() is None)
    ]


@pytest.mark.parametrize("is_held", [False, True])
async def test_an_end_that_the_broker_does_not_take_becomes_a_small_error_with_its_number(is_held: bool) -> None:
    link = Link()
    told: list[str] = []
    writer = writer_on(link, on_terminal=lambda message, future: told.append(type(message).__name__))
    writer.start("gw", "1", "tiny")
    writer.add("a")
    await link.confirm_all()
    end(writer, "a" * 5000, 1)
    if is_held:
        link.posted[-1][2].set_exception(REFUSED)
        writer.hold()
        await asyncio.sleep(0)
        assert [message["type"] for message in delivered(link)] == ["start", "delta"]
        writer.resume()
    else:
        await refuse(link)
    last = delivered(link)[-1]
    assert (last["type"], last["seq"], last["error"]["type"]) == ("error", 2, "engine")
    assert "larger than the broker takes" in last["error"]["message"]
    assert len(link.posted[-1][0].payload) < 300
    assert told == ["End", "ErrorMessage"]
    await refuse(link)
    assert len(link.posted) == 4  # it is tried once
    writer.hold()
    writer.resume()
    assert len(link.posted) == 4


async def test_an_error_whose_text_the_broker_does_not_take_is_told_without_it() -> None:
    link = Link()
    writer = writer_on(link)
    writer.start("gw", "1", "tiny")
    await link.confirm_all()
    writer.error(ErrorFacts("deadline_exceeded", "too late"), "a" * 5000)
    await refuse(link)
    last = delivered(link)[-1]
    assert (last["type"], last["seq"], last["error"]["type"]) == ("error", 1, "deadline_exceeded")
    assert last.get("text", "") == ""


async def test_an_end_that_is_given_up_for_want_of_room_or_dropped_is_not_replaced() -> None:
    link = Link()
    writer = writer_on(link)
    writer.start("gw", "1", "tiny")
    end(writer, "a", 1)
    link.posted[-1][2].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(link.posted) == 2
    other = Link()
    writer = writer_on(other)
    writer.start("gw", "1", "tiny")
    await other.confirm_all()
    end(writer, "a", 1)
    other.posted[-1][2].set_exception(REFUSED)
    writer.drop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(other.posted) == 2


async def test_what_was_confirmed_when_it_is_held_is_not_sent_again() -> None:
    link = Link()
    writer = writer_on(link)
    writer.start("gw", "1", "tiny")
    link.posted[0][2].set_result(0.01)  # its callback has not run
    writer.hold()
    writer.resume()
    await asyncio.sleep(0)
    assert len(link.posted) == 1


@pytest.mark.parametrize("is_aborted", [False, True])
async def test_an_end_that_nothing_came_before_is_a_refusal(is_aborted: bool) -> None:
    link = Link()
    writer = writer_on(link)
    if is_aborted:
        writer.abort("shutdown")
    else:
        writer.error(ErrorFacts("overloaded", "no"))
    assert [keep for _, keep, _ in link.posted] == ["refusal"]
    assert link.faults == []


async def test_tokens_are_counted_also_when_their_text_was_gathered_before_it_is_held() -> None:
    link = Link()
    writer = writer_on(link, window_s=60.0)
    for text in "abcd":
        writer.add(text)
    writer.hold()
    writer.add("e")
    writer.resume()
    writer.hold()
    writer.add("f")
    end(writer, "abcdef", 6)
    writer.resume()
    assert [(message["text"], message.get("tokens")) for message in link.messages] == [
        ("a", 1),
        ("bcde", 4),
        ("f", 1),
        ("abcdef", None),
    ]
