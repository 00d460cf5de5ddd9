"""Pictures of soft shapes, 640x480, as a camera would see them: a new one each time, one that changes, a noisy clip."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["as_png", "noisy_clip", "soft_picture", "with_other_corner"]

_WIDTH, _HEIGHT = 640, 480
_MARGIN = 48  # wider than what two filters of Lanczos reach from one tile into the next
_NOISE_LEVELS = 3.0


def soft_picture(seed: int) -> NDArray[np.uint8]:
    """Draw a picture that no other seed gives, uint8 (480, 640, 3), RGB."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    return np.asarray(small.resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC))


def with_other_corner(pixels: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
    """Draw something else into the lower right quarter, far enough from its borders that only its tile changes."""
    changed = pixels.copy()
    place = np.s_[_HEIGHT // 2 + _MARGIN : _HEIGHT - _MARGIN, _WIDTH // 2 + _MARGIN : _WIDTH - _MARGIN]
    changed[place] = soft_picture(seed)[place]
    return changed


def noisy_clip(pixels: NDArray[np.uint8], num_frames: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    """Give the frames of a camera that looks at one still scene: sensor noise of 3 levels, another in each frame."""
    random = np.random.default_rng((seed, 1))
    for _ in range(num_frames):
        grain = random.normal(0.0, _NOISE_LEVELS, pixels.shape)
        yield np.clip(np.rint(pixels + grain), 0, 255).astype(np.uint8)


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode pixels without loss."""
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()
