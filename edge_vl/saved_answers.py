"""Answers kept on disk with their frames: a folder that never grows beyond what it may."""

from __future__ import annotations

import datetime
import errno
import io
import json
import logging
import math
import os
import re
import secrets
import stat
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from edge_vl.errors import RequestError
from edge_vl.frame import Frame
from edge_vl.option_checks import require_number

__all__ = ["SavedAnswers"]

_log = logging.getLogger(__name__)

JPEG_QUALITY = 90
_DAY_S = 86_400.0
_STALE_PART_S = 3600.0
_OURS = re.compile(r"(?P<stem>edge-vl-(?P<number>\d{10,})-\d{8}T\d{6}Z-[0-9a-f]{8})\.(?:jpg|json)")
_PART = re.compile(r"\.edge-vl-saved-[0-9a-f]{16}\.part")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_COMPLAIN_EVERY_S = 60.0
_LONGEST_PAUSE_S = _DAY_S
_TIDY_EVERY_S = 600.0


@dataclass(slots=True)
class _Saved:
    """One answer on disk.

    Attributes:
        number: counts the answers of the folder; the order in which they go.
        stem: of the names of its two files.
        nbytes: of both files.
        written_s: `time.monotonic()` when it was written, or seems to have been for those that were there.
    """

    number: int
    stem: str
    nbytes: int
    written_s: float


