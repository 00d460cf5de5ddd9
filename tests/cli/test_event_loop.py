"""A coroutine as the work of a command: ended in order by one signal, at once by the second."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from edge_vl.cli.event_loop import run_in_event_loop

_CODE = """
import asyncio, signal
from edge_vl.cli.event_loop import run_in_event_loop
from edge_vl.cli.interrupt import Interrupts, normal_end

Interrupts().install()

async def disturb():
    while True:
        await asyncio.sleep(0)

async def work():
    loop = asyncio.get_running_loop()
    disturbing = asyncio.create_task(disturb())
    loop.call_later(0.1, signal.raise_signal, FIRST)
    try:
        await asyncio.sleep(30)
    finally:
        if SECOND is not None:
            loop.call_later(0.1, signal.raise_signal, SECOND)
        await asyncio.sleep(0.5)
        print("goodbye", flush=True)

with normal_end():
    run_in_event_loop(work())
"""


def _run(first: int, second: int | None) -> subprocess.CompletedProcess[str]:
    facts = f"FIRST, SECOND = {int(first)}, {None if second is None else int(second)}\n"
    return subprocess.run(
        [sys.executable, "-c", facts + _CODE], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(first: int) -> None:
    done = _run(first, None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "goodbye\n", "")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_process_at_once(first: int, second: int) -> None:
    done = _run(first, second)
    assert (done.returncode, done.stdout, done.stderr) == (-second, "", "")


def test_without_a_signal_its_result_comes_back_and_the_handlers_are_as_before() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run_in_event_loop(work()) == 7
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
