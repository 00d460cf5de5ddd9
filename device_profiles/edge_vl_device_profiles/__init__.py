"""Device profiles that come with edge-vl: one TOML file per device. `docs/profiles.md` explains the keys."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["profile_files"]


def profile_files() -> tuple[Traversable, ...]:
    """Return the profiles' files, sorted by name."""
    return tuple(sorted((file for file in files(__name__).iterdir() if file.name.endswith(".toml")), key=_name))


def _name(file: Traversable) -> str:
    return file.name
