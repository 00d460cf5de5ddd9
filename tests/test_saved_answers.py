"""Answers kept on disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_vl import Frame, RequestError
from edge_vl.saved_answers import SavedAnswers

DAY_S = 86_400.0


def frame(number: int, side: int = 64) -> Frame:
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    return Frame(pixels, 0.0, 0.0, "door", number)


def texts(folder: Path) -> list[str]:
    """Return the texts of the saved answers, oldest first."""
    return [json.loads(path.read_text())["text"] for path in sorted(folder.glob("edge-vl-*.json"))]


def foreign(folder: Path) -> dict[str, bytes]:
    """Put files into a folder that are none of ours, some of which look a little like it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = (
        "holiday.jpg", "edge-vl-1.jpg", "edge-vl-0000000001-20260101T000000Z-0123abcd.png", ".edge-vl-saved-1.part",
        "xedge-vl-0000000001-20260101T000000Z-0123abcd.jpg", "edge-vl-0000000001-20260101T000000Z-0123abcd.jpg.bak",
    )  # fmt: skip
    for name in names:
        (folder / name).write_bytes(b"mine")
        os.utime(folder / name, (0, 0))
    (folder / "edge-vl-0000000002-20260101T000000Z-0123abcd.jpg").mkdir()
    (folder / "edge-vl-0000000003-20260101T000000Z-0123abcd.jpg").symlink_to(folder / "holiday.jpg")
    return dict.fromkeys(names, b"mine")


def test_an_answer_is_a_picture_and_a_json_file_that_names_it(tmp_path: Path) -> None:
    saved = SavedAnswers(tmp_path / "new" / "folder")
    path = saved.save(frame(1), {"text": "a red circle \U0001f534", "frame": {"index": 1}})
    assert path is not None
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert (facts["text"], facts["frame"]) == ("a red circle \U0001f534", {"index": 1})
    with Image.open(path.parent / facts["picture"]) as picture:
        assert (picture.format, picture.size) == ("JPEG", (64, 64))
    assert sorted(one.suffix for one in path.parent.iterdir()) == [".jpg", ".json"]
    assert saved.nbytes == sum(one.stat().st_size for one in path.parent.iterdir())


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    saved = SavedAnswers(tmp_path, max_mib=0.05)
    for number in range(30):
        assert saved.save(frame(number), {"text": str(number)}) is not None
        assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 0.05 * 2**20
    kept = [int(text) for text in texts(tmp_path)]
    assert kept == list(range(30 - len(kept), 30))
    assert 3 < len(kept) < 30
    assert (saved.num_saved, saved.num_deleted) == (30, 30 - len(kept))


def test_another_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    first = SavedAnswers(tmp_path, max_mib=0.05)
    for number in range(4):
        first.save(frame(number), {"text": str(number)})
    first.close()
    second = SavedAnswers(tmp_path, max_mib=0.05)
    assert second.nbytes == first.nbytes
    for number in range(4, 12):
        second.save(frame(number), {"text": str(number)})
    kept = [int(text) for text in texts(tmp_path)]
    assert kept == list(range(12 - len(kept), 12))
    assert second.nbytes == sum(one.stat().st_size for one in tmp_path.iterdir()) <= 0.05 * 2**20


def test_a_smaller_limit_counts_at_once(tmp_path: Path) -> None:
    first = SavedAnswers(tmp_path)
    for number in range(10):
        first.save(frame(number), {"text": str(number)})
    first.close()
    SavedAnswers(tmp_path, max_mib=0.02)
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 0.02 * 2**20


def test_what_it_did_not_write_is_never_touched_or_counted(tmp_path: Path) -> None:
    mine = foreign(tmp_path)
    saved = SavedAnswers(tmp_path, max_mib=0.01, keep_days=1e-5)
    assert saved.nbytes == 0
    for number in range(5):
        saved.save(frame(number), {"text": str(number)})
    assert {name: (tmp_path / name).read_bytes() for name in mine} == mine
    assert (tmp_path / "edge-vl-0000000002-20260101T000000Z-0123abcd.jpg").is_dir()
    assert (tmp_path / "edge-vl-0000000003-20260101T000000Z-0123abcd.jpg").is_symlink()


