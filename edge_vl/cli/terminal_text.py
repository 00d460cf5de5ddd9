"""Text from elsewhere on its way to a terminal. Pure."""

from __future__ import annotations

import re

__all__ = ["terminal_json", "terminal_line", "terminal_text"]

# Control characters but newline and tab (ESC and U+009B begin what steers a terminal), the two separators that break
# lines, what overrides the direction of text and so shows another text than the one that is there, and surrogates.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_SHOWN = "\N{REPLACEMENT CHARACTER}"


def terminal_text(text: str) -> str:
    r"""Return a text that cannot steer a terminal: with `\N{REPLACEMENT CHARACTER}` for each character that could.

    Newlines and tabs stay. Each character is decided by itself, so a text may come in pieces.
    """
    return _STEERING.sub(_SHOWN, text)


def terminal_line(text: str) -> str:
    """Return such a text on one line."""
    return terminal_text(text).replace("\n", " ").replace("\t", " ")


def terminal_json(text: str) -> str:
    """Return JSON, without line breaks, that says the same and cannot steer a terminal."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
