"""What may be told to a camera over MQTT, as plain text. Pure."""

from __future__ import annotations

import difflib
import re
import unicodedata
from typing import Literal, get_args

from edge_vl.errors import RequestError

__all__ = [
    "COMMANDS",
    "MAX_EVERY_S",
    "MAX_QUESTION_CHARS",
    "PRESS",
    "Command",
    "read_enabled",
    "read_every_s",
    "read_question",
    "shown_every_s",
    "shown_on_off",
    "unknown_command",
]

Command = Literal["enabled", "question", "every_s", "ask"]

COMMANDS: tuple[Command, ...] = get_args(Command)

PRESS = "PRESS"
"""Sent to `ask`, it asks the camera's own question; anything else is a question itself."""

MAX_QUESTION_CHARS = 500

MAX_EVERY_S = 86_400.0

_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")

_NOT_SHOWN = frozenset({"Cc", "Cf", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that are not seen: a question of these looks like another one, or like none."""

_JOINERS = frozenset("\u200c\u200d")
"""Format characters that words of some languages and joined emoji need; alone they are no question."""

_MAX_BYTES = 4 * MAX_QUESTION_CHARS


def read_enabled(payload: bytes) -> bool:
    """Read `ON` or `OFF`.

    Raises:
        RequestError: it is something else.
    """
    if payload == b"ON":
        return True
    if payload == b"OFF":
        return False
    raise RequestError("enabled is ON or OFF", field="enabled")


def read_question(payload: bytes, field: Command = "question") -> str:
    """Read a question of 1 to 500 characters on one line.

    Raises:
        RequestError: it is something else.
    """
    text = ""
    if len(payload) <= _MAX_BYTES:
        try:
            text = payload.decode().strip()
        except UnicodeDecodeError:
            raise RequestError(f"{field} is text in UTF-8", field=field) from None
    if not 1 <= len(text) <= MAX_QUESTION_CHARS:
        raise RequestError(f"{field} is a question of 1 to {MAX_QUESTION_CHARS} characters", field=field)
    if any(unicodedata.category(character) in _NOT_SHOWN and character not in _JOINERS for character in text):
        raise RequestError(f"{field} is one line without control or other characters that are not seen", field=field)
    if not any(unicodedata.category(character)[0] in "LNPS" for character in text):
        raise RequestError(f"{field} is a question of 1 to {MAX_QUESTION_CHARS} characters", field=field)
    return text


def read_every_s(payload: bytes) -> float | None:
    """Read the least seconds between two answers, 0 to 86,400; 0 is None: as fast as it goes.

    Raises:
        RequestError: it is something else.
    """
    text = payload[:32].decode("ascii", errors="replace").strip()
    if _NUMBER.fullmatch(text) is None or float(text) > MAX_EVERY_S:
        raise RequestError(
            f"every_s is a number of seconds from 0 (as fast as it goes) to {MAX_EVERY_S:.0f}", field="every_s"
        )
    return float(text) or None


def unknown_command(name: str) -> str:
    """Return what is told about a command that there is not."""
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(COMMANDS)}"
    return f"there is no command {name!r:.80}; {hint}"


def shown_on_off(is_on: bool) -> str:
    """Write a switch's state."""
    return "ON" if is_on else "OFF"


def shown_every_s(every_s: float | None) -> str:
    """Write what `read_every_s` reads."""
    return "0" if every_s is None else f"{every_s:.6f}".rstrip("0").rstrip(".")
