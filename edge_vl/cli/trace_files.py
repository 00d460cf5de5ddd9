"""The files that `edge-vl ask` writes of a trace."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edge_vl.answer import Answer
from edge_vl.errors import EdgeVLError, RequestError, SinkError
from edge_vl.trace import Timings

__all__ = ["TraceFiles"]


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """Where the trace of an answer goes.

    Attributes:
        trace: path of the Chrome trace events that Perfetto opens; None: not wanted.
        waterfall: path of the picture; None: not wanted.
    """

    trace: Path | None = None
    waterfall: Path | None = None

    def check(self, pictures: Sequence[str]) -> None:
        """Find out whether both can be written, before anything costly is done; changes no file.

        Args:
            pictures: names of files that must not be written over.

        Raises:
            RequestError: one of them cannot, is a picture, or both are the same file.
        """
        for option, path in (("--trace", self.trace), ("--waterfall", self.waterfall)):
            if path is None:
                continue
            try:
                _try(path)
            except OSError as error:
                raise RequestError(
                    f"{option} {path} cannot be written: {error.strerror or error}", field=option.strip("-")
                ) from None
        for option, path in (("--trace", self.trace), ("--waterfall", self.waterfall)):
            if path and path.exists() and any(_is_same(path, Path(name)) for name in pictures if name != "-"):
                raise RequestError(f"{option} {path} is the picture asked about", field=option.strip("-"))
        if self.trace and self.waterfall and _is_file_to_be(self.trace) and _is_same(self.trace, self.waterfall):
            raise RequestError("--trace and --waterfall name the same file", field="waterfall")

    def write(self, answer: Answer, question: str) -> None:
        """Write what is wanted; a file that is there is replaced as a whole or not at all.

        Raises:
            SinkError: the disk is full, or the like.
        """
        engines = {"language": f"{answer.language_engine} {answer.dtypes['language']}"}
        if answer.vision_engine:
            engines["vision"] = f"{answer.vision_engine} {answer.dtypes['vision']}"
        usage = answer.usage
        facts = [
            f"model {answer.model}",
            f"profile {answer.profile}",
            f"prompt {usage.prompt_tokens} tokens, {usage.image_tokens} of pictures",
            *answer.degraded,
        ]
        self._write(answer.timings, question, facts, engines)

    def write_failed(self, timings: Timings, error: EdgeVLError, question: str) -> None:
        """Write how far a request came that has no answer."""
        self._write(timings, question, [str(error)], {})

    def _write(self, timings: Timings, question: str, facts: Sequence[str], engines: Mapping[str, str]) -> None:
        try:
            if self.trace:
                from edge_vl.perfetto import perfetto

                _write(self.trace, json.dumps(perfetto(timings, question), ensure_ascii=False, allow_nan=False))
            if self.waterfall:
                from edge_vl.waterfall import waterfall

                _write(self.waterfall, waterfall(timings, question, subtitle="; ".join(facts), engines=engines))
        except OSError as error:
            raise SinkError(f"the trace cannot be written: {error}") from error


def _is_file_to_be(path: Path) -> bool:
    """Say whether a path is a file or may become one; a device or a pipe is written to as it is."""
    return not path.exists() or stat.S_ISREG(path.stat().st_mode)


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _try(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    if not _is_file_to_be(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "permission denied")
        return
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(None, f"there is no folder {path.parent}")
    with suppress(FileNotFoundError):
        target.lstat()  # tells whether the file system takes the name
    part = _part_of(target)
    part.touch(exist_ok=False)
    part.unlink()


def _part_of(target: Path) -> Path:
    """Return a new name beside a file, for what is written until it is complete."""
    return target.with_name(f".edge-vl-{secrets.token_hex(6)}.part")


def _write(path: Path, text: str) -> None:
    if not _is_file_to_be(path):
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads is an error, not a wait
        os.set_blocking(number, True)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        return
    target = Path(os.path.realpath(path))  # through a link, not over it
    part = _part_of(target)
    try:
        part.write_text(text, encoding="utf-8")
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
