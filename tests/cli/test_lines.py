from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edge_vl.cli.lines import LineReader


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a pipe whose other end is standard input."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as stdin:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr("sys.stdin", stdin)
        yield writing


def test_lines_come_one_by_one_however_they_were_written(typing: int) -> None:
    os.write(typing, b"one\ntwo \r\nth")
    lines = LineReader()
    assert [lines.read(), lines.read()] == ["one", "two"]
    os.write(typing, "r\u00e9e\n\nlast".encode())
    os.close(typing)
    assert [lines.read(), lines.read(), lines.read(), lines.read(), lines.read()] == [
        "thr\u00e9e",
        "",
        "last",
        None,
        None,
    ]


def test_what_is_no_text_is_replaced(typing: int) -> None:
    os.write(typing, b"\xff\n")
    os.close(typing)
    assert LineReader().read() == "\ufffd"


def test_a_standard_input_without_a_descriptor_is_read_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo"))
    lines = LineReader()
    assert [lines.read(), lines.read(), lines.read()] == ["one", "two", None]


def test_a_closed_standard_input_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert LineReader().read() is None


_PROGRAM = """
import signal, sys
from edge_vl.cli.lines import LineReader
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
lines = LineReader()
print("waiting", flush=True)
lines.read()
"""


def test_a_signal_ends_the_wait_for_a_line_wherever_it_lands() -> None:
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 7
