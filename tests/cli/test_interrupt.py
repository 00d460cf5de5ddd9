"""Signals: raised again where native code drops them, never while cleaning up, followed from the start."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_DROPS = """
import ctypes, signal, sys, time
from edge_vl.cli.interrupt import Interrupt, Interrupts, normal_end

def drop(number=signal.SIGINT):
    "Take a signal within native code that drops whatever Python raises there."
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(number))()

interrupts = Interrupts()
interrupts.install()
"""

_COMMAND = """
import ctypes, runpy, signal, sys

class At:
    "Take a signal while a module is looked for; as native code does, or as Python does."
    def find_spec(self, name, path=None, target=None):
        if name == NAME and self in sys.meta_path:
            sys.meta_path.remove(self)
            take = lambda: signal.raise_signal(NUMBER)
            ctypes.CFUNCTYPE(None)(take)() if IS_DROPPED else take()

sys.meta_path.insert(0, At())
sys.argv = ["edge-vl", *ARGUMENTS]
runpy.run_module("edge_vl", run_name="__main__")
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def _command(
    arguments: list[str], at: str, *, is_dropped: bool, number: int, before: str = ""
) -> subprocess.CompletedProcess[str]:
    facts = f"NAME, IS_DROPPED, NUMBER, ARGUMENTS = {at!r}, {is_dropped}, {int(number)}, {arguments!r}\n"
    return _run(before + facts + _COMMAND)


def test_an_interrupt_that_native_code_drops_is_raised_again() -> None:
    done = _run(
        _DROPS
        + """
drop()
print("dropped", flush=True)
try:
    time.sleep(30)
except Interrupt:
    print("raised again")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "dropped\nraised again\n", "")


def test_it_is_raised_until_somebody_accepts_it() -> None:
    done = _run(
        _DROPS
        + """
drop()
for _ in range(3):
    try:
        time.sleep(30)
    except Interrupt:
        pass
with normal_end():
    time.sleep(30)
time.sleep(0.6)
interrupts.check()
print("quiet")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "quiet\n", "")


def test_cleaning_up_is_not_interrupted() -> None:
    done = _run(
        _DROPS
        + """
class Part:
    def __enter__(self): pass
    def __exit__(self, *what):
        time.sleep(0.4)
        try:
            raise OSError
        except OSError:
            time.sleep(0.4)
        print("cleaned up")

with normal_end():
    try:
        with Part():
            signal.raise_signal(signal.SIGTERM)
    finally:
        time.sleep(0.4)
        print("all of it")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cleaned up\nall of it\n", "")


def test_a_second_signal_ends_the_process_at_once() -> None:
    done = _run(
        _DROPS
        + """
try:
    drop()
    time.sleep(30)
finally:
    signal.raise_signal(signal.SIGTERM)
    print("still there")
"""
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_signal_after_the_end_of_a_command_keeps_its_exit_code() -> None:
    done = _run(_DROPS + 'interrupts.end(3); print("said"); signal.raise_signal(signal.SIGINT); print("not said")')
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_ends_in_order_although_its_interrupt_was_dropped_while_loading(number: int) -> None:
    done = _command(["watch", "synthetic", "What?", "--json"], "edge_vl.sources.open", is_dropped=True, number=number)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Interrupt" not in done.stderr


@pytest.mark.parametrize("at", ["edge_vl.runtime", "edge_vl.cli.chat"])
def test_a_command_that_fails_after_its_interrupt_was_dropped_is_cancelled(at: str) -> None:
    late = "import edge_vl.cli.interrupt; edge_vl.cli.interrupt.AGAIN_S = 3600.0\n"  # it is not raised again
    picture = "edge_vl/bundled_model"  # a folder, which is no picture
    done = _command(["ask", picture, "What?"], at, is_dropped=True, number=signal.SIGINT, before=late)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "edge-vl: cancelled\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", ["edge_vl.cli.app", "numpy", "PIL", "typer"])
def test_a_signal_while_the_program_is_loaded_ends_it_without_a_traceback(at: str, number: int) -> None:
    done = _command(["watch", "synthetic", "What?"], at, is_dropped=False, number=number)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "edge-vl: cancelled\n")


@pytest.mark.parametrize("command", ["watch synthetic What?", "--version", "models"])
def test_a_command_whose_output_is_closed_says_so(command: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m edge_vl {command} >&-', sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr
