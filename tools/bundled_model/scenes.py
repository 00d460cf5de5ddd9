"""Scenes of simple shapes, and a deterministic renderer for any picture size.

A scene holds one to four objects (rarely none), one per quadrant of the picture. Everything random is drawn from the
scene's seed, so that the same seed and size give the same pixels.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHAPES = ("circle", "square", "triangle", "star", "cross")
PLACES = ("top left", "top right", "bottom left", "bottom right")

#: Hue range in degrees, saturation range, value range.
COLORS = {
    "red": ((-9.0, 7.0), (0.75, 1.0), (0.62, 1.0)),
    "orange": ((23.0, 34.0), (0.8, 1.0), (0.85, 1.0)),
    "yellow": ((51.0, 60.0), (0.75, 1.0), (0.85, 1.0)),
    "green": ((100.0, 145.0), (0.65, 1.0), (0.5, 0.95)),
    "blue": ((208.0, 236.0), (0.7, 1.0), (0.65, 1.0)),
    "purple": ((275.0, 300.0), (0.6, 1.0), (0.55, 0.95)),
}

BACKGROUNDS = ("flat", "gradient", "stripes", "checker", "wood", "noise", "photo")

#: Picture sizes (width, height) of the accuracy measurement, all between 1:2 and 2:1.
SIZES = (
    (96, 96), (128, 96), (96, 128), (160, 120), (200, 200), (240, 160), (320, 180), (180, 320), (320, 240), (240, 320),
    (400, 300), (512, 512), (640, 360), (640, 480), (480, 640), (720, 540), (800, 600), (960, 540), (1024, 768),
    (1280, 720), (720, 1280), (1280, 960),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One coloured shape.

    Attributes:
        shape: one of `SHAPES`.
        color: one of `COLORS`.
        place: one of `PLACES`.
        offset: where the object sits in its quadrant's free room, each axis from -1 to 1.
        radius: circumradius as a fraction of the quadrant's shorter side.
        angle_rad: rotation.
        rgb: colour, each channel from 0 to 1.
        shading: 0 (flat) to 1 (strong) light from the upper left, with a shadow.
    """

    shape: str
    color: str
    place: str
    offset: tuple[float, float]
    radius: float
    angle_rad: float
    rgb: tuple[float, float, float]
    shading: float = 0.0

    @property
    def quadrant(self) -> tuple[int, int]:
        """Return the object's (row, column), each 0 or 1."""
        index = PLACES.index(self.place)
        return index // 2, index % 2

    def center_and_radius(self, width: int, height: int) -> tuple[float, float, float]:
        """Return x, y and circumradius in pixels of a picture of the given size."""
        row, column = self.quadrant
        radius = self.radius * min(width, height) / 2
        room_x, room_y = width / 4 - radius * 1.04, height / 4 - radius * 1.04
        x = width * (0.25 + 0.5 * column) + self.offset[0] * room_x
        y = height * (0.25 + 0.5 * row) + self.offset[1] * room_y
        return x, y, radius


@dataclass(frozen=True, slots=True)
class Scene:
    """Objects on a background, seen by an imperfect camera.

    Attributes:
        seed: seeds everything that the other fields leave open (texture, noise).
        objects: in reading order of their places.
        background: one of `BACKGROUNDS`.
        blur: standard deviation as a fraction of the shorter side.
        gain: brightness factor.
        contrast: factor about middle grey.
        noise: standard deviation of the sensor noise, of 255.
        jpeg_quality: 0 for none.
        held_out: take texture from the part of the photographs that training never sees.
    """

    seed: int
    objects: tuple[SceneObject, ...]
    background: str = "flat"
    blur: float = 0.0
    gain: float = 1.0
    contrast: float = 1.0
    noise: float = 0.0
    jpeg_quality: int = 0
    held_out: bool = False


def random_object(rng: np.random.Generator, place: str, shaded: bool) -> SceneObject:
    """Draw one object for a place."""
    color = str(rng.choice(tuple(COLORS)))
    hue, saturation, value = (float(rng.uniform(*bounds)) for bounds in COLORS[color])
    return SceneObject(
        shape=str(rng.choice(SHAPES)),
        color=color,
        place=place,
        offset=(float(rng.uniform(-1, 1)), float(rng.uniform(-1, 1))),
        radius=float(rng.uniform(0.25, 0.45)),
        angle_rad=float(rng.uniform(0, 2 * np.pi)),
        rgb=colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value),
        shading=float(rng.uniform(0.2, 1)) if shaded else 0.0,
    )


