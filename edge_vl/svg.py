"""A drawing in SVG whose texts never need more room than was planned for them."""

from __future__ import annotations

import re
import unicodedata
from html import escape

__all__ = ["SvgDrawing", "clean_text", "fitted", "text_width", "wrapped"]

FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

_WIDTHS = {
    " ',.ijl|": 0.35,
    "!()-/:;I[\\]ft": 0.42,
    '"_`r': 0.53,
    "*?Jcsz": 0.56,
    "$0123456789EFLPSTYabdeghknopquvxy{}": 0.65,
    "ABCKRVXZ": 0.71,
    "#&+<=>DGHNOQUw^~": 0.84,
    "%@MWm": 1.01,
}
"""Upper bounds of advance widths, in units of the font's size, of the signs of ASCII.

Source:
    The table `hmtx` of DejaVu Sans, about the widest sans serif that a viewer may put in the place of Helvetica.
"""

_WIDTH_OF = {sign: width for signs, width in _WIDTHS.items() for sign in signs}
_WIDE = 1.2
"""Bound for signs that are not ASCII, which other fonts draw."""
_BOLD = 1.16
"""How much wider the bold font may be, by the same source."""

_UNPRINTABLE = re.compile(
    "[^\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u007f-\u009f\u2028-\u202e\u2066-\u2069]"
)


def clean_text(text: str) -> str:
    """Return text in one line, without what XML forbids and what would turn the direction of writing."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def text_width(text: str, size: float, *, is_bold: bool = False) -> float:
    """Return how wide a text is at most, in the units of `size`."""
    width = sum(_WIDTH_OF.get(sign, 0.0 if unicodedata.combining(sign) else _WIDE) for sign in text) * size
    return width * _BOLD if is_bold else width


def fitted(text: str, width: float, size: float, *, is_bold: bool = False) -> str:
    """Return the text, cut and with an ellipsis where it is wider than `width`; empty if nothing of it fits."""
    if text_width(text, size, is_bold=is_bold) <= width:
        return text
    room = width - text_width("…", size, is_bold=is_bold)
    kept = 0
    while kept < len(text) and text_width(text[: kept + 1], size, is_bold=is_bold) <= room:
        kept += 1
    return text[:kept].rstrip() + "…" if kept else ""


def wrapped(text: str, width: float, size: float, *, max_lines: int) -> list[str]:
    """Break text between words into lines of at most `width`; what is behind the last one is cut."""
    lines: list[str] = []
    words = text.split()
    while words and len(lines) < max_lines:
        taken = 1
        while taken < len(words) and text_width(" ".join(words[: taken + 1]), size) <= width:
            taken += 1
        if len(lines) == max_lines - 1:
            taken = len(words)
        lines.append(fitted(" ".join(words[:taken]), width, size))
        words = words[taken:]
    return lines


class SvgDrawing:
    """Collects shapes and texts; colours are CSS colours, lengths are pixels of the picture."""

    def __init__(self, width: float) -> None:
        """Begin an empty drawing."""
        self.width = width
        self._parts: list[str] = []
        self._hatches: dict[str, str] = {}

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str = "none",
        radius: float = 0,
        tip: str = "",
    ) -> None:
        """Draw a rectangle; `tip` is shown by viewers under the pointer."""
        shape = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"'
        if stroke != "none":
            shape += f' stroke="{stroke}"'
        if radius:
            shape += f' rx="{radius:g}"'
        self._parts.append(f"<rect {shape}><title>{_xml(tip)}</title></rect>" if tip else f"<rect {shape}/>")

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float = 1, dashes: str = ""
    ) -> None:
        """Draw a line."""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(
            f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{stroke}" '
            f'stroke-width="{width:g}"{dashed}/>'
        )

    def path(self, points: list[tuple[float, float]], *, stroke: str, width: float = 1, fill: str = "none") -> None:
        """Draw lines from point to point."""
        steps = " ".join(f"{'L' if index else 'M'}{x:.2f},{y:.2f}" for index, (x, y) in enumerate(points))
        self._parts.append(f'<path d="{steps}" fill="{fill}" stroke="{stroke}" stroke-width="{width:g}"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str = "#1f2328",
        anchor: str = "start",
        is_bold: bool = False,
    ) -> None:
        """Write a text whose base line begins, has its middle, or ends at (x, y): `start`, `middle`, `end`."""
        weight = ' font-weight="700"' if is_bold else ""
        self._parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{weight}>'
            f"{_xml(text)}</text>"
        )

    def hatch(self, colour: str) -> str:
        """Return a fill of thin diagonal lines in a colour, on white."""
        name = f"hatch{len(self._hatches)}"
        return f"url(#{self._hatches.setdefault(colour, name)})"

    def finish(self, height: float, *, title: str, description: str) -> str:
        """Return the drawing on a white ground, as a file of its own."""
        hatches = "".join(
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<rect width="6" height="6" fill="#ffffff"/><rect width="2" height="6" fill="{colour}"/></pattern>'
            for colour, name in self._hatches.items()
        )
        size = f'width="{self.width:g}" height="{height:g}" viewBox="0 0 {self.width:g} {height:g}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONTS}" role="img">',
                f"<title>{_xml(title)}</title>",
                f"<desc>{_xml(description)}</desc>",
                f"<defs>{hatches}</defs>",
                f'<rect width="{self.width:g}" height="{height:g}" fill="#ffffff"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def _xml(text: str) -> str:
    return escape(clean_text(text), quote=False)
