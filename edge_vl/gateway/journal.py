"""Which requests were being answered, on disk, so that their clients can be told after a crash."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from edge_vl.mqtt.packet import MAX_CORRELATION_BYTES
from edge_vl.mqtt.reply_rule import MAX_TOPIC_BYTES

__all__ = ["Journal", "JournalEntry"]

_log = logging.getLogger(__name__)

_NAME = "in_flight.jsonl"

MAX_BYTES = 1 << 20
"""Of the file; when it is longer, it is written anew with what is still open."""

_MAX_READ_BYTES = 4 * MAX_BYTES
_MAX_TEXT_CHARS = max(MAX_TOPIC_BYTES, 2 * MAX_CORRELATION_BYTES)

_RETRY_EVERY_S = 5.0
"""After a failure, how often it is tried to write the file anew."""

_TRIED = {"tried": "all above"}
"""What a line says below which nothing is that was told before."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A request that was taken.

    Attributes:
        id: of the request.
        client: who asked.
        reply_to: where its answer goes.
        correlation: what its sender knows it by, as hexadecimal digits; empty: nothing.
    """

    id: str
    client: str
    reply_to: str
    correlation: str = ""


class Journal:
    """One short line when a request is taken, and one when it has ended. Used by one thread.

    Lines go to the system at once, but the disk is not waited for: a crash of the process loses nothing, one of the
    system the last moments. A disk that is full or read-only is told once in the log, and the gateway goes on; from
    time to time, and at the end, it is tried again with what is open. Something else than a file in its place is told
    likewise, and left as it is.
    """

    def __init__(self, folder: Path) -> None:
        """Keep where it is written; nothing is opened yet."""
        self._path = folder / _NAME
        self._file: FileIO | None = None
        self._num_bytes = 0
        self._open: dict[str, JournalEntry] = {}  # by reply topic and id
        self._left: set[str] = set()  # keys of those that were there at the beginning
        self._has_tried = False
        self._has_failed = False
        self._retry_at_s: float | None = None  # None: it can be written
        self._is_in_the_way = False

    def begin(self) -> list[JournalEntry]:
        """Open it.

        Returns:
            The requests that the process before this one left without an end. They stay in it until they are ended, or
            until the next beginning if `note_tried` was called.
        """
        try:
            data = _content(self._path)
        except OSError as error:
            self._is_in_the_way = True
            self._fail(error)
            return []
        self._open = {_key(entry): entry for entry in _entries(data)}
        self._left = set(self._open)
        self._rewrite()
        return list(self._open.values())

    def note_tried(self) -> None:
        """Write down that the clients of what was left have been told as well as can be.

        What ends the process, or can never be delivered, must not come back at every start.
        """
        if self._left and not self._has_tried:
            self._has_tried = True
            self._rewrite()  # a line at the end would count for requests that were taken meanwhile, too

    def note_taken(self, entry: JournalEntry) -> None:
        """Write down that a request was taken."""
        key = _key(entry)
        self._open[key] = entry
        self._left.discard(key)
        self._append(_taken_line(entry))

    def note_ended(self, entry: JournalEntry) -> None:
        """Write down that it has ended; it is the object that was taken, as another may have its name by now."""
        key = _key(entry)
        if self._open.get(key) is not entry:
            return
        del self._open[key]
        self._append(_line({"end": entry.id, "to": entry.reply_to}))

    def close(self) -> None:
        """Close the file; where it could not be written, try once more."""
        if self._retry_at_s is not None:
            self._rewrite()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            if self._retry_at_s is not None and time.monotonic() >= self._retry_at_s:
                self._rewrite()
            return
        if self._num_bytes + len(line) > MAX_BYTES:
            self._rewrite()
            return
        try:
            self._write(line)
        except OSError as error:
            self._fail(error)

    def _rewrite(self) -> None:
        """Write it anew with what is open."""
        self._close_file()
        if self._is_in_the_way:
            return
        fresh = self._path.with_suffix(".new")
        left = [_taken_line(entry) for key, entry in self._open.items() if key in self._left]
        taken = [_taken_line(entry) for key, entry in self._open.items() if key not in self._left]
        data = b"".join([*left, *([_line(_TRIED)] if self._has_tried else []), *taken])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()  # of a process that was killed, or whatever else it is
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file = FileIO(os.open(fresh, flags, 0o600), "ab")
            self._num_bytes = 0
            self._write(data)
            fresh.replace(self._path)
        except OSError as error:
            self._fail(error)
        else:
            self._retry_at_s = None

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        rest = data
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self._num_bytes += len(data)

    def _fail(self, error: OSError) -> None:
        self._close_file()
        self._retry_at_s = time.monotonic() + _RETRY_EVERY_S
        if not self._has_failed:
            _log.warning(
                "%s cannot be written (%s): after a crash, clients may not be told what became of their requests",
                self._path,
                error.strerror or error,
            )
        self._has_failed = True


def _key(entry: JournalEntry) -> str:
    return f"{entry.reply_to} {entry.id}"


def _taken_line(entry: JournalEntry) -> bytes:
    return _line({"id": entry.id, "client": entry.client, "to": entry.reply_to, "corr": entry.correlation})


def _line(facts: dict[str, str]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode() + b"\n"


def _content(path: Path) -> bytes:
    """Return what a journal holds.

    Raises:
        OSError: it is there and no file, or cannot be read.
    """
    try:
        # Opening a pipe would wait for its other end, reading a device for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):  # writing will say what is in the way
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_MAX_READ_BYTES)
    finally:
        os.close(descriptor)


def _entries(data: bytes) -> list[JournalEntry]:
    """Return what a journal leaves open; a line that is damaged or cut short counts as not there."""
    left: dict[str, JournalEntry] = {}
    for line in data.split(b"\n"):
        facts = _facts(line)
        if facts is None:
            continue
        if facts == _TRIED:
            left.clear()
        elif "end" in facts:
            left.pop(f"{facts.get('to', '')} {facts['end']}", None)
        elif facts.get("id") and facts.get("to"):
            entry = JournalEntry(facts["id"], facts.get("client", ""), facts["to"], facts.get("corr", ""))
            left[_key(entry)] = entry
    return list(left.values())


def _facts(line: bytes) -> dict[str, str] | None:
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict):
        return None
    is_text = all(isinstance(value, str) and len(value) <= _MAX_TEXT_CHARS for value in facts.values())
    return facts if is_text else None
