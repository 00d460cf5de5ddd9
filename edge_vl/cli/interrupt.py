"""What a signal raises in the main thread of a command."""

from __future__ import annotations

__all__ = ["Interrupt"]


class Interrupt(BaseException):
    """SIGINT or SIGTERM; no KeyboardInterrupt, which Typer would take for itself."""
