"""Pictures on disk as a source of frames: one file, several, a folder, or a pattern."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_vl.errors import ImageError
from edge_vl.frame import Frame
from edge_vl.pictures import load_picture
from edge_vl.sources.view import View

__all__ = ["PICTURE_SUFFIXES", "PicturesSource", "natural_order", "pictures_in"]

_log = logging.getLogger(__name__)

PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"}
)


class PicturesSource:
    """Yields the pictures of files, one after the other, read when they are asked for.

    A damaged picture is passed over, counted in `num_bad` and told in the log, so that one bad file in a folder of
    thousands does not end a run; `Frame.index` counts it, too. A single picture that is damaged is an error.
    """

    def __init__(self, paths: Sequence[Path], *, name: str, loop: bool = False, view: View | None = None) -> None:
        """Take the paths, in their order.

        Args:
            paths: of pictures, at least one.
            name: of the source.
            loop: begin again after the last one.
            view: what of each picture is kept, and which way is up; None: all of it as it is.
        """
        self._paths = tuple(paths)
        self._name = name
        self._loop = loop
        self._view = View() if view is None else view
        self._num_bad = 0
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """The path or pattern."""
        return self._name

    @property
    def is_live(self) -> bool:
        """False: pictures wait until they are asked for."""
        return False

    @property
    def num_bad(self) -> int:
        """Pictures passed over so far because they are damaged."""
        return self._num_bad

    def __iter__(self) -> Iterator[Frame]:
        """Yield the pictures; `Frame.source` is the path of each.

        Raises:
            ImageError: it is a single picture, and that cannot be used; or no picture of a round could be.
        """
        index = 0
        while not self._closed.is_set():
            num_good = 0
            error: ImageError | None = None
            for path in self._paths:
                if self._closed.is_set():
                    return
                try:
                    frame = load_picture(path, index=index)
                except ImageError as raised:
                    if len(self._paths) > 1:
                        self._num_bad += 1
                        _log.warning("passed over: %s", raised)
                    error = raised
                else:
                    num_good += 1
                    yield dataclasses.replace(frame, pixels=self._view.of(frame.pixels))
                index += 1
            if not num_good and error is not None:
                raise error.again() from None
            if not self._loop:
                return

    def close(self) -> None:
        """End the iteration before its next picture."""
        self._closed.set()


def natural_order(path: Path) -> tuple[object, ...]:
    """Return what paths are sorted by: `frame9` before `frame10`, whatever their letters' case."""
    parts = re.split(r"(\d+)", str(path).casefold())
    return (tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts), str(path))


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures of a folder, by their names, in natural order; hidden ones and subfolders are left out.

    Raises:
        OSError: it cannot be read.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and not entry.is_dir()]
    found = (folder / name for name in names)
    return sorted((path for path in found if path.suffix.lower() in PICTURE_SUFFIXES), key=natural_order)
