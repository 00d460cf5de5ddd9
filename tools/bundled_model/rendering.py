"""The renderer: backgrounds, objects, and what a camera does to them."""

from __future__ import annotations

import colorsys
import io
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from tools.bundled_model.scenes import Scene, SceneObject, coverage

TEXTURES = Path(__file__).parent / "textures"
TRAINING_SHARE = 0.6

Picture = NDArray[np.float32]


def render(scene: Scene, width: int, height: int) -> NDArray[np.uint8]:
    """Render a scene.

    Returns:
        uint8 (height, width, 3), RGB.
    """
    rng = np.random.default_rng((scene.seed, 1))
    picture = background(scene.background, rng, width, height, held_out=scene.held_out)
    for item in scene.objects:
        picture = _paint(picture, item)
    picture = (picture * scene.gain - 0.5) * scene.contrast + 0.5
    pixels = Image.fromarray((np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8))
    if scene.blur:
        pixels = pixels.filter(ImageFilter.GaussianBlur(scene.blur * min(width, height)))
    if scene.noise:
        grain = rng.standard_normal((height, width, 3), np.float32) * np.float32(scene.noise)
        pixels = Image.fromarray(np.clip(np.asarray(pixels) + grain, 0, 255).astype(np.uint8))
    if scene.jpeg_quality:
        encoded = io.BytesIO()
        pixels.save(encoded, "jpeg", quality=scene.jpeg_quality)
        pixels = Image.open(encoded)
    return np.array(pixels)


def _paint(picture: Picture, item: SceneObject) -> Picture:
    height, width = picture.shape[:2]
    cover = coverage(item, width, height)[..., None]
    color = np.array(item.rgb, np.float32)
    if not item.shading:
        return picture + cover * (color - picture)
    x, y, radius = item.center_and_radius(width, height)
    shift = max(1, round(radius * 0.14))
    shadow = np.zeros_like(cover)
    shadow[shift:, shift:] = cover[:-shift, :-shift]
    soft = Image.fromarray((shadow[..., 0] * 255).astype(np.uint8)).filter(ImageFilter.BoxBlur(radius * 0.1))
    picture = picture * (1 - np.float32(0.5 * item.shading / 255) * np.asarray(soft, np.float32)[..., None])
    columns = (np.arange(width, dtype=np.float32)[None, :] - np.float32(x)) / np.float32(radius)
    rows = (np.arange(height, dtype=np.float32)[:, None] - np.float32(y)) / np.float32(radius)
    light = 1 - np.float32(0.14 * item.shading) * np.clip(columns + rows, -2, 2)
    return picture + cover * (np.clip(color * light[..., None], 0, 1) - picture)


def background(kind: str, rng: np.random.Generator, width: int, height: int, *, held_out: bool = False) -> Picture:
    """Draw a background of little colour.

    Returns:
        float32 (height, width, 3), about 0 to 1.

    Raises:
        ValueError: the kind is unknown.
    """
    first, second = _muted(rng), _muted(rng)
    if kind == "flat":
        return np.broadcast_to(first, (height, width, 3)).copy()
    if kind == "photo":
        blend = _photograph(rng, width, height, held_out=held_out)
        blend = np.clip((blend - 0.5) * np.float32(rng.uniform(0.8, 1.8)) + 0.5, 0, 1)
        strength = np.float32(rng.uniform(0.4, 1))
        return first + (second - first) * blend * strength
    if kind == "noise":
        blend = _cloud(rng, width, height)[..., None]
        return first * (1 - blend) + second * blend
    angle = rng.uniform(0, 2 * np.pi)
    u, v = _rotated(width, height, angle)
    if kind == "gradient":
        blend = np.clip(u * 0.5 + 0.5, 0, 1)
    elif kind == "stripes":
        blend = 0.5 * (1 + np.sin(u * rng.uniform(8, 40)))
        second = first * 0.6 + second * 0.4
    elif kind == "checker":
        frequency = rng.uniform(3, 10)
        blend = (np.floor(u * frequency) + np.floor(v * frequency)) % 2
        second = first * 0.65 + second * 0.35
    elif kind == "wood":
        grain = _cloud(rng, width, height)
        blend = 0.5 * (1 + np.sin((u + 0.25 * grain) * rng.uniform(20, 60))) * 0.7 + 0.3 * grain
        second = first * 0.6 + second * 0.4
    else:
        raise ValueError(f"unknown background {kind!r}")
    return first + (second - first) * blend.astype(np.float32)[..., None]


def _muted(rng: np.random.Generator) -> NDArray[np.float32]:
    return np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0, 0.25), rng.uniform(0.08, 1)), np.float32)


def _rotated(width: int, height: int, angle: float) -> tuple[Picture, Picture]:
    side = max(width, height)
    x = (np.arange(width, dtype=np.float32)[None, :] - width / 2) * np.float32(2 / side)
    y = (np.arange(height, dtype=np.float32)[:, None] - height / 2) * np.float32(2 / side)
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return x * cosine + y * sine, y * cosine - x * sine


def _cloud(rng: np.random.Generator, width: int, height: int) -> Picture:
    """Return noise whose amplitude falls with frequency, like a photograph's: float32 (height, width), 0 to 1."""
    total = np.zeros((height, width), np.float32)
    for cells, weight in ((3, 0.45), (7, 0.27), (17, 0.17), (43, 0.11)):
        grid = Image.fromarray(rng.random((cells, cells), np.float32))
        total += np.float32(weight) * np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC))
    return np.clip((total - 0.5) * 2 + 0.5, 0, 1)


@cache
def _texture(path: Path) -> Image.Image:
    return Image.open(path).convert("L")


def _photograph(rng: np.random.Generator, width: int, height: int, *, held_out: bool) -> Picture:
    """Return a crop of a texture photograph: float32 (height, width, 1), 0 to 1."""
    texture = _texture(sorted(TEXTURES.glob("*.jpg"))[int(rng.integers(3))])
    border = int(texture.width * TRAINING_SHARE)
    low, high = (border, texture.width) if held_out else (0, border)
    crop_width = rng.uniform(0.4, 1) * (high - low)
    crop_height = min(crop_width * height / width, texture.height)
    left = rng.uniform(low, high - crop_width)
    top = rng.uniform(0, texture.height - crop_height)
    box = (left, top, left + crop_width, top + crop_height)
    crop = np.asarray(texture.resize((width, height), Image.Resampling.BICUBIC, box=box), np.float32) / 255
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    if rng.random() < 0.5:
        crop = crop[::-1]
    return crop[..., None].astype(np.float32)
