"""A TOML file whose keys are all known: read, checked once, and wrong in words that help.

A schema names every key by its dotted path, as in `memory.total_mib`; `match[].arch` is a key of each table of the
array `match`. A key with keys below it that has a kind of its own may be either: a value, or a table.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_vl.errors import ProfileError

__all__ = ["Kind", "flag", "names", "number", "read_toml", "regex", "text", "whole"]

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """What a key may hold.

    Attributes:
        expected: in words.
        accepts: whether a value will do.
        is_required: whether the table it stands in must have it.
    """

    expected: str
    accepts: Callable[[Any], bool]
    is_required: bool = False


def text(pattern: str = "", words: str = "a text", *, is_required: bool = False) -> Kind:
    """Return the kind of one text, not empty, that a pattern matches as a whole."""
    return Kind(
        words, lambda value: _is_text(value) and (not pattern or bool(re.fullmatch(pattern, value))), is_required
    )


def regex() -> Kind:
    """Return the kind of one regular expression."""
    return Kind("a regular expression", lambda value: _is_text(value) and _compiles(value))


def names(pattern: str = "", words: str = "a list of texts", *, is_required: bool = False) -> Kind:
    """Return the kind of a list of texts, not empty, each of which a pattern matches as a whole."""
    one = text(pattern)
    return Kind(
        words, lambda value: isinstance(value, list) and bool(value) and all(map(one.accepts, value)), is_required
    )


def whole(low: int, high: int, *, is_required: bool = False) -> Kind:
    """Return the kind of a whole number in a range."""
    return Kind(
        f"a whole number from {low} to {high}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
        is_required,
    )


def number(low: float, high: float) -> Kind:
    """Return the kind of a number in a range."""
    return Kind(
        f"a number from {low:g} to {high:g}",
        lambda value: (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
            and low <= value <= high
        ),
    )


def flag() -> Kind:
    """Return the kind of true or false."""
    return Kind("true or false", lambda value: isinstance(value, bool))


def read_toml(path: Path, schema: Mapping[str, Kind]) -> dict[str, Any]:
    """Read a file and check it.

    Args:
        path: of the file.
        schema: every key that it may have.

    Returns:
        Its tables; every value is of its key's kind, and nothing else is in there.

    Raises:
        ProfileError: it cannot be read, is no TOML, or something in it is unknown, missing or out of range.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _error(path, "", "a file of at most 1 MiB", f"{path.stat().st_size} bytes")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise _error(path, "", "a readable file", str(error)) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _error(path, "", "valid TOML", str(error)) from error
    _check_table(path, content, "", "", schema)
    return content


def _check_table(path: Path, table: Mapping[str, Any], pattern: str, shown: str, schema: Mapping[str, Kind]) -> None:
    """Check one table; `pattern` is its name in the schema, `shown` its name in the file."""
    known: dict[str, Kind | str] = {}
    for name, member in _members(pattern, schema):
        if not isinstance(known.get(name), Kind):
            known[name] = member
    for key, value in table.items():
        inner = f"{shown}{key}"
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"{shown}{close[0]}" if close else ""
            expected = f"one of {', '.join(sorted(known))}" if known else "nothing"
            raise _error(
                path, inner, expected, repr(key), f"unknown key; did you mean {hint!r}?" if hint else "unknown key"
            )
        kind = known[key]
        if isinstance(kind, Kind) and isinstance(value, dict) and any(_members(f"{pattern}{key}.", schema)):
            kind = "table"  # it may be either
        if isinstance(kind, Kind):
            if not kind.accepts(value):
                raise _error(path, inner, kind.expected, _shown(value))
        elif kind == "table":
            if not isinstance(value, dict):
                raise _error(path, inner, "a table", _shown(value))
            _check_table(path, value, f"{pattern}{key}.", f"{inner}.", schema)
        else:
            if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
                raise _error(path, inner, "an array of tables, at least one", _shown(value))
            for index, entry in enumerate(value):
                _check_table(path, entry, f"{pattern}{key}[].", f"{inner}[{index}].", schema)
    for key, kind in known.items():
        if isinstance(kind, Kind) and kind.is_required and key not in table:
            raise _error(path, f"{shown}{key}", kind.expected, "nothing")


def _members(pattern: str, schema: Mapping[str, Kind]) -> Iterator[tuple[str, Kind | str]]:
    """Yield the keys of one table: with their kind, or as `table` or `array`."""
    for name, kind in schema.items():
        if name.startswith(pattern):
            first, dot, _ = name.removeprefix(pattern).partition(".")
            if not dot:
                yield first, kind
            elif first.endswith("[]"):
                yield first.removesuffix("[]"), "array"
            else:
                yield first, "table"


def _error(path: Path, key: str, expected: str, got: str, what: str = "") -> ProfileError:
    where = f"{path}: {key}" if key else str(path)
    message = f"{where}: {what}; expected {expected}" if what else f"{where} should be {expected}, not {got}"
    return ProfileError(message, path=str(path), key=key, expected=expected, got=got)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
