"""Checks of what callers pass, with errors that name the option and its range."""

from __future__ import annotations

import numbers
from typing import Any

from edge_vl.errors import RequestError

__all__ = ["require_number", "require_text", "require_whole_number"]


def require_number(value: Any, field: str, low: float, high: float, range_text: str = "") -> None:
    """See that an option is a number from `low` to `high`; NumPy's are fine, NaN and True are not.

    Raises:
        RequestError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not _is_within(value, low, high):
        range_text = range_text or f"from {low:g} to {high:g}"
        raise RequestError(f"{field} must be a number {range_text}, not {_shown(value)}", field=field)


def require_whole_number(value: Any, field: str, low: int, high: int | None = None) -> None:
    """See that an option is a whole number, at least `low` and at most `high`.

    Raises:
        RequestError: it is not.
    """
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise RequestError(f"{field} must be a whole number, at least {low}{most}, not {_shown(value)}", field=field)


def require_text(value: Any, field: str) -> None:
    """See that an option is text.

    Raises:
        RequestError: it is not.
    """
    if not isinstance(value, str):
        raise RequestError(f"{field} must be text, not {_shown(value)}", field=field)


def _is_within(value: Any, low: float, high: float) -> bool:
    return bool(low <= value <= high)


def _shown(value: Any) -> str:
    if isinstance(value, (str, int, float, bytes)) or value is None:
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
        return text if len(text) <= 60 else f"{text[:60]}..."
    return f"a {type(value).__name__}"
