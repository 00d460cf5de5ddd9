"""Values of configuration files, each checked where it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_vl.errors import ModelError

__all__ = ["flag", "number", "numbers", "parse_json_object", "section", "whole_number"]


def parse_json_object(text: str, file: Path) -> dict[str, Any]:
    """Parse a JSON file that holds an object.

    Raises:
        ModelError: it does not, or is nested without end.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not valid JSON: {error}", file=str(file)) from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} should hold a JSON object, not {type(value).__name__}", file=str(file))
    return value


def section(config: Mapping[str, Any], key: str, file: Path) -> Mapping[str, Any]:
    """Return a part of a configuration, empty if it is not there.

    Raises:
        ModelError: it is no object.
    """
    value = config.get(key, {})
    if not isinstance(value, Mapping):
        raise _wrong(file, key, "an object", value)
    return value


def whole_number(config: Mapping[str, Any], key: str, file: Path, *, low: int, high: int, default: int = 0) -> int:
    """Return a whole number from `low` to `high`, or the default if it is not there or null.

    Raises:
        ModelError: it is something else.
    """
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(file, key, f"a whole number from {low} to {high}", value)
    return value


def flag(config: Mapping[str, Any], key: str, file: Path, *, default: bool) -> bool:
    """Return true or false, or the default if it is not there.

    Raises:
        ModelError: it is something else.
    """
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise _wrong(file, key, "true or false", value)
    return value


def number(config: Mapping[str, Any], key: str, file: Path, *, default: float) -> float:
    """Return a finite number, or the default if it is not there.

    Raises:
        ModelError: it is something else.
    """
    value = config.get(key, default)
    if not _is_number(value):
        raise _wrong(file, key, "a finite number", value)
    return float(value)


def numbers(
    config: Mapping[str, Any], key: str, file: Path, *, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Return three finite numbers, one for each channel, or the default if they are not there.

    Raises:
        ModelError: it is something else.
    """
    value = config.get(key, default)
    if not isinstance(value, (list, tuple)) or len(value) != 3 or not all(map(_is_number, value)):
        raise _wrong(file, key, "three finite numbers", value)
    first, second, third = (float(entry) for entry in value)
    return first, second, third


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e30 and math.isfinite(value)


def _wrong(file: Path, key: str, wanted: str, value: object) -> ModelError:
    return ModelError(f"{file}: {key} should be {wanted}, not {_shown(value)}", file=str(file))


def _shown(value: object) -> str:
    """Return a value as the file writes it, or nearly so, and not too long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "an enormous number"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."
