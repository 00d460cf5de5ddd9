"""The command `edge-vl`."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from types import FrameType

from edge_vl.cli.interrupt import Interrupt

__all__ = ["main", "run"]

_BY_TYPER = {1: 7, 130: 7}
"""Typer's own codes for a reader that went away and for an interrupt, and ours for both."""

_WRITE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def main() -> None:
    """Run the command line and leave with its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    if sys.stdin is not None:
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = run()
    _drop_output()
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
    raise Interrupt


def run(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: what stands behind `edge-vl`; None: the process's own.

    Returns:
        The exit code.
    """
    try:
        from edge_vl.cli.app import app
        from edge_vl.cli.exit_codes import CANCELLED, INTERNAL, exit_code
        from edge_vl.errors import EdgeVLError
    except Interrupt:
        return 7
    try:
        app(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        return _flushed(_BY_TYPER.get(code, code))
    except EdgeVLError as error:
        _complain(str(error))
        return exit_code(error)
    except (Interrupt, KeyboardInterrupt):
        _complain("cancelled")
        return CANCELLED
    except Exception as error:  # the last border
        if isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRNOS:
            _complain(f"the output cannot be written: {error.strerror}")
            return INTERNAL
        if sys.stderr is not None:
            traceback.print_exc()
        _complain("this is a defect of edge-vl; please report the lines above")
        return INTERNAL
    return 0


def _complain(text: str) -> None:
    if sys.stderr is not None:
        print(f"edge-vl: {text}", file=sys.stderr)


def _flushed(code: int) -> int:
    """Return the code, or another one if what was printed cannot be written."""
    if sys.stdout is None:
        return code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return 7
    except OSError as error:
        _complain(f"the output cannot be written: {error.strerror}")
        return 70
    return code


def _can_write() -> bool:
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _drop_output() -> None:
    """Let go of output that cannot be written, so that Python does not complain of it once more at its end."""
    if sys.stdout is not None and not _can_write():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
