"""The command `edge-vl`."""

from __future__ import annotations

import errno
import os
import sys

from edge_vl.cli.interrupt import Interrupt, Interrupts

__all__ = ["main", "run"]

_BY_TYPER = {1: 7, 130: 7}
"""Typer's own codes for a reader that went away and for an interrupt, and ours for both."""

_USAGE, _CANCELLED = 2, 7
"""As in `exit_codes`, which imports more than may be imported before signals are followed."""

_WRITE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def main() -> None:
    """Run the command line and leave with its exit code.

    Before signals are followed, nothing is imported that takes long: a signal that comes earlier ends the process
    without a word, or with a traceback of Python's.
    """
    if sys.stdin is not None:
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    interrupts = Interrupts()
    interrupts.install()
    code = run(interrupts=interrupts)
    _drop_output()
    sys.exit(code)


def run(arguments: list[str] | None = None, *, interrupts: Interrupts | None = None) -> int:
    """Run one command.

    Args:
        arguments: what stands behind `edge-vl`; None: the process's own.
        interrupts: knows of signals that have come; None: nobody follows them.

    Returns:
        The exit code.
    """
    interrupts = interrupts or Interrupts()
    try:
        code = _run(arguments, interrupts)
        interrupts.check()
        interrupts.end(code)
    except (Interrupt, KeyboardInterrupt):
        interrupts.end(_CANCELLED)
        _complain("cancelled")
        return _CANCELLED
    return code


def _run(arguments: list[str] | None, interrupts: Interrupts) -> int:
    if sys.stdout is None:
        _complain("standard output is closed, so there is nowhere to write to; use >/dev/null if nobody is to read it")
        return _USAGE
    from edge_vl.cli.app import app
    from edge_vl.cli.exit_codes import INTERNAL, exit_code
    from edge_vl.errors import EdgeVLError

    try:
        app(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        return _flushed(_BY_TYPER.get(code, code))
    except EdgeVLError as error:
        interrupts.check()
        _complain(str(error))
        return exit_code(error)
    except Exception as error:  # the last border
        interrupts.check()  # what failed may have failed because an interrupt was dropped there
        if isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRNOS:
            _complain(f"the output cannot be written: {error.strerror}")
            return INTERNAL
        if sys.stderr is not None:
            import traceback

            traceback.print_exc()
        _complain("this is a defect of edge-vl; please report the lines above")
        return INTERNAL
    return 0


def _complain(text: str) -> None:
    if sys.stderr is not None:
        from edge_vl.cli.terminal_text import terminal_text

        print(f"edge-vl: {terminal_text(text)}", file=sys.stderr)


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
