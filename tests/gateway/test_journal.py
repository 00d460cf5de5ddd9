from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.gateway.journal import MAX_BYTES, Journal, JournalEntry
from edge_vl.mqtt.packet import MAX_CORRELATION_BYTES
from edge_vl.mqtt.reply_rule import MAX_TOPIC_BYTES

NAME = "in_flight.jsonl"


@functools.cache
def entry(id: str, to: str = "edge_vl/x") -> JournalEntry:
    return JournalEntry(id, "me", to, "00ff")


def left_in(folder: Path) -> list[JournalEntry]:
    journal = Journal(folder)
    try:
        return journal.begin()
    finally:
        journal.close()


def test_what_was_taken_and_not_ended_is_left_until_it_is_ended(tmp_path: Path) -> None:
    first = Journal(tmp_path / "state")
    assert first.begin() == []
    for id in "abc":
        first.note_taken(entry(id))
    first.note_ended(entry("b"))
    second = Journal(tmp_path / "state")  # the first one was killed
    left = second.begin()
    assert left == [entry("a"), entry("c")]
    second.note_ended(left[0])
    second.close()
    assert left_in(tmp_path / "state") == [entry("c")]
    first.close()


def test_a_line_cut_short_loses_that_request_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    for id in "ab":
        journal.note_taken(entry(id))
    journal.close()
    file = tmp_path / NAME
    file.write_bytes(file.read_bytes()[:-5])
    assert left_in(tmp_path) == [entry("a")]


@given(st.binary(max_size=300))
def test_a_damaged_journal_never_raises(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("journal")
    (folder / NAME).write_bytes(b'{"id":"a","client":"me","to":"edge_vl/x","corr":"00ff"}\n' + data)
    assert all(isinstance(one.id, str) for one in left_in(folder))


def test_it_stays_small(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("stays"))
    for number in range(20_000):
        journal.note_taken(entry(f"x{number}"))
        journal.note_ended(entry(f"x{number}"))
    journal.close()
    assert (tmp_path / NAME).stat().st_size <= MAX_BYTES
    assert left_in(tmp_path) == [entry("stays")]


def test_a_disk_that_takes_nothing_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file" / "state")
    with caplog.at_level(logging.WARNING):
        assert journal.begin() == []
        for id in "abc":
            journal.note_taken(entry(id))
            journal.note_ended(entry(id))
        journal.close()
    assert len(caplog.records) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_disk_that_becomes_full_is_told_once_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    full = os.open("/dev/full", os.O_WRONLY)
    assert journal._file is not None
    os.dup2(full, journal._file.fileno())
    os.close(full)
    with caplog.at_level(logging.WARNING):
        for id in "abc":
            journal.note_taken(entry(id))
    journal.close()
    assert len(caplog.records) == 1


def test_others_cannot_read_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("a"))
    journal.close()
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_what_was_told_once_does_not_come_back_at_every_start(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.begin()
    first.note_tried()
    first.note_taken(entry("a"))
    first.note_taken(entry("b"))
    first.close()
    second = Journal(tmp_path)
    assert second.begin() == [entry("a"), entry("b")]
    second.note_taken(entry("early"))
    second.close()
    third = Journal(tmp_path)  # the second did not come so far as to tell anybody
    assert third.begin() == [entry("a"), entry("b"), entry("early")]
    third.note_tried()
    third.note_tried()
    third.note_taken(entry("new"))
    third.note_taken(entry("b"))  # asked again
    third.close()
    assert left_in(tmp_path) == [entry("new"), entry("b")]


def test_what_was_told_stays_told_when_the_file_is_written_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("old"))
    journal.close()
    journal = Journal(tmp_path)
    assert journal.begin() == [entry("old")]
    journal.note_tried()
    journal.note_taken(entry("new"))
    journal._rewrite()
    journal.close()
    assert left_in(tmp_path) == [entry("new")]


def test_the_longest_reply_topic_and_correlation_that_are_taken_come_back(tmp_path: Path) -> None:
    longest = JournalEntry("i" * 64, "c" * 64, "edge_vl/" + "t" * (MAX_TOPIC_BYTES - 8), "ff" * MAX_CORRELATION_BYTES)
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(longest)
    journal.close()
    assert left_in(tmp_path) == [longest]


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.parametrize("make", [make_pipe, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_told_once_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / NAME)
    before = (tmp_path / NAME).lstat()
    journal = Journal(tmp_path)
    assert journal.begin() == []
    for number in range(10_000):
        journal.note_taken(entry(f"x{number}"))
        journal.note_ended(entry(f"x{number}"))
    journal.close()
    assert len(caplog.records) == 1
    assert "not a regular file" in caplog.text
    assert (tmp_path / NAME).lstat() == before
    assert list(tmp_path.iterdir()) == [tmp_path / NAME]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_in_place_of_the_fresh_file_does_not_hold_it_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in_flight.new")
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("a"))
    journal.close()
    assert left_in(tmp_path) == [entry("a")]


def fail_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full for one line."""
    write = journal._write

    def refuse(data: bytes) -> None:
        monkeypatch.setattr(journal, "_write", write)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(journal, "_write", refuse)


def test_a_disk_that_was_full_for_a_moment_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_vl.gateway.journal._RETRY_EVERY_S", 0.0)
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("a"))
    journal.note_taken(entry("b"))
    fail_once(journal, monkeypatch)
    journal.note_taken(entry("c"))
    journal.note_ended(entry("a"))
    journal.note_taken(entry("d"))
    assert left_in(tmp_path) == [entry("b"), entry("c"), entry("d")]  # the process was killed
    journal.close()


def test_after_a_full_disk_a_clean_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("a"))
    fail_once(journal, monkeypatch)
    journal.note_ended(entry("a"))
    journal.note_taken(entry("b"))  # too soon to try again
    journal.note_ended(entry("b"))
    journal.close()
    assert left_in(tmp_path) == []


def test_a_disk_that_stays_full_is_not_tried_at_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    tries: list[bytes] = []

    def refuse(data: bytes) -> None:
        tries.append(data)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(journal, "_write", refuse)
    for number in range(100):
        journal.note_taken(entry(f"x{number}"))
    assert len(tries) < 10
    journal.close()


def test_the_late_end_of_a_request_of_before_does_not_end_the_one_asked_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("a"))
    journal.close()
    journal = Journal(tmp_path)
    (before,) = journal.begin()
    journal.note_tried()
    again = dataclasses.replace(before)
    journal.note_taken(again)
    journal.note_ended(before)
    assert left_in(tmp_path) == [again]
    journal.close()
    journal = Journal(tmp_path)
    (again,) = journal.begin()
    journal.note_ended(again)
    journal.close()
    assert left_in(tmp_path) == []


def test_what_was_taken_before_the_others_were_told_is_not_counted_as_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("old"))
    journal.close()
    journal = Journal(tmp_path)
    journal.begin()
    journal.note_taken(entry("new"))
    journal.note_tried()
    journal.close()
    assert left_in(tmp_path) == [entry("new")]
