"""Answers kept on disk with their frames: a folder that never grows beyond what it may."""

from __future__ import annotations

import datetime
import errno
import io
import json
import logging
import os
import re
import secrets
import stat
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from edge_vl.errors import SinkError
from edge_vl.frame import Frame
from edge_vl.option_checks import require_number

__all__ = ["SavedAnswers"]

_log = logging.getLogger(__name__)

JPEG_QUALITY = 90
_DAY_S = 86_400.0
_STALE_PART_S = 3600.0
_OURS = re.compile(r"(?P<stem>edge-vl-(?P<number>\d{10})-\d{8}T\d{6}Z-[0-9a-f]{8})\.(?:jpg|json)")
_PART = re.compile(r"\.edge-vl-saved-[0-9a-f]{16}\.part")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_COMPLAIN_EVERY_S = 60.0


@dataclass(slots=True)
class _Saved:
    """One answer on disk.

    Attributes:
        number: counts the answers of the folder; the order in which they go.
        stem: of the names of its two files.
        nbytes: of both files.
        written_s: `time.monotonic()` when it was written, before the process began for those that were there.
    """

    number: int
    stem: str
    nbytes: int
    written_s: float


class SavedAnswers:
    """Writes a JPEG and a JSON file per answer, and deletes the oldest ones when there are too many.

    What is there from before counts; other files in the folder do not, and are never touched. Files appear complete:
    the JSON file after its picture. Ages are those of a clock that nobody sets, so that a change of the time of day
    deletes nothing. A disk that is full, or a folder that is gone, costs answers on disk and nothing else: `num_failed`
    counts them. Belongs to one thread; one process at a time should write to a folder.
    """

    def __init__(self, folder: Path, *, max_mib: float = 1024.0, keep_days: float | None = None) -> None:
        """Make the folder if need be, and look at what is in it.

        Args:
            folder: where to.
            max_mib: most that the answers in it may take, in MiB.
            keep_days: after which answers are deleted; None: not for their age.

        Raises:
            RequestError: a limit makes no sense.
            SinkError: the folder cannot be made or written to.
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._saved = self._look()
            self._nbytes = sum(saved.nbytes for saved in self._saved)
            self._write(
                f".edge-vl-saved-{secrets.token_hex(8)}.part", b""
            ).unlink()  # tells whether it may be written to
        except OSError as error:
            raise SinkError(f"answers cannot be saved in {folder}: {error.strerror or error}") from error
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
            The path of the JSON file; None when it could not be written.
        """
        number = self._saved[-1].number + 1 if self._saved else 1
        stamp = datetime.datetime.fromtimestamp(time.time(), datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        stem = f"edge-vl-{number:010d}-{stamp}-{secrets.token_hex(4)}"
        picture = io.BytesIO()
        Image.fromarray(frame.pixels).save(picture, "JPEG", quality=JPEG_QUALITY)
        text = json.dumps({**facts, "picture": f"{stem}.jpg"}, ensure_ascii=False, allow_nan=False)
        files = {f"{stem}.jpg": picture.getvalue(), f"{stem}.json": (text + "\n").encode("utf-8", "replace")}
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
        now_s, now_wall_s = time.monotonic(), time.time()
        found: dict[str, _Saved] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                is_file = entry.is_file(follow_symlinks=False)
                if is_file and (ours := _OURS.fullmatch(entry.name)) is not None:
                    status = entry.stat(follow_symlinks=False)
                    written_s = now_s - max(0.0, now_wall_s - status.st_mtime)
                    saved = found.setdefault(ours["stem"], _Saved(int(ours["number"]), ours["stem"], 0, written_s))
                    saved.nbytes += status.st_size
                elif is_file and _PART.fullmatch(entry.name) is not None:
                    age_s = now_wall_s - entry.stat(follow_symlinks=False).st_mtime
                    if age_s > _STALE_PART_S:
                        Path(entry.path).unlink(missing_ok=True)
        return deque(sorted(found.values(), key=lambda saved: (saved.number, saved.stem)))

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
