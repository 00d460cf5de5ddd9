from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.gateway.journal import MAX_BYTES, Journal, JournalEntry

NAME = "in_flight.jsonl"


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
    assert second.begin() == [entry("a"), entry("c")]
    second.note_ended(entry("a"))
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