def written(folder: Path, ages_days: list[float]) -> None:
    """Put answers of an earlier run into a folder, named by their number, so many days old each."""
    for number, age_days in enumerate(ages_days):
        before = set(folder.iterdir()) if folder.exists() else set()
        SavedAnswers(folder).save(frame(number), {"text": str(number)})
        for path in set(folder.iterdir()) - before:
            os.utime(path, (time.time() - age_days * DAY_S,) * 2)


def test_answers_go_after_their_days_also_those_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, [3.0, 2.2, 1.4, 0.6])
    saved = SavedAnswers(tmp_path, keep_days=2)
    assert texts(tmp_path) == ["2", "3"]
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 1.0 * DAY_S)
    saved.save(frame(4), {"text": "4"})
    assert texts(tmp_path) == ["3", "4"]
    saved.close()


def test_they_go_although_nothing_new_is_saved(tmp_path: Path) -> None:
    saved = SavedAnswers(tmp_path, keep_days=0.5 / DAY_S)
    assert saved.save(frame(1), {"text": "1"}) is not None
    until_s = time.monotonic() + 20
    while texts(tmp_path):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert (saved.num_deleted, saved.nbytes) == (1, 0)
    saved.close()


@pytest.mark.parametrize("keep_days", [30.0, 0.5])
@pytest.mark.parametrize("years", [-56, 4])
def test_a_start_with_a_wrong_clock_deletes_nothing_that_is_not_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int, keep_days: float
) -> None:
    written(tmp_path, [0.02, 0.01, 0.0])
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + years * 365 * DAY_S)
        wrong = SavedAnswers(tmp_path, keep_days=keep_days)
        assert texts(tmp_path) == ["0", "1", "2"]
        wrong.save(frame(3), {"text": "3"})
        for path in tmp_path.glob("*-0000000004-*"):
            os.utime(path, (time.time(),) * 2)
        wrong.close()
    right = SavedAnswers(tmp_path, keep_days=keep_days)
    assert texts(tmp_path)[-1] == "3"
    assert len(texts(tmp_path)) == 4
    right.close()


def test_a_folder_is_for_one_at_a_time_also_of_another_process(tmp_path: Path) -> None:
    first = SavedAnswers(tmp_path)
    with pytest.raises(RequestError, match="another watch saves there; give each a folder of its own"):
        SavedAnswers(tmp_path)
    code = "import sys; from pathlib import Path; from edge_vl.saved_answers import SavedAnswers; "
    other = [sys.executable, "-c", code + "SavedAnswers(Path(sys.argv[1]))", str(tmp_path)]
    done = subprocess.run(other, capture_output=True, text=True, timeout=60, check=False)
    assert "another watch saves there" in done.stderr
    assert list(tmp_path.iterdir()) == []
    first.close()
    first.close()
    assert subprocess.run(other, timeout=60, check=False).returncode == 0


def test_numbers_beyond_ten_digits_are_still_counted_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "edge-vl-9999999999-20200101T000000Z-aaaaaaaa.jpg").write_bytes(b"old")
    for number in range(3):
        saved = SavedAnswers(tmp_path)
        path = saved.save(frame(number), {"text": str(number)})
        assert path is not None
        assert path.name.startswith(f"edge-vl-{10**10 + number}-")
        saved.close()
    limited = SavedAnswers(tmp_path, max_mib=0.01)
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 0.01 * 2**20
    assert texts(tmp_path) == ["1", "2"] or texts(tmp_path) == ["2"]
    assert limited.nbytes == sum(one.stat().st_size for one in tmp_path.iterdir())


@pytest.mark.parametrize("jump_s", [-3600.0, 10 * 86_400.0])
def test_a_wall_clock_that_is_set_deletes_nothing_and_keeps_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    saved = SavedAnswers(tmp_path, keep_days=1)
    saved.save(frame(0), {"text": "before"})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    saved.save(frame(1), {"text": "after"})
    assert texts(tmp_path) == ["before", "after"]