def random_scene(seed: int, *, held_out: bool = False) -> Scene:
    """Draw a scene; the same seed gives the same scene.

    About half of the scenes repeat a shape or a colour among their objects, so that counting and looking up by content
    need a look at every object.
    """
    rng = np.random.default_rng(seed)
    num_objects = int(rng.choice(5, p=(0.03, 0.17, 0.25, 0.27, 0.28)))
    places = sorted(rng.choice(4, num_objects, replace=False))
    background = str(rng.choice(BACKGROUNDS, p=(0.12, 0.12, 0.12, 0.12, 0.12, 0.15, 0.25)))
    shaded = bool(rng.random() < (0.8 if background == "photo" else 0.3))
    objects = tuple(random_object(rng, PLACES[place], shaded) for place in places)
    rough = rng.random() < 0.7
    return Scene(
        seed=seed,
        objects=objects,
        background=background,
        blur=float(rng.uniform(0, 0.008)) if rough and rng.random() < 0.6 else 0.0,
        gain=float(rng.uniform(0.7, 1.2)) if rough else 1.0,
        contrast=float(rng.uniform(0.75, 1.15)) if rough else 1.0,
        noise=float(rng.uniform(0, 11)) if rough and rng.random() < 0.6 else 0.0,
        jpeg_quality=int(rng.integers(45, 96)) if rough and rng.random() < 0.6 else 0,
        held_out=held_out,
    )


def random_size(seed: int) -> tuple[int, int]:
    """Return the picture size (width, height) at which the accuracy measurement renders a seed's scene."""
    width, height = SIZES[int(np.random.default_rng((seed, 3)).integers(len(SIZES)))]
    return width, height


def coverage(item: SceneObject, width: int, height: int) -> NDArray[np.float32]:
    """Return how much of each pixel an object covers.

    Returns:
        float32 (height, width), 0 to 1, antialiased over one pixel.
    """
    center_x, center_y, radius = item.center_and_radius(width, height)
    cover = np.zeros((height, width), np.float32)
    left, right = max(int(center_x - radius - 2), 0), min(int(center_x + radius + 3), width)
    top, bottom = max(int(center_y - radius - 2), 0), min(int(center_y + radius + 3), height)
    x = (np.arange(left, right, dtype=np.float32) + 0.5 - center_x)[None, :] / radius
    y = (np.arange(top, bottom, dtype=np.float32) + 0.5 - center_y)[:, None] / radius
    cosine, sine = np.float32(np.cos(item.angle_rad)), np.float32(np.sin(item.angle_rad))
    distance = _distance(item.shape, x * cosine + y * sine, y * cosine - x * sine)
    cover[top:bottom, left:right] = np.clip(0.5 - distance * radius, 0, 1)
    return cover


def _distance(shape: str, x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the signed distance to a shape of circumradius 1, negative inside."""
    if shape == "circle":
        return np.hypot(x, y) - np.float32(0.88)
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - np.float32(0.7)
    if shape == "triangle":
        return np.maximum(np.maximum(0.866 * x - 0.5 * y, -0.866 * x - 0.5 * y), y) - np.float32(0.5)
    if shape == "star":
        # One of ten mirror images of the edge from the tip (1, 0) to the inner corner.
        fold = np.abs(np.mod(np.arctan2(y, x) + np.pi / 5, 2 * np.pi / 5) - np.pi / 5)
        length = np.hypot(x, y)
        inner_x, inner_y = 0.42 * np.cos(np.pi / 5), 0.42 * np.sin(np.pi / 5)
        edge = np.hypot(1 - inner_x, inner_y)
        inside = (length * np.cos(fold) - 1) * inner_y + length * np.sin(fold) * (1 - inner_x)
        return (inside / edge).astype(np.float32)
    if shape == "cross":
        across = np.maximum(np.abs(x) - 0.92, np.abs(y) - 0.3)
        along = np.maximum(np.abs(x) - 0.3, np.abs(y) - 0.92)
        return np.minimum(across, along).astype(np.float32)
    raise ValueError(f"unknown shape {shape!r}; known are {', '.join(SHAPES)}")
