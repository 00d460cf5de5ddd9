from __future__ import annotations

import asyncio
import threading

import pytest

from edge_vl.mqtt.dialer import Dialer


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "edge_vl-mqtt-dial"]


async def test_what_a_call_raises_is_raised_where_it_is_waited_for() -> None:
    def dial() -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        await Dialer().run(dial, lambda: None)


async def test_while_a_call_hangs_no_second_one_begins_and_what_came_too_late_is_discarded() -> None:
    hang, discarded, calls = threading.Event(), threading.Event(), []

    def dial() -> None:
        calls.append(1)
        hang.wait(10)

    dialer = Dialer()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await dialer.run(dial, discarded.set)
    assert len(calls) == 1
    assert len(names()) == 1
    assert not discarded.is_set()
    hang.set()
    await dialer.run(lambda: calls.append(2), lambda: None)
    assert calls == [1, 2]
    assert discarded.is_set()


def test_a_call_that_outlives_its_loop_is_discarded() -> None:
    hang, discarded = threading.Event(), threading.Event()

    def dial() -> None:
        hang.wait(10)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await Dialer().run(dial, discarded.set)

    asyncio.run(give_up())
    hang.set()
    assert discarded.wait(5)


async def test_a_failure_that_comes_too_late_is_nobodys() -> None:
    hang = threading.Event()
    discarded: list[int] = []

    def dial() -> None:
        hang.wait(10)
        raise OSError("late")

    dialer = Dialer()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await dialer.run(dial, lambda: discarded.append(1))
    hang.set()
    await dialer.run(lambda: None, lambda: None)
    assert discarded == []
