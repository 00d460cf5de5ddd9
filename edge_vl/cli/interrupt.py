"""SIGINT and SIGTERM while a command runs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Interrupt", "Interrupts", "normal_end"]

AGAIN_S = 0.25
"""How long after a signal it is looked whether its exception still is on its way, and how often from then on."""

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupt(BaseException):
    """SIGINT or SIGTERM; no KeyboardInterrupt, which Typer would take for itself."""

    def __init__(self, accept: Callable[[], object] | None = None) -> None:
        """Keep what to call when it has been taken for what it is."""
        super().__init__()
        self._accept = accept

    def accept(self) -> None:
        """Note that the signal has had its effect, so that it is not raised again."""
        if self._accept is not None:
            self._accept()


class Interrupts:
    """Raises `Interrupt` in the main thread when a signal comes, until somebody accepts it.

    Native code that calls Python, such as an extension module while it is imported, may drop an exception that a signal
    handler raised within. So the exception is raised again every 0.25 s until it is accepted or the command has ended,
    but not while one is being handled: cleaning up is not interrupted. A second signal from outside ends the process at
    once, whatever it does.

    One instance for a process, on its main thread.
    """

    def __init__(self) -> None:
        """Begin with no signal; `install` starts to follow them."""
        self._is_pending = False
        self._is_armed = False
        self._code: int | None = None

    def install(self) -> None:
        """Follow SIGINT and SIGTERM from now on. Exceptions that native code drops are dropped silently."""
        for number in _NUMBERS:
            signal.signal(number, self._take)
        unraisable = sys.unraisablehook

        def hook(dropped: Any) -> None:
            if not (isinstance(dropped.exc_type, type) and issubclass(dropped.exc_type, Interrupt)):
                unraisable(dropped)

        sys.unraisablehook = hook

    def check(self) -> None:
        """Raise `Interrupt` if a signal has come that nobody has accepted."""
        if self._is_pending:
            raise Interrupt(self.accept)

    def accept(self) -> None:
        """Note that the signal has had its effect."""
        self._is_pending = False
        if self._is_armed:
            self._arm(0.0)

    def end(self, code: int) -> None:
        """Note that the command has ended: a signal that comes now ends the process with this exit code."""
        self.accept()
        self._code = code

    def _take(self, number: int, frame: object) -> None:
        if self._code is not None:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(self._code)
        for each in _NUMBERS:
            signal.signal(each, signal.SIG_DFL)  # the second one ends the process at once
        self._is_pending = True
        self._arm(AGAIN_S)
        raise Interrupt(self.accept)

    def _again(self, number: int, frame: object) -> None:
        if self._is_pending and not _is_interrupt_handled():
            raise Interrupt(self.accept)

    def _arm(self, every_s: float) -> None:
        if hasattr(signal, "setitimer"):  # not on Windows
            self._is_armed = every_s > 0
            if every_s:
                signal.signal(signal.SIGALRM, self._again)
            signal.setitimer(signal.ITIMER_REAL, every_s, every_s)


@contextlib.contextmanager
def normal_end() -> Iterator[None]:
    """Take SIGINT or SIGTERM for the normal end of what the body does."""
    try:
        yield
    except Interrupt as interrupt:
        interrupt.accept()
    except KeyboardInterrupt:
        pass


def _is_interrupt_handled() -> bool:
    """Say whether an `except` or `finally` of this thread is at work on an `Interrupt`."""
    error = sys.exception()
    while error is not None and not isinstance(error, Interrupt):
        error = error.__context__
    return error is not None
