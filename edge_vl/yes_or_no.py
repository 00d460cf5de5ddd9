"""What a model's answer to a yes/no question means. Pure."""

from __future__ import annotations

import re

__all__ = ["yes_or_no"]

# The word itself, before it at most marks, an empty promise ("Answer:", "The answer is") and a greeting of politeness.
_ANSWER = re.compile(
    r"[\W_]*(?:(?:the\s+)?answer(?:\s+is)?[\W_]+)?(?:well[\W_]+|sure[\W_]+)?(?P<word>yes|no)(?![^\W_])(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_UNDECIDED = re.compile(r"[\W_]*(?:(?:and|or)[\W_]+)?(?:yes|no|idea|clue|way\s+(?:to|of)\b)(?![^\W_])", re.IGNORECASE)

_MAX_CHARACTERS = 200
"""What comes later than this does not change what the first word says."""


def yes_or_no(text: str) -> bool | None:
    """Read an answer that begins with yes or no, such as `Yes, a parcel.` or `The answer is: **no**`.

    Returns:
        None where it says neither, or both (`Yes and no`), or that it does not know (`No idea`, `Not sure`).
    """
    found = _ANSWER.match(text[:_MAX_CHARACTERS])
    if found is None or _UNDECIDED.match(found["rest"]) is not None:
        return None
    return found["word"].lower() == "yes"
