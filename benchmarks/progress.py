"""Progress of a benchmark, on standard error: standard output belongs to the result."""

from __future__ import annotations

import sys

__all__ = ["report"]


def report(text: str) -> None:
    """Show one line."""
    print(text, file=sys.stderr, flush=True)
