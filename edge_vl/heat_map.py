"""A heat map of numbers by row and column, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

__all__ = ["draw_heat_map"]

_CELL_WIDTH, _CELL_HEIGHT, _MARGIN, _TEXT = 110, 26, 16, 15
_COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Dark to light, told apart by people who see fewer colours, too: five steps of the palette viridis."""

_INK, _PAPER, _NONE = (30, 30, 30), (255, 255, 255), (225, 225, 225)


def draw_heat_map(
    title: str, columns: Sequence[str], rows: Sequence[str], values: Sequence[Sequence[float | None]], note: str = ""
) -> Image.Image:
    """Draw numbers as coloured cells, each with its number in it.

    Colours follow the logarithm within each column, since columns may have units of their own.

    Args:
        title: stands above.
        columns: heads of the columns.
        rows: labels of the rows.
        values: a row of numbers for each label, >= 0; None: there is none.
        note: one line below, such as what the numbers are.

    Returns:
        An RGB picture.

    Raises:
        ValueError: the table is not rectangular or empty.
    """
    if not rows or not columns or len(values) != len(rows) or any(len(row) != len(columns) for row in values):
        raise ValueError("a heat map needs one value for each row and column")
    font = ImageFont.load_default(_TEXT)
    bold = ImageFont.load_default(_TEXT + 4)
    label_width = int(max(font.getlength(label) for label in rows)) + _MARGIN
    cell_width = max(_CELL_WIDTH, int(max(font.getlength(head) for head in columns)) + _MARGIN)
    width = max(
        label_width + cell_width * len(columns) + 2 * _MARGIN,
        int(max(bold.getlength(title), font.getlength(note))) + 2 * _MARGIN,
    )
    top = 3 * _MARGIN + 2 * _TEXT
    height = top + _CELL_HEIGHT * len(rows) + 3 * _MARGIN
    picture = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(picture)
    draw.text((_MARGIN, _MARGIN), title, _INK, bold)
    for number, head in enumerate(columns):
        x = _MARGIN + label_width + cell_width * number + cell_width // 2
        draw.text((x, top - _MARGIN // 2), head, _INK, font, anchor="ms")
    ranges = [_range([row[number] for row in values]) for number in range(len(columns))]
    for line, (label, row) in enumerate(zip(rows, values, strict=True)):
        y = top + _CELL_HEIGHT * line
        draw.text((_MARGIN, y + _CELL_HEIGHT // 2), label, _INK, font, anchor="lm")
        for number, value in enumerate(row):
            x = _MARGIN + label_width + cell_width * number
            colour = _NONE if value is None else _colour(value, *ranges[number])
            draw.rectangle((x, y, x + cell_width - 2, y + _CELL_HEIGHT - 2), fill=colour)
            text = "-" if value is None else f"{value:.3g}"
            ink = _PAPER if sum(colour) < 380 else _INK
            draw.text((x + cell_width // 2, y + _CELL_HEIGHT // 2), text, ink, font, anchor="mm")
    if note:
        draw.text((_MARGIN, height - 2 * _MARGIN), note, _INK, font)
    return picture


def _range(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the logarithms of the least and the largest positive value."""
    logarithms = [math.log(value) for value in values if value is not None and 0 < value < math.inf]
    return (min(logarithms), max(logarithms)) if logarithms else (0.0, 0.0)


def _colour(value: float, low: float, high: float) -> tuple[int, int, int]:
    if value <= 0 or high <= low:
        place = 0.0
    else:
        place = min(1.0, max(0.0, ((math.log(value) if value < math.inf else high) - low) / (high - low)))
    place *= len(_COLOURS) - 1
    first = min(int(place), len(_COLOURS) - 2)
    share = place - first
    red, green, blue = (
        round(one + (two - one) * share) for one, two in zip(_COLOURS[first], _COLOURS[first + 1], strict=True)
    )
    return red, green, blue
