"""Fetching a password from an environment variable or a file."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from edge_vl.environment import read_secret_variable
from edge_vl.errors import RequestError

__all__ = ["read_secret"]

_MAX_BYTES = 4096


def read_secret(env: str | None, file: Path | None, *, on_note: Callable[[str], object]) -> str | None:
    """Fetch a password.

    Args:
        env: name of the variable that holds it; None: none.
        file: that holds it, one line; None: none.
        on_note: told when others may read the file.

    Returns:
        The password without the end of the line; None when neither is given.

    Raises:
        RequestError: there is none there, or both are given. `field` is `password_env` or `password_file`.
    """
    if env is not None and file is not None:
        raise RequestError("only one of password_env and password_file may be given", field="password_env")
    if env is not None:
        return read_secret_variable(env, "password_env")
    if file is None:
        return None
    try:
        content = file.read_bytes()[: _MAX_BYTES + 1]
        mode = file.stat().st_mode
    except OSError as error:
        # Without the path, which may be the password itself, put into the wrong place.
        raise RequestError(f"password_file cannot be read: {error.strerror}", field="password_file") from None
    if mode & stat.S_IROTH:
        on_note(f"everybody on this machine can read the password in {file}; run: chmod o= {file}")
    try:
        password = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise RequestError(f"password_file {file} is not UTF-8", field="password_file") from None
    if not password or len(content) > _MAX_BYTES or any(character in password for character in "\n\r\x00"):
        raise RequestError(
            f"password_file {file} should hold a password and nothing else: one line of at most {_MAX_BYTES} bytes",
            field="password_file",
        )
    return password
