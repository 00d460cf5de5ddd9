"""Runs a coroutine as the work of a command, and ends it in order at SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from edge_vl.cli.interrupt import Interrupt

__all__ = ["run_in_event_loop"]

T = TypeVar("T")


def run_in_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run it in an event loop of its own.

    The first SIGINT or SIGTERM cancels it, so that it cleans up, such as cancelling a question at a gateway. The second
    one, of either number, ends the process at once, whatever it does.

    Raises:
        Interrupt: a signal has cancelled it.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    has_come = False

    async def follow_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def end() -> None:
            nonlocal has_come
            has_come = True
            for number in handlers:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
            if task is not None:
                task.cancel()

        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; not the main thread
            for number in handlers:
                loop.add_signal_handler(number, end)
        return await work

    try:
        return asyncio.run(follow_signals())
    except asyncio.CancelledError:
        raise Interrupt from None
    finally:
        if not has_come:
            with contextlib.suppress(ValueError):  # not the main thread
                for number, handler in handlers.items():
                    signal.signal(number, handler)
