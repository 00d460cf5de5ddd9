"""Memory, descriptors and threads of a process over time, drawn. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from edge_vl.svg import SvgDrawing

__all__ = ["soak_picture"]

_WIDTH, _HEIGHT = 860.0, 150.0
_LEFT, _RIGHT, _TOP = 70.0, 20.0, 30.0
_COLOUR = "#0969da"
_GREY = "#8c959f"


def soak_picture(readings: Sequence[tuple[float, int, int, int]]) -> str:
    """Return an SVG file.

    Args:
        readings: seconds since the start, anonymous memory in KiB, descriptors, threads; at least one.
    """
    drawing = SvgDrawing(_WIDTH)
    names = ("anonymous memory, MiB", "descriptors", "threads")
    most_s = max(reading[0] for reading in readings) or 1.0
    for panel, name in enumerate(names):
        values = [reading[panel + 1] / (1024 if panel == 0 else 1) for reading in readings]
        top = _TOP + panel * (_HEIGHT + 40)
        most = max(values) * 1.1 or 1.0
        width = _WIDTH - _LEFT - _RIGHT
        drawing.text(_LEFT, top - 8, name, is_bold=True)
        for share in (0.0, 0.5, 1.0):
            y = top + _HEIGHT * (1 - share)
            drawing.line(_LEFT, y, _LEFT + width, y, stroke=_GREY, dashes="2 3")
            drawing.text(_LEFT - 6, y + 4, f"{most * share:.0f}", anchor="end", size=11)
        points = [
            (_LEFT + width * reading[0] / most_s, top + _HEIGHT * (1 - value / most))
            for reading, value in zip(readings, values, strict=True)
        ]
        drawing.path(points, stroke=_COLOUR, width=1.5)
        drawing.text(_LEFT + width, top + _HEIGHT + 16, f"{most_s:.0f} s", anchor="end", size=11)
    return drawing.finish(
        _TOP + len(names) * (_HEIGHT + 40),
        title="A gateway under soak",
        description="Anonymous memory, open descriptors and threads over time.",
    )