def failing(error: OSError, *, times: int) -> Callable[..., Any]:
    """Return a `Path.open` that fails when a file is to be written, so many times."""
    real, left = Path.open, [times]

    def open_or_fail(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if "x" in mode and left[0] > 0:
            left[0] -= 1
            raise error
        return real(self, mode, *arguments, **options)

    return open_or_fail


def test_on_a_full_disk_the_oldest_answers_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedAnswers(tmp_path)
    for number in range(5):
        saved.save(frame(number), {"text": str(number)})
    monkeypatch.setattr(Path, "open", failing(OSError(errno.ENOSPC, "No space left on device"), times=1))
    assert saved.save(frame(5), {"text": "5"}) is not None
    kept = texts(tmp_path)
    assert kept[-1] == "5"
    assert kept == [str(number) for number in range(6 - len(kept), 6)]
    assert len(kept) < 6


def test_on_a_disk_that_stays_full_answers_are_lost_and_counted_and_nothing_half_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved = SavedAnswers(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing(OSError(errno.ENOSPC, "No space left on device"), times=10**9))
        for number in range(20):
            assert saved.save(frame(number), {"text": str(number)}) is None
    assert list(tmp_path.iterdir()) == []
    assert (saved.num_failed, saved.num_saved, saved.nbytes) == (20, 0, 0)
    assert len(caplog.records) == 1
    assert saved.save(frame(20), {"text": "20"}) is not None
    assert texts(tmp_path) == ["20"]


def test_a_disk_that_is_full_behind_the_picture_leaves_no_picture_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = SavedAnswers(tmp_path)
    real, num_written = Path.replace, [0]

    def replace(self: Path, target: Path) -> Path:
        num_written[0] += 1
        if num_written[0] % 2 == 0:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    assert saved.save(frame(1), {"text": "1"}) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_deletes_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    saved = SavedAnswers(folder)
    folder.rmdir()
    assert saved.save(frame(1), {"text": "1"}) is not None
    assert texts(folder) == ["1"]


def test_a_closed_one_leaves_the_folder_to_others(tmp_path: Path) -> None:
    saved = SavedAnswers(tmp_path)
    saved.close()
    other = SavedAnswers(tmp_path)
    assert other.save(frame(1), {"text": "other"}) is not None
    assert saved.save(frame(2), {"text": "late"}) is None
    assert texts(tmp_path) == ["other"]
    assert (saved.num_saved, saved.num_failed) == (0, 0)


def test_answers_that_somebody_else_deleted_are_no_trouble(tmp_path: Path) -> None:
    saved = SavedAnswers(tmp_path, max_mib=0.02)
    for number in range(3):
        saved.save(frame(number), {"text": str(number)})
        for path in tmp_path.iterdir():
            path.unlink()
    for number in range(3, 9):
        assert saved.save(frame(number), {"text": str(number)}) is not None
    assert texts(tmp_path)[-1] == "8"


def test_an_answer_larger_than_all_may_be_is_not_saved_and_deletes_none(tmp_path: Path) -> None:
    saved = SavedAnswers(tmp_path, max_mib=0.02)
    saved.save(frame(1), {"text": "small"})
    assert saved.save(frame(2, side=400), {"text": "large"}) is None
    assert texts(tmp_path) == ["small"]
    assert saved.num_failed == 1


def test_what_a_killed_run_left_half_written_goes_after_an_hour(tmp_path: Path) -> None:
    for name, age_s in ((".edge-vl-saved-00112233445566aa.part", 7200), (".edge-vl-saved-00112233445566bb.part", 5)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    SavedAnswers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".edge-vl-saved-00112233445566bb.part"]


def test_a_place_that_cannot_be_written_to_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RequestError, match="cannot be saved"):
            SavedAnswers(folder)


@pytest.mark.parametrize("limits", [{"max_mib": 0}, {"max_mib": float("nan")}, {"keep_days": 0}, {"keep_days": -1}])
def test_limits_that_make_no_sense_are_refused(tmp_path: Path, limits: dict[str, float]) -> None:
    with pytest.raises(RequestError):
        SavedAnswers(tmp_path, **limits)
