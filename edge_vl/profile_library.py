"""The device profiles at hand: those that came with edge-vl, the user's own, or one by name or file."""

from __future__ import annotations

import difflib
from importlib.resources import as_file
from pathlib import Path

from edge_vl.environment import read_environment
from edge_vl.errors import ProfileError
from edge_vl.profile import Profile, read_profile

__all__ = ["find_profile", "list_profiles"]


def list_profiles(folder: Path | None = None) -> tuple[Profile, ...]:
    """Read every profile, sorted by id. A user's own replaces the shipped one of the same id.

    Args:
        folder: with the user's own; None: what `EDGE_VL_PROFILES_DIR` names.

    Raises:
        ProfileError: one of them cannot be used, or two of the user's have one id.
        RequestError: the variable names no folder.
    """
    from edge_vl_device_profiles import profile_files  # late: a data package, read when it is needed

    profiles: dict[str, Profile] = {}
    for resource in profile_files():
        with as_file(resource) as file:
            shipped = read_profile(file, is_shipped=True)
        profiles[shipped.id] = shipped
    folder = read_environment().profiles_dir if folder is None else folder
    for file in sorted(folder.glob("*.toml")) if folder is not None else ():
        own = read_profile(file)
        if own.id in profiles and not profiles[own.id].is_shipped:
            raise ProfileError(
                f"{file}: id should be one of its own; {profiles[own.id].path} has {own.id!r}, too",
                path=str(file),
                key="id",
                expected="an id of its own",
                got=repr(own.id),
            )
        profiles[own.id] = own
    return tuple(sorted(profiles.values(), key=lambda profile: profile.id))


def find_profile(name: str | Path, profiles: tuple[Profile, ...]) -> Profile:
    """Find a profile by its id, or read the file that is named.

    Args:
        name: an id, or the path of a `.toml` file.
        profiles: those at hand.

    Raises:
        ProfileError: there is no such profile, or its file cannot be used.
    """
    if isinstance(name, Path) or name.endswith(".toml"):
        return read_profile(Path(name).expanduser())
    ids = [profile.id for profile in profiles]
    if name in ids:
        return profiles[ids.index(name)]
    close = difflib.get_close_matches(name, ids, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(ids)}"
    raise ProfileError(
        f"there is no device profile {name!r} (a path to a .toml file will do, too); {hint}",
        path=name,
        key="id",
        expected=f"one of {', '.join(ids)}",
        got=repr(name),
    )
