"""Reading JSON that anybody may have sent: small enough, flat enough, and meaning one thing only."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn

from edge_vl.errors import EdgeVLError

__all__ = ["MAX_DEPTH", "MAX_VALUES", "PayloadError", "kind_of", "param_of", "read_object", "shown", "top_level_texts"]

MAX_DEPTH = 32
"""Objects and arrays within each other."""

MAX_VALUES = 10_000
"""Values of one payload, however small: each costs more than its bytes."""

_MAX_TOKENS_LOOKED_AT = 4 * MAX_VALUES
"""Of a payload that is broken."""

_MAX_DIGITS = 32

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+'
"""A text without its closing quotation mark, which is missing where the JSON is cut off. Linear: it never goes back."""

_TOKENS = re.compile(rf'{_STRING}"?|[\[\]{{}}:,]', re.DOTALL)

_BRACKETS = re.compile(rf'{_STRING}"?|[\[\]{{}},]', re.DOTALL)

_PLAIN = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)

_UNUSABLE = re.compile("[\x00\ud800-\udfff]")
"""NUL, which ends texts for other programs, and halves of characters, which cannot be written as UTF-8."""

_MAGIC = (
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x89PNG", "a PNG picture"),
    (b"RIFF", "a WebP picture"),
    (b"GIF8", "a GIF picture"),
)


class PayloadError(EdgeVLError):
    """A payload is not the JSON that it should be. Its words hold no value of the payload, at most a key."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """Keep which part it is about, as the sender wrote it: `images[0].camera`; None: the whole."""
        super().__init__(message)
        self.message = message
        self.param = param


def read_object(payload: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Parse a payload that holds one JSON object.

    Stricter than `json.loads`: no key twice, no NaN or infinity, no number of unreasonable length, no NUL and no half
    of a character in a text.

    Args:
        payload: anything at all.
        max_bytes: of it.
        max_depth: objects and arrays within each other.

    Raises:
        PayloadError: it is something else, or more than that.
    """
    if len(payload) > max_bytes:
        raise PayloadError(f"the payload has {len(payload)} bytes and may have {max_bytes}")
    if not payload.strip():
        raise PayloadError("the payload is empty; a JSON object is expected")
    for magic, what in _MAGIC:
        if payload.startswith(magic):
            raise PayloadError(f"the payload is {what}; a JSON object is expected")
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PayloadError(f"the payload is not UTF-8 (byte {error.start}); a JSON object is expected") from None
    _check_shape(text, max_depth)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_whole,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        raise PayloadError(f"the payload is not valid JSON: {error.msg} (character {error.pos})") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    if not isinstance(value, dict):
        raise PayloadError(f"the payload is {kind_of(value)}; a JSON object is expected")
    if "\\u" in text:
        _check_texts(value)
    return value


def top_level_texts(payload: bytes, names: Mapping[str, int], *, max_bytes: int) -> tuple[dict[str, str | None], bool]:
    """Find texts of the outermost object, also where the rest is broken, cut off, nested too deep or not UTF-8.

    Args:
        payload: anything at all.
        names: of the keys, each with the most characters that its text may have.
        max_bytes: as much of it is looked at.

    Returns:
        The text of every key that is there; None where it is no text, too long, unusable or there more than once. And
        whether the whole object was seen, so that a key not found is not there.
    """
    text = payload[:max_bytes].decode("utf-8", errors="replace")
    found: dict[str, str | None] = {}
    if not text.lstrip(" \t\r\n\ufeff").startswith("{"):
        return found, False
    depth = 0
    is_key = False
    key: str | None = None
    for match in islice(_TOKENS.finditer(text), _MAX_TOKENS_LOOKED_AT):
        token = match.group()
        if token in ("{", "["):
            depth += 1
            if depth == 1:
                is_key = True
            elif key is not None:
                found[key], key = None, None
        elif token in ("}", "]"):
            depth -= 1
            if key is not None and depth == 0:
                found[key] = None
            if depth == 0:
                return found, len(payload) <= max_bytes
        elif depth != 1:
            continue
        elif token == ",":
            if key is not None:  # neither text, object nor array stood behind it
                found[key] = None
            is_key, key = True, None
        elif token == ":":
            is_key = False
        elif is_key:
            name = _loaded(token)
            key = name if name in names else None
        elif key is not None:
            said = _loaded(token) if key not in found else None
            found[key] = said if said is not None and len(said) <= names[key] else None
            key = None
    if key is not None:
        found[key] = None
    return found, False


def shown(name: str) -> str:
    """Return a name that somebody sent so that it can stand in one line of a log."""
    return name if _PLAIN.fullmatch(name) else f"{name!r:.60}"


def param_of(name: str) -> str | None:
    """Return a name that somebody sent if it can be the `param` of an error reply."""
    return name if _PLAIN.fullmatch(name) else None


def _loaded(token: str) -> str | None:
    """Return the text that a token of JSON stands for; None if it cannot be used."""
    try:
        text = json.loads(token)
    except ValueError:
        return None
    return text if not _UNUSABLE.search(text) and "\ufffd" not in text else None


def _check_shape(text: str, max_depth: int) -> None:
    """See that brackets are not nested too deep, and values not too many, before a parser makes objects of them."""
    depth, num_values = 0, 1
    for match in _BRACKETS.finditer(text):
        first = text[match.start()]
        if first in "{[":
            depth += 1
            if depth > max_depth:
                raise _too_deep(max_depth)
        elif first in "}]":
            depth -= 1
            continue
        elif first != ",":
            continue
        num_values += 1
        if num_values > MAX_VALUES:
            raise PayloadError(f"the payload holds more than {MAX_VALUES} values")


def _too_deep(max_depth: int) -> PayloadError:
    return PayloadError(f"the payload is nested deeper than {max_depth} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise PayloadError(f"the key {shown(key)} is there twice", param=param_of(key))
            seen.add(key)
    return content


def _no_constant(name: str) -> NoReturn:
    raise PayloadError(f"the payload is not valid JSON: {name} is no number there")


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise PayloadError(f"a number has {len(digits)} digits; at most {_MAX_DIGITS} make sense")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise PayloadError("a number is too large")
    return value


def _check_texts(value: dict[str, Any]) -> None:
    for path, text in _texts(value, ""):
        if bad := _UNUSABLE.search(text):
            what = "the character NUL" if bad.group() == "\x00" else "half of a character (a lone surrogate)"
            raise PayloadError(f"{shown(path) if path else 'a text'} holds {what}", param=param_of(path))


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every text with its path; a key has the path of the object that it stands in."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield path, key
            yield from _texts(member, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _texts(member, f"{path}[{index}]")


def kind_of(value: Any) -> str:
    """Return what a value of JSON is, in words; a number of usual size is named."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, (int, float)):
        return f"{value}" if abs(value) < 1e15 else "a huge number"
    return "an array" if isinstance(value, list) else "an object"
