"""Tests of the asynchronous watch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl import SourceError
from edge_vl.async_watch import AsyncWatch
from edge_vl.testing import FakeFault
from edge_vl.watch import Watch
from edge_vl.watch_counts import WatchCounts
from tests.conftest import OpenFake

WAIT_S = 20.0


def grey(number: int) -> NDArray[np.uint8]:
    return np.full((20, 30, 3), number, np.uint8)


async def test_every_answer_comes_and_then_the_end(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    async with AsyncWatch(Watch(runtime, map(grey, range(3)), "Is it?", every_frame=True)) as watch:
        seen = []
        async for answer in watch:
            assert watch.frame is not None
            seen.append((answer.text, watch.frame.index))
    assert seen == [("yes", 0), ("yes", 1), ("yes", 2)]
    assert watch.counts == WatchCounts(frames=3, answers=3)
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_wait_that_is_given_up_loses_no_answer_and_does_not_hold_up_the_loop(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="decode", at=0, kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    async with AsyncWatch(Watch(runtime, map(grey, range(2)), "Is it?", every_frame=True)) as watch:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(watch), 0.02)
        fault.release.set()
        frames = []
        async for _ in watch:
            assert watch.frame is not None
            frames.append(watch.frame.index)
    assert frames == [0, 1]


async def test_an_error_of_the_source_is_raised_where_the_answer_is_awaited(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")

    def source() -> Iterator[NDArray[np.uint8]]:
        yield grey(1)
        raise OSError("unplugged")

    async with AsyncWatch(Watch(runtime, source(), "Is it?")) as watch:
        assert (await anext(watch)).text == "yes"
        with pytest.raises(SourceError, match="unplugged"):
            await anext(watch)
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_closing_ends_the_wait_for_a_source_that_hangs(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    gate = threading.Event()

    def source() -> Iterator[NDArray[np.uint8]]:
        gate.wait(WAIT_S)
        yield grey(1)

    watch = AsyncWatch(Watch(runtime, source(), "Is it?"))
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0.02)
    watch.close()
    assert await asyncio.wait_for(waiting, WAIT_S) is None
    assert watch.counts.abandoned == 1
    gate.set()
