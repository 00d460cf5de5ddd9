"""Tests of the asynchronous stream."""

from __future__ import annotations

import asyncio
import gc
import time

import numpy as np
import pytest

from edge_vl import Cancelled, DeadlineExceeded, ImageError
from edge_vl.testing import FakeFault, FakeLatencies
from tests.conftest import OpenFake

PICTURE = np.zeros((20, 30, 3), np.uint8)


async def test_tokens_arrive_asynchronously(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="a red circle")
    stream = runtime.astream(PICTURE, "What is it?")
    assert [token.text async for token in stream] == list("a red circle")
    assert (await stream.answer()).text == "a red circle"


async def test_the_event_loop_goes_on_while_an_answer_is_made(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes" * 10, latencies=FakeLatencies(decode_s=0.005))
    stream = runtime.astream([], "Is it?")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.002)

    ticking = asyncio.create_task(tick())
    await stream.answer()
    ticking.cancel()
    assert ticks > 10


async def test_two_answers_may_be_awaited_together(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    answers = await asyncio.gather(*(runtime.astream(PICTURE, f"{n}?").answer() for n in range(4)))
    assert [answer.text for answer in answers] == ["yes"] * 4


async def test_a_bad_picture_is_reported_when_iteration_begins(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    stream = runtime.astream(b"hello", "Is it?")
    for _ in range(2):
        with pytest.raises(ImageError):
            await stream.answer()


async def test_an_asynchronous_deadline_is_told_at_once(open_fake: OpenFake) -> None:
    fault = FakeFault(stage="encode", kind="hang")
    runtime, _ = open_fake(script="yes", faults=[fault])
    with pytest.raises(DeadlineExceeded):
        await runtime.astream(PICTURE, "Is it?", deadline_s=0.2).answer()
    fault.release.set()


async def test_cancelling_the_task_cancels_the_request(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="y" * 400, latencies=FakeLatencies(decode_s=0.003))
    stream = runtime.astream([], "Is it?")
    task = asyncio.create_task(stream.answer())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await runtime.astream([], "Next?", max_tokens=1).answer()
    assert sum(call.stage == "decode" for call in engine.calls) < 200


async def test_leaving_the_block_cancels(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="y" * 400, latencies=FakeLatencies(decode_s=0.003))
    async with runtime.astream([], "Is it?") as stream:
        await anext(stream)
    with pytest.raises(Cancelled):
        await stream.answer()


async def test_a_stream_closed_before_it_began_never_runs(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    stream = runtime.astream([], "Is it?")
    await stream.aclose()
    with pytest.raises(Cancelled):
        await stream.answer()
    assert not any(call.stage == "prefill" for call in engine.calls)


async def test_a_conversation_streams_asynchronously(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes")
    conversation = runtime.conversation()
    assert (await conversation.astream("First?", PICTURE).answer()).text == "yes"
    assert (await conversation.astream("Second?").answer()).reused["image_units"] == 5


async def test_a_dropped_asynchronous_stream_stops_the_work(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="y" * 400, latencies=FakeLatencies(decode_s=0.003))
    stream = runtime.astream([], "Is it?")
    await anext(stream)
    del stream
    gc.collect()
    await runtime.astream([], "And?", max_tokens=1).answer()
    assert sum(call.stage == "decode" for call in engine.calls) < 100


async def test_an_asynchronous_deadline_counts_from_the_call(open_fake: OpenFake) -> None:
    runtime, engine = open_fake(script="yes")
    stream = runtime.astream([], "Is it?", deadline_s=0.02)
    await asyncio.sleep(0.05)
    with pytest.raises(DeadlineExceeded):
        await stream.answer()
    assert not any(call.stage == "prefill" for call in engine.calls)


async def test_an_asynchronous_deadline_is_kept_while_a_picture_loads(open_fake: OpenFake) -> None:
    class Slow:
        def read(self, size: int = -1) -> bytes:
            time.sleep(1.0)
            return b""

    runtime, _ = open_fake(script="yes")
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await runtime.astream(Slow(), "Is it?", deadline_s=0.1).answer()
    assert time.monotonic() - began_s < 0.9


async def test_two_tasks_that_read_one_stream_both_see_its_end(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="yes" * 10, latencies=FakeLatencies(decode_s=0.001))
    stream = runtime.astream([], "Is it?")
    await anext(stream)
    answers = await asyncio.wait_for(asyncio.gather(stream.answer(), stream.answer()), 20)
    assert {answer.text for answer in answers} == {"yes" * 10}