class SavedAnswers:
    """Writes a JPEG and a JSON file per answer, and deletes the oldest ones when there are too many.

    What is there from before counts; other files in the folder do not, and are never touched. Files appear complete:
    the JSON file after its picture. A disk that is full, or a folder that is gone, costs answers on disk and nothing
    else: `num_failed` counts them. Methods may be called from any thread. A folder belongs to one instance until
    `close`.

    The age of an answer is the time that has passed since, by a clock that nobody sets. For answers of earlier runs it
    has to be taken from the dates of the files and the time of day, of which any may be wrong: a board without a
    battery begins in 1970 or in 2030. So a pause between two answers, or between the last one and the start, counts as
    a day at most, or half of `keep_days` where that is less, and as nothing where the clock goes backwards: a wrong
    clock makes what is there a day older and does not delete it all.
    """

    def __init__(self, folder: Path, *, max_mib: float = 1024.0, keep_days: float | None = None) -> None:
        """Make the folder if need be, and look at what is in it.

        Args:
            folder: where to.
            max_mib: most that the answers in it may take, in MiB.
            keep_days: after which answers are deleted; None: not for their age.

        Raises:
            RequestError: a limit makes no sense; or the folder cannot be made or written to, or somebody else saves
                there.
        """
        require_number(max_mib, "max_mib", 1e-3, 1e12, "above 0")
        if keep_days is not None:
            require_number(keep_days, "keep_days", 1e-6, 1e6, "above 0")
        self.num_saved = 0
        self.num_failed = 0
        self.num_deleted = 0
        self._folder = folder
        self._max_bytes = int(max_mib * 2**20)
        self._keep_s = None if keep_days is None else keep_days * _DAY_S
        self._complained_s: float | None = None
        self._lock = threading.RLock()
        self._is_closed = threading.Event()
        self._claim: Callable[[], object] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._take_folder()
            self._saved = self._look()
            self._nbytes = sum(saved.nbytes for saved in self._saved)
            self._write(
                f".edge-vl-saved-{secrets.token_hex(8)}.part", b""
            ).unlink()  # tells whether it may be written to
        except OSError as error:
            self._release()
            raise RequestError(
                f"answers cannot be saved in {folder}: {error.strerror or error}", field="folder"
            ) from error
        self._make_room(0)
        if self._keep_s is not None:
            every_s = min(_TIDY_EVERY_S, self._keep_s / 10)
            arguments = (weakref.ref(self), self._is_closed, every_s)
            threading.Thread(target=_tidy_often, args=arguments, name="edge-vl-saved", daemon=True).start()

    def close(self) -> None:
        """Leave the folder to others; nothing is saved or deleted any more. May be called twice."""
        self._is_closed.set()
        with self._lock:
            self._release()

    def tidy(self) -> None:
        """Delete the answers that have become too old. Happens by itself every ten minutes, or more often."""
        with self._lock:
            if not self._is_closed.is_set():
                self._make_room(0)

    @property
    def nbytes(self) -> int:
        """Bytes that the answers in the folder take."""
        return self._nbytes

    def save(self, frame: Frame, facts: Mapping[str, Any]) -> Path | None:
        """Write an answer.

        Args:
            frame: what it is about.
            facts: what the JSON file says, besides `picture`, the name of the JPEG.

        Returns:
            The path of the JSON file; None when it could not be written, or after `close`, which counts nowhere.
        """
        picture = io.BytesIO()
        Image.fromarray(frame.pixels).save(picture, "JPEG", quality=JPEG_QUALITY)
        with self._lock:
            return None if self._is_closed.is_set() else self._save(picture.getvalue(), facts)

    def _save(self, picture: bytes, facts: Mapping[str, Any]) -> Path | None:
        number = self._saved[-1].number + 1 if self._saved else 1
        stamp = datetime.datetime.fromtimestamp(time.time(), datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        stem = f"edge-vl-{number:010d}-{stamp}-{secrets.token_hex(4)}"
        text = json.dumps({**facts, "picture": f"{stem}.jpg"}, ensure_ascii=False, allow_nan=False)
        files = {f"{stem}.jpg": picture, f"{stem}.json": (text + "\n").encode("utf-8", "replace")}
        nbytes = sum(map(len, files.values()))
        try:
            if nbytes > self._max_bytes:
                raise OSError(errno.EFBIG, f"it takes {nbytes} bytes and all of them may take {self._max_bytes}")
            self._make_room(nbytes)
            self._write_all(files)
        except OSError as error:
            self.num_failed += 1
            self._complain(error)
            return None
        self._saved.append(_Saved(number, stem, nbytes, time.monotonic()))
        self._nbytes += nbytes
        self.num_saved += 1
        return self._folder / f"{stem}.json"

    def _look(self) -> deque[_Saved]:
        """Find the answers of earlier runs, and delete what a run that was killed left half written."""
        now_wall_s = time.time()
        found: dict[str, _Saved] = {}
        written_wall_s: dict[str, float] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                is_file = entry.is_file(follow_symlinks=False)
                if is_file and (ours := _OURS.fullmatch(entry.name)) is not None:
                    status = entry.stat(follow_symlinks=False)
                    saved = found.setdefault(ours["stem"], _Saved(int(ours["number"]), ours["stem"], 0, 0.0))
                    saved.nbytes += status.st_size
                    written_wall_s[saved.stem] = max(status.st_mtime, written_wall_s.get(saved.stem, 0.0))
                elif is_file and _PART.fullmatch(entry.name) is not None:
                    age_s = now_wall_s - entry.stat(follow_symlinks=False).st_mtime
                    if age_s > _STALE_PART_S:
                        Path(entry.path).unlink(missing_ok=True)
        in_order = sorted(found.values(), key=lambda saved: (saved.number, saved.stem))
        longest_s = min(_LONGEST_PAUSE_S, math.inf if self._keep_s is None else self._keep_s / 2)
        later_s, written_s = now_wall_s, time.monotonic()
        for saved in reversed(in_order):
            earlier_s = written_wall_s[saved.stem]
            written_s -= min(max(0.0, later_s - earlier_s), longest_s)
            saved.written_s, later_s = written_s, earlier_s
        return deque(in_order)

    def _take_folder(self) -> None:
        """Keep others from saving there, where the system can: a lock on the folder itself leaves no file behind.

        Raises:
            OSError: somebody else saves there.
        """
        self._release()
        if sys.platform == "win32":
            return
        import fcntl

        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise OSError(errno.EBUSY, "another watch saves there; give each a folder of its own") from None
        except OSError as error:  # some network file systems cannot lock
            os.close(folder)
            _log.info("%s cannot be locked: %s", self._folder, error.strerror or error)
            return
        self._claim = weakref.finalize(self, os.close, folder)

    def _release(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim()

    def _write_all(self, files: Mapping[str, bytes]) -> None:
        """Write all files or none; where there is no room or no folder any more, once again after making it."""
        for attempt in range(2):
            written: list[Path] = []
            try:
                for name, data in files.items():
                    written.append(self._write(name, data))
                return
            except OSError as error:
                for path in written:
                    path.unlink(missing_ok=True)
                if attempt or error.errno not in {*_NO_ROOM, errno.ENOENT}:
                    raise
                if error.errno == errno.ENOENT:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    self._take_folder()
                else:
                    needed = sum(map(len, files.values()))
                    freed = 0
                    while self._saved and freed < needed:
                        freed += self._delete_oldest()

    def _write(self, name: str, data: bytes) -> Path:
        target = self._folder / name
        part = self._folder / f".edge-vl-saved-{secrets.token_hex(8)}.part"
        try:
            with part.open("xb") as file:
                file.write(data)
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return target

    def _make_room(self, nbytes: int) -> None:
        """Delete the oldest until there is room for so many bytes more, and none is too old."""
        now_s = time.monotonic()
        while self._saved and (
            self._nbytes + nbytes > self._max_bytes
            or (self._keep_s is not None and now_s - self._saved[0].written_s > self._keep_s)
        ):
            self._delete_oldest()

    def _delete_oldest(self) -> int:
        """Delete one answer, and return how many bytes it took. One that somebody else has deleted is fine."""
        saved = self._saved.popleft()
        self._nbytes -= saved.nbytes
        for suffix in (".json", ".jpg"):
            path = self._folder / f"{saved.stem}{suffix}"
            try:
                if stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                self._complain(error)
        self.num_deleted += 1
        return saved.nbytes

    def _complain(self, error: OSError) -> None:
        now_s = time.monotonic()
        if self._complained_s is not None and now_s - self._complained_s < _COMPLAIN_EVERY_S:
            return
        self._complained_s = now_s
        _log.warning("answers cannot be saved in %s: %s", self._folder, error.strerror or error)


def _tidy_often(folder: weakref.ref[SavedAnswers], is_closed: threading.Event, every_s: float) -> None:
    while not is_closed.wait(every_s):
        saved = folder()
        if saved is None:
            return
        saved.tidy()
        del saved
