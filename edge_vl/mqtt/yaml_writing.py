"""Writing values of JSON as YAML, without a library for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["to_yaml"]

_PLAIN_KEY = re.compile(r"[A-Za-z$_][\w$.-]*", re.ASCII)
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def to_yaml(value: dict[str, Any]) -> str:
    """Return a document: tables and lists in block style, texts in quotation marks as in JSON."""
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, member in value.items():
            yield from _entry(f"{indent}{_key(key)}:", member, indent + "  ")
    elif isinstance(value, list) and value:
        for member in value:
            yield from _entry(f"{indent}-", member, indent + "  ")
    else:
        yield indent + _scalar(value)


def _entry(head: str, member: Any, indent: str) -> Iterator[str]:
    if isinstance(member, (dict, list)) and member:
        yield head
        yield from _lines(member, indent)
    else:
        yield f"{head} {_scalar(member)}"


def _key(key: str) -> str:
    is_plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS
    return key if is_plain else _scalar(key)


def _scalar(value: Any) -> str:
    """Return a value in one line, its characters that cannot be seen by their numbers: YAML ends lines at some."""
    written = json.dumps(value, ensure_ascii=False)
    return written if written.isprintable() else "".join(map(_visible, written))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08x}"
