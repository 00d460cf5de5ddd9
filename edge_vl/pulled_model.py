"""A pulled model: a folder that shares its weights with the Hub's cache, and a manifest that says where all came from.

It is used without the Hub, its library or a network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from edge_vl.config_values import parse_json_object
from edge_vl.errors import ModelError

__all__ = ["MANIFEST", "PulledFile", "PulledModel", "PulledSource", "pulled_models", "read_pulled_model"]

MANIFEST = "edge_vl_model.json"
_SCHEMA = 1
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PulledSource:
    """A repository that files were taken from.

    Attributes:
        repo: `owner/name`.
        revision: the branch, tag or commit that was asked for.
        commit: what it was.
        licence: as its model card said; empty if it did not.
        cache: the repository's folder in the Hub's cache.
    """

    repo: str
    revision: str
    commit: str
    licence: str
    cache: str


@dataclass(frozen=True, slots=True)
class PulledFile:
    """One file.

    Attributes:
        path: in the model's folder, with forward slashes.
        repo: where it came from.
        source: its path there.
        nbytes: its size.
        sha256: of its content, in hex.
    """

    path: str
    repo: str
    source: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PulledModel:
    """What a manifest says.

    Attributes:
        name: short name.
        title: for people.
        folder: where it is.
        pulled_at: date and time, in UTC.
        sources: its repositories.
        files: its files.
    """

    name: str
    title: str
    folder: Path
    pulled_at: str
    sources: tuple[PulledSource, ...]
    files: tuple[PulledFile, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    @property
    def licence(self) -> str:
        """The licences that its model cards name."""
        return ", ".join(dict.fromkeys(source.licence for source in self.sources if source.licence))

    def to_json(self) -> str:
        """Return the manifest's text."""
        return json.dumps(
            {
                "schema": _SCHEMA,
                "name": self.name,
                "title": self.title,
                "pulled_at": self.pulled_at,
                "sources": [asdict(source) for source in self.sources],
                "files": [asdict(file) for file in self.files],
            },
            indent=2,
            ensure_ascii=False,
        )

    def check(self) -> None:
        """See that all files are there. Settings may have been changed: they are the user's.

        Raises:
            ModelError: one is gone or has another size, as a symbolic link has after the cache was emptied.
        """
        for file in self.files:
            path = self.folder / file.path
            try:
                is_there = path.stat().st_size == file.nbytes or "/" not in file.path
            except OSError:
                is_there = False
            if not is_there:
                raise ModelError(
                    f"{self.name}: {path} is gone or has changed; run: "
                    f"edge-vl models pull {self.name.replace('--', '/')}",
                    file=str(path),
                )


def pulled_models(models_dir: Path) -> tuple[PulledModel, ...]:
    """Return the models that were pulled, by name. What cannot be read is left out."""
    return tuple(sorted(_readable(models_dir), key=lambda model: model.name))


def read_pulled_model(folder: Path) -> PulledModel:
    """Read a manifest.

    Raises:
        ModelError: there is none, or it cannot be used.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path} is too large for a manifest", file=str(path))
        content = parse_json_object(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", file=str(path)) from error
    if content.get("schema") != _SCHEMA:
        raise ModelError(
            f"{path} has schema {content.get('schema')!r}, and this version of edge-vl knows {_SCHEMA}; pull the model "
            "again",
            file=str(path),
        )
    try:
        sources = tuple(PulledSource(**entry) for entry in _tables(content["sources"]))
        files = tuple(PulledFile(**entry) for entry in _tables(content["files"]))
        model = PulledModel(
            folder.name, str(content.get("title", "")), folder, str(content.get("pulled_at", "")), sources, files
        )
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged ({error}); pull the model again", file=str(path)) from error
    for file in files:
        place = PurePosixPath(file.path)
        if place.is_absolute() or ".." in place.parts or not isinstance(file.nbytes, int):
            raise ModelError(f"{path} is damaged (file {file.path!r:.80}); pull the model again", file=str(path))
    return model


def _readable(models_dir: Path) -> Iterator[PulledModel]:
    if not models_dir.is_dir():
        return
    for folder in models_dir.iterdir():
        if not folder.name.startswith(".") and (folder / MANIFEST).is_file():
            try:
                yield read_pulled_model(folder)
            except ModelError:
                continue


def _tables(value: Any) -> Sequence[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise TypeError("not a list of objects")
    for entry in value:
        if not all(isinstance(item, (str, int)) for item in entry.values()):
            raise TypeError("an entry is neither a text nor a number")
    return value
