"""Pictures of the first-token benchmarks."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from benchmarks.soft_pictures import as_png, noisy_clip, soft_picture, with_other_corner
from benchmarks.ttft import changed_units
from edge_vl.models import find_model


def test_every_seed_gives_another_picture() -> None:
    pictures = [soft_picture(seed) for seed in range(3)]

    assert all(picture.shape == (480, 640, 3) for picture in pictures)
    assert not np.array_equal(pictures[0], pictures[1])
    assert np.array_equal(pictures[2], soft_picture(2))


def test_a_png_keeps_every_pixel() -> None:
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(as_png(soft_picture(3))))), soft_picture(3))


def test_another_corner_changes_the_last_tile_and_the_thumbnail_alone() -> None:
    folder = find_model("bundled").path

    for seed in range(5):
        picture = soft_picture(seed)
        changed = with_other_corner(picture, 100 + seed)
        assert changed_units(folder, picture, changed) == ["tile 2,2", "thumbnail"]
        assert changed_units(folder, picture, picture) == []


def test_the_frames_of_a_clip_differ_by_noise_alone() -> None:
    still = np.full((480, 640, 3), 128, np.uint8)

    frames = list(noisy_clip(still, 3, seed=0))

    assert len(frames) == 3
    assert not np.array_equal(frames[0], frames[1])
    for frame in frames:
        difference = frame.astype(np.float64) - still
        assert abs(difference.mean()) < 0.05
        assert 2.8 < difference.std() < 3.2
