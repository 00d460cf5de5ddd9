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

from edge_vl.errors import ConfigError, ProfileError

__all__ = ["Kind", "flag", "names", "number", "numbers", "read_toml", "refused", "regex", "text", "whole"]

_MAX_BYTES = 1 << 20

_READABLE, _TOML = "a file that can be read", "valid TOML"
_SAID_ALREADY = (_READABLE, _TOML)
"""What is expected of every file; what is wrong says it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a key may hold.

    Attributes:
        expected: in words.
        accepts: whether a value will do.
        is_required: whether the table it stands in must have it.
        is_secret: whether errors must not show what it holds.
        is_elsewhere: whether nothing at all will do, because people look for the key and it is elsewhere.
    """

    expected: str
    accepts: Callable[[Any], bool]
    is_required: bool = False
    is_secret: bool = False
    is_elsewhere: bool = False


def text(pattern: str = "", words: str = "a text", *, is_required: bool = False, is_secret: bool = False) -> Kind:
    """Return the kind of one text, not empty, that a pattern matches as a whole."""
    return Kind(
        words,
        lambda value: _is_text(value) and (not pattern or bool(re.fullmatch(pattern, value))),
        is_required,
        is_secret,
    )


def refused(instead: str) -> Kind:
    """Return the kind of a key that people look for and that is elsewhere; what it holds is never shown.

    Args:
        instead: what to do, as in `left out; ...`.
    """
    return Kind(instead, lambda value: False, is_secret=True, is_elsewhere=True)


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
    return Kind(f"a number from {low:g} to {high:g}", lambda value: _is_number(value, low, high))


def numbers(how_many: int, low: float, high: float) -> Kind:
    """Return the kind of a list of so many numbers in a range."""
    return Kind(
        f"a list of {how_many} numbers from {low:g} to {high:g}",
        lambda value: (
            isinstance(value, list) and len(value) == how_many and all(_is_number(one, low, high) for one in value)
        ),
    )


def flag() -> Kind:
    """Return the kind of true or false."""
    return Kind("true or false", lambda value: isinstance(value, bool))


def read_toml(
    path: Path, schema: Mapping[str, Kind], *, error_type: type[ConfigError] = ProfileError
) -> dict[str, Any]:
    """Read a file and check it.

    Args:
        path: of the file.
        schema: every key that it may have.
        error_type: what is raised.

    Returns:
        Its tables; every value is of its key's kind, and nothing else is in there.

    Raises:
        ConfigError: it cannot be read, is no TOML, or something in it is unknown, missing or out of range. It is an
            `error_type`.
    """
    try:
        return _read(path, schema)
    except _Trouble as trouble:
        message = trouble.message(path)
        raise error_type(
            message, path=str(path), key=trouble.key, expected=trouble.expected, got=trouble.got
        ) from trouble.__cause__


class _Trouble(Exception):
    """Something is wrong with a file, whatever it is for."""

    def __init__(self, key: str, expected: str, got: str, what: str = "") -> None:
        super().__init__(key)
        self.key = key
        self.expected = expected
        self.got = got
        self.what = what

    def message(self, path: Path) -> str:
        where = f"{path}: {self.key}" if self.key else str(path)
        if self.what and self.expected in _SAID_ALREADY:
            return f"{where} {self.what}"
        if self.what:
            return f"{where}: {self.what}; expected {self.expected}"
        return f"{where} should be {self.expected}, not {self.got}"


def _read(path: Path, schema: Mapping[str, Kind]) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _Trouble("", "a file of at most 1 MiB", f"{path.stat().st_size} bytes")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _Trouble("", _READABLE, why, f"cannot be read: {why}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _Trouble("", _TOML, str(error), f"is not valid TOML: {error}{_array_hint(str(error), schema)}") from error
    _check_table(content, "", "", schema)
    return content


def _check_table(table: Mapping[str, Any], pattern: str, shown: str, schema: Mapping[str, Kind]) -> None:
    """Check one table; `pattern` is its name in the schema, `shown` its name in the file."""
    known: dict[str, Kind | str] = {}
    for name, member in _members(pattern, schema):
        if not isinstance(known.get(name), Kind):
            known[name] = member
    for key, value in table.items():
        inner = f"{shown}{key}"
        if key not in known:
            usable = [name for name, kind in known.items() if not (isinstance(kind, Kind) and kind.is_elsewhere)]
            close = difflib.get_close_matches(key, usable, n=1)
            hint = f"{shown}{close[0]}" if close else ""
            expected = f"one of {', '.join(sorted(usable))}" if usable else "nothing"
            raise _Trouble(
                inner, expected, repr(key), f"unknown key; did you mean {hint!r}?" if hint else "unknown key"
            )
        kind = known[key]
        if isinstance(kind, Kind) and isinstance(value, dict) and any(_members(f"{pattern}{key}.", schema)):
            kind = "table"  # it may be either
        if isinstance(kind, Kind):
            if not kind.accepts(value):
                got = f"{_called(value)}, which is not shown" if kind.is_secret else _shown(value)
                raise _Trouble(inner, kind.expected, got)
        elif kind == "table":
            if not isinstance(value, dict):
                raise _Trouble(inner, "a table", _shown(value))
            _check_table(value, f"{pattern}{key}.", f"{inner}.", schema)
        else:
            if isinstance(value, dict):
                expected = f"an array of tables: write [[{pattern.replace('[]', '')}{key}]] for each"
                raise _Trouble(inner, expected, f"one table, [{pattern.replace('[]', '')}{key}]")
            if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
                raise _Trouble(inner, "an array of tables, at least one", _called(value))
            for index, entry in enumerate(value):
                _check_table(entry, f"{pattern}{key}[].", f"{inner}[{index}].", schema)
    for key, kind in known.items():
        if isinstance(kind, Kind) and kind.is_required and key not in table:
            raise _Trouble(f"{shown}{key}", kind.expected, "nothing")


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


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: Any, low: float, high: float) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and low <= value <= high


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _array_hint(error: str, schema: Mapping[str, Kind]) -> str:
    """Return what to write where an array of tables was written as one table, twice."""
    found = re.search(r"Cannot declare \('(.+)',?\) twice", error)
    name = "" if found is None else found[1].replace("', '", ".")
    is_array = any(key.replace("[]", "").startswith(f"{name}.") for key in schema if f"{name}[]." in key)
    return f"; write [[{name}]] for each" if name and is_array else ""


def _called(value: Any) -> str:
    """Return what a value is, without showing it."""
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or a time")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
