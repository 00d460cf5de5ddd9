"""The catalog: models that can be pulled by a short name, and the repositories that hold their files."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from edge_vl.toml_file import read_toml, text

__all__ = ["CatalogEntry", "catalog"]

_REPO = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_KEYS = {
    "models[].name": text(r"[a-z0-9][a-z0-9.-]*", "a short name", is_required=True),
    "models[].title": text(is_required=True),
    "models[].repo": text(_REPO, "owner/name"),
    "models[].gguf": text(_REPO, "owner/name"),
}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model.

    Attributes:
        name: short name.
        title: what its publisher calls it.
        repo: repository in the transformers layout; empty: none is needed.
        gguf: repository with GGUF files; empty: there is none.
    """

    name: str
    title: str
    repo: str = ""
    gguf: str = ""

    @property
    def repos(self) -> tuple[str, ...]:
        """Its repositories, the one in the transformers layout first."""
        return tuple(dict.fromkeys(repo for repo in (self.repo, self.gguf) if repo))


@functools.cache
def catalog() -> Mapping[str, CatalogEntry]:
    """Return the models by short name, in the file's order."""
    content = read_toml(Path(__file__).with_name("catalog.toml"), _KEYS)
    return MappingProxyType({entry["name"]: CatalogEntry(**entry) for entry in content["models"]})
