"""Simple scenes that are drawn on the spot, with what is true of them: for checks, examples and the synthetic camera.

They are of the kind that the bundled model was trained on: one to four coloured shapes, at most one per quadrant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

__all__ = ["COLORS", "PLACES", "SHAPES", "Scene", "draw_scene", "random_scene"]

COLORS = {
    "red": (214, 40, 40), "orange": (245, 140, 30), "yellow": (245, 220, 40), "green": (50, 160, 70),
    "blue": (40, 90, 205), "purple": (150, 60, 190),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star", "cross")
PLACES = ("top left", "top right", "bottom left", "bottom right")

_RADIUS = 0.175
"""Of an object, as a share of the picture's shorter side."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a drawn picture shows.

    Attributes:
        objects: shape, colour and place of each, in reading order.
        grey: of the background, 0 to 255.
    """

    objects: tuple[tuple[str, str, str], ...]
    grey: int

    @property
    def text(self) -> str:
        """All of it, as an answer says it."""
        return ", ".join(f"{_named(shape, color)} at the {place}" for shape, color, place in self.objects)

    def at(self, place: str) -> str:
        """Return what is at one of `PLACES`, as an answer says it: `a red circle`, or `nothing`."""
        return next((_named(shape, color) for shape, color, where in self.objects if where == place), "nothing")

    def asked(self) -> tuple[tuple[str, str], ...]:
        """Return questions and their true answers."""
        shape, color, place = self.objects[0]
        return (
            ("Describe the picture.", self.text),
            (f"What is at the {place}?", _named(shape, color)),
            ("How many objects are there?", str(len(self.objects))),
            (f"What is at the {PLACES[3]}?", self.at(PLACES[3])),
            (f"Is there {_named(shape, color)}?", "yes"),
        )


def random_scene(seed: int) -> Scene:
    """Draw one to four objects, each of a shape and a colour of its own."""
    rng = np.random.default_rng((831, seed))
    places = sorted(rng.permutation(len(PLACES))[: int(rng.integers(1, 5))])
    shapes, colors = rng.permutation(SHAPES), rng.permutation(list(COLORS))
    return Scene(
        tuple((str(shapes[n]), str(colors[n]), PLACES[place]) for n, place in enumerate(places)),
        int(rng.integers(200, 250)),
    )


def draw_scene(
    scene: Scene, width: int = 320, height: int = 240, shift: tuple[float, float] = (0.0, 0.0)
) -> NDArray[np.uint8]:
    """Draw a scene.

    Args:
        scene: what is in it.
        width: of the picture in pixels.
        height: likewise.
        shift: how far every object is off the middle of its quadrant, right and down, as shares of the picture's
            shorter side; -0.05 to 0.05 keeps it within.

    Returns:
        uint8 (height, width, 3), RGB.
    """
    side = min(width, height)
    radius = round(_RADIUS * side)
    picture = Image.new("RGB", (width, height), (scene.grey,) * 3)
    draw = ImageDraw.Draw(picture)
    for shape, color, place in scene.objects:
        number = PLACES.index(place)
        x = width * (1 + 2 * (number % 2)) // 4 + round(shift[0] * side)
        y = height * (1 + 2 * (number // 2)) // 4 + round(shift[1] * side)
        _draw(draw, shape, x, y, radius, COLORS[color])
    return np.array(picture)


def _named(shape: str, color: str) -> str:
    return f"{'an' if color[0] in 'aeiou' else 'a'} {color} {shape}"


def _draw(draw: ImageDraw.ImageDraw, shape: str, x: int, y: int, radius: int, fill: tuple[int, int, int]) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        draw.ellipse(box, fill)
    elif shape == "square":
        side = round(0.8 * radius)
        draw.rectangle((x - side, y - side, x + side, y + side), fill)
    elif shape == "cross":
        arm = radius // 3
        draw.rectangle((x - radius, y - arm, x + radius, y + arm), fill)
        draw.rectangle((x - arm, y - radius, x + arm, y + radius), fill)
    else:
        corners = 3 if shape == "triangle" else 10
        angles = np.arange(corners) * 2 * np.pi / corners - np.pi / 2
        reach = (
            np.full(corners, radius) if shape == "triangle" else np.where(np.arange(corners) % 2, 0.45, 1.0) * radius
        )
        draw.polygon(
            [(float(x + r * np.cos(a)), float(y + r * np.sin(a))) for r, a in zip(reach, angles, strict=True)], fill
        )
