"""A repository on the Hugging Face Hub at one commit: what it holds, nothing downloaded yet."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HubFile", "HubRepo"]


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file.

    Attributes:
        path: inside the repository, with forward slashes.
        nbytes: its size.
        sha256: of its content, in hex; empty for a small file, which Git keeps itself.
        git_sha1: Git's name of its content; for a large file, of the pointer to it.
    """

    path: str
    nbytes: int
    sha256: str = ""
    git_sha1: str = ""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class HubRepo:
    """A repository at one commit.

    Attributes:
        repo_id: `owner/name`.
        revision: the branch, tag or commit that was asked for.
        commit: what it is.
        licence: as its model card says; empty if it does not.
        is_gated: whether its publisher's terms must be accepted first.
        files: all of them.
    """

    repo_id: str
    revision: str
    commit: str
    licence: str
    is_gated: bool
    files: tuple[HubFile, ...]
