"""Tests of tiles that look the same."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from edge_vl import Runtime
from edge_vl.families import family_of
from edge_vl.models import find_model
from edge_vl.pictures import load_picture
from edge_vl.plan import ImageGrid, ImageUnit
from edge_vl.similar_tiles import SimilarSettings, SimilarTiles, block_means
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import Scene, SceneObject

Pixels = NDArray[np.uint8]

RED, BLUE = (0.87, 0.1, 0.1), (0.13, 0.4, 0.92)
STAR = SceneObject("star", "blue", "bottom right", (0.0, 0.0), 0.4, 0.3, BLUE)
CIRCLE = SceneObject("circle", "red", "top left", (0.2, -0.1), 0.27, 0.0, RED)  # 4 % of the picture
BEFORE = render(Scene(3, (STAR,), "wood"), 160, 160)
AFTER = render(Scene(3, (CIRCLE, STAR), "wood"), 160, 160)

FAMILY = family_of(find_model("bundled"))
NO_REFRESH = SimilarSettings(refresh_frames=0)


def cut(pixels: Pixels) -> ImageGrid:
    """Cut a picture as the bundled model does: 2x2 tiles and a thumbnail of 64 pixels a side."""
    assert FAMILY is not None
    return FAMILY.tile(load_picture(pixels))


def noisy(pixels: Pixels, sigma: float, seed: int, light: float = 1.0) -> Pixels:
    """Return what a camera makes of a picture."""
    grain = np.random.default_rng(seed).standard_normal(pixels.shape) * sigma
    return np.clip(pixels * light + grain + 0.5, 0, 255).astype(np.uint8)


def places_renewed(before: ImageGrid, after: ImageGrid) -> list[int]:
    """Return the places of the units that do not have the pixels of before."""
    pairs = enumerate(zip(before.units, after.units, strict=True))
    return [place for place, (old, new) in pairs if old.key != new.key]


def one_unit(pixels: Pixels) -> ImageGrid:
    return ImageGrid((ImageUnit.of(pixels, "image"),), 0, 0)


def grey(level: float, side: int = 64) -> Pixels:
    return np.full((side, side, 3), level, np.uint8)


def with_patch(pixels: Pixels, level: int, side: int = 8) -> Pixels:
    """Return a picture whose first block of pixels is brighter by a level."""
    changed = pixels.copy()
    changed[:side, :side] += np.uint8(level)
    return changed


@given(st.integers(1, 80), st.integers(1, 80), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_blocks_have_the_mean_colour_of_their_pixels(height: int, width: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)

    def spans(length: int) -> Iterator[slice]:
        side = min(8, length)
        for start in range(0, length - side + 1, side):
            yield slice(start, start + side)
        if length % side:
            yield slice(length - side, length)

    expected = [[pixels[rows, columns].mean(axis=(0, 1)) for columns in spans(width)] for rows in spans(height)]
    assert np.allclose(block_means(pixels), expected, atol=1e-3)


@pytest.mark.parametrize(("side", "num_blocks"), [(512, 32), (384, 32), (364, 34), (1024, 64), (64, 8)])
def test_blocks_are_small_enough_for_small_objects_whatever_the_size_of_a_tile(side: int, num_blocks: int) -> None:
    assert block_means(grey(255, side)).shape == (num_blocks, num_blocks, 3)
    assert (block_means(grey(255, side)) == 255).all()


def test_pixels_need_not_be_contiguous() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 70, 3), dtype=np.uint8)
    assert (block_means(pixels[:, ::2]) == block_means(pixels[:, ::2].copy())).all()


@pytest.mark.parametrize("sigma", [0.5, 2.0, 5.0, 8.0])
def test_a_still_camera_keeps_every_unit_whatever_its_noise(sigma: float) -> None:
    tiles = SimilarTiles(NO_REFRESH)
    first, num_similar = tiles.replace(cut(noisy(BEFORE, sigma, 0)))
    assert num_similar == 0
    for number in range(1, 40):
        grid, num_similar = tiles.replace(cut(noisy(BEFORE, sigma, number)))
        assert places_renewed(first, grid) == []
        assert num_similar == 5


def test_the_artefacts_of_compression_are_noise() -> None:
    def seen(number: int) -> ImageGrid:
        encoded = io.BytesIO()
        picture = render(Scene(5, (STAR,), "noise"), 320, 320)
        Image.fromarray(noisy(picture, 3.0, number)).save(encoded, "jpeg", quality=65)
        return one_unit(np.array(Image.open(encoded).resize((512, 512), Image.Resampling.LANCZOS)))

    tiles = SimilarTiles(NO_REFRESH)
    before, _ = tiles.replace(seen(0))
    num_renewed = 0
    for number in range(1, 20):
        after, _ = tiles.replace(seen(number))
        num_renewed += len(places_renewed(before, after))
        before = after
    assert num_renewed <= 1


@pytest.mark.parametrize("sigma", [0.0, 2.0, 8.0])
def test_a_small_object_renews_its_tile_and_the_thumbnail_in_the_frame_that_shows_it(sigma: float) -> None:
    tiles = SimilarTiles(NO_REFRESH)
    for number in range(5):
        before, _ = tiles.replace(cut(noisy(BEFORE, sigma, number)))
    after, _ = tiles.replace(cut(noisy(AFTER, sigma, 9)))
    assert places_renewed(before, after) == [0, 4]


def test_a_small_object_is_found_in_the_second_frame_already() -> None:
    tiles = SimilarTiles()
    before, _ = tiles.replace(cut(noisy(BEFORE, 8.0, 0)))
    after, _ = tiles.replace(cut(noisy(AFTER, 8.0, 1)))
    assert {0, 4} <= set(places_renewed(before, after))


def test_units_of_equal_pixels_are_not_said_to_be_only_similar() -> None:
    tiles = SimilarTiles(NO_REFRESH)
    tiles.replace(cut(BEFORE))
    grid, num_similar = tiles.replace(cut(BEFORE))
    assert num_similar == 0
    assert [unit.key for unit in grid.units] == [unit.key for unit in cut(BEFORE).units]


def test_changes_too_small_to_count_add_up_until_they_do() -> None:
    limits = NO_REFRESH
    tiles = SimilarTiles(limits)
    num_renewed = 0
    before, _ = tiles.replace(one_unit(grey(100)))
    for level in range(1, 60):
        now = one_unit(with_patch(grey(100), level))
        after, _ = tiles.replace(now)
        num_renewed += after.units[0] is now.units[0]
        shift = block_means(after.units[0].pixels) - block_means(now.units[0].pixels)
        assert np.linalg.norm(shift, axis=2).max() <= limits.min_levels
        before = after
    assert 10 <= num_renewed <= 59
    assert before.units[0].pixels[0, 0, 0] >= 150


def test_slow_drift_of_the_light_is_no_change_and_a_lamp_is() -> None:
    tiles = SimilarTiles(NO_REFRESH)
    bright = np.concatenate([grey(60, 128)[:, :50], grey(220, 128)[:, :78]], axis=1)
    first, _ = tiles.replace(cut(noisy(bright, 3.0, 0)))
    for number in range(1, 12):  # in the end by 12 levels where it is bright, by 3 where it is dark
        grid, _ = tiles.replace(cut(noisy(bright, 3.0, number, light=1 - 0.005 * number)))
        assert places_renewed(first, grid) == []
    grid, _ = tiles.replace(cut(noisy(bright, 3.0, 99, light=0.75)))
    assert places_renewed(first, grid) == [0, 1, 2, 3, 4]


def test_what_changed_just_now_must_differ_less_to_count_as_still() -> None:
    between = 5  # levels in one channel: below the limit of a still unit, above that of a restless one
    limits = SimilarSettings(min_levels=6.0, noise_factor=7.0, calm_factor=3.5, refresh_frames=0)

    def shown(level: int) -> ImageGrid:
        pixels = grey(100)
        pixels[:8, :8, 0] += np.uint8(level)
        return one_unit(pixels)

    still = SimilarTiles(limits)
    first, _ = still.replace(shown(0))
    assert places_renewed(first, still.replace(shown(between))[0]) == []

    restless = SimilarTiles(limits)
    restless.replace(shown(0))
    moved, _ = restless.replace(shown(50))
    again, _ = restless.replace(shown(50 + between))
    assert places_renewed(moved, again) == [0]
    calm, _ = restless.replace(shown(50 + between + 1))
    assert places_renewed(again, calm) == []
    assert places_renewed(calm, restless.replace(shown(50 + 2 * between))[0]) == []


def test_a_scene_that_changes_as_a_whole_does_not_pass_for_noise() -> None:
    tiles = SimilarTiles(NO_REFRESH)
    pattern = np.random.default_rng(0).integers(-7, 8, (8, 8, 3)).repeat(8, axis=0).repeat(8, axis=1)
    for number in range(4):
        before, _ = tiles.replace(one_unit(noisy(grey(120), 2.0, number)))
    after, _ = tiles.replace(one_unit(noisy((grey(120) + pattern).astype(np.uint8), 2.0, 9)))
    assert places_renewed(before, after) == [0]


def test_a_large_change_counts_however_noisy_the_pictures_are() -> None:
    tiles = SimilarTiles(NO_REFRESH)
    before, _ = tiles.replace(one_unit(noisy(grey(120), 60.0, 0)))
    after, _ = tiles.replace(one_unit(with_patch(noisy(grey(120), 60.0, 1), 60)))
    assert places_renewed(before, after) == [0]


def test_a_thumbnail_changes_with_a_tile_even_where_it_looks_the_same_itself() -> None:
    tiles = SimilarTiles(NO_REFRESH)
    still = grey(100, 128)
    before, _ = tiles.replace(cut(still))
    after, _ = tiles.replace(cut(with_patch(still, 6)))
    thumbnails = [block_means(grid.units[4].pixels) for grid in (before, after)]
    assert np.linalg.norm(thumbnails[1] - thumbnails[0], axis=2).max() < NO_REFRESH.min_levels
    assert places_renewed(before, after) == [0, 4]


def test_every_unit_is_renewed_in_time_and_never_all_at_once() -> None:
    tiles = SimilarTiles(SimilarSettings(refresh_frames=10))
    before, _ = tiles.replace(cut(noisy(BEFORE, 2.0, 0)))
    renewed_in = [0] * 5
    for number in range(1, 61):
        after, num_similar = tiles.replace(cut(noisy(BEFORE, 2.0, number)))
        places = places_renewed(before, after)
        assert len(places) <= 1
        assert num_similar == 5 - len(places)
        for place in places:
            renewed_in[place] = number
        assert all(number - last <= 10 for last in renewed_in)
        before = after


def test_units_that_share_the_pixels_of_a_picture_are_renewed_together() -> None:
    def native(number: int) -> ImageGrid:
        pixels = noisy(BEFORE, 2.0, number)
        units = tuple(
            ImageUnit(pixels, "tile", 0, 0, f"{number}-{place}", num_tokens=4, num_positions=4, prepared=object())
            for place in range(3)
        )
        return ImageGrid(units, 0, 0, ((1,), (2,), (2,), (3,)))

    tiles = SimilarTiles(SimilarSettings(refresh_frames=10))
    before, _ = tiles.replace(native(0))
    for number in range(1, 25):
        after, num_similar = tiles.replace(native(number))
        assert places_renewed(before, after) == ([0, 1, 2] if number % 10 == 0 else [])
        assert num_similar == (0 if number % 10 == 0 else 3)
        assert len({id(unit.pixels) for unit in after.units}) == 1
        assert after.units[1].prepared is not None
        assert after.markers == ((1,), (2,), (2,), (3,))
        before = after


def test_another_layout_is_a_new_picture() -> None:
    tiles = SimilarTiles()
    tiles.replace(cut(BEFORE))
    wide = cut(noisy(render(Scene(3, (STAR,)), 400, 100), 2.0, 1))
    assert tiles.replace(wide) == (wide, 0)
    larger = one_unit(grey(100, 72))
    tiles.replace(one_unit(grey(100, 64)))
    assert tiles.replace(larger) == (larger, 0)
    marked = replace(larger, markers=((5,), (6,)))
    assert tiles.replace(marked) == (marked, 0)


def test_what_is_forgotten_is_new() -> None:
    tiles = SimilarTiles()
    tiles.replace(cut(noisy(BEFORE, 2.0, 0)))
    tiles.forget()
    grid = cut(noisy(BEFORE, 2.0, 1))
    assert tiles.replace(grid) == (grid, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_a_unit_is_the_new_one_or_the_one_before_and_those_that_are_not_equal_are_counted(
    frames: list[tuple[bool, int]],
) -> None:
    tiles = SimilarTiles(SimilarSettings(refresh_frames=4))
    before: ImageGrid | None = None
    for is_after, seed in frames:
        now = cut(noisy(AFTER if is_after else BEFORE, 4.0, seed))
        found, num_similar = tiles.replace(now)
        assert (found.rows, found.columns, len(found.units)) == (2, 2, 5)
        num_kept = 0
        for place, unit in enumerate(found.units):
            is_new = unit is now.units[place]
            assert is_new or (before is not None and unit is before.units[place])
            num_kept += unit.key != now.units[place].key
        assert num_kept == num_similar
        before = found


def test_the_bundled_model_answers_from_similar_tiles_and_sees_what_appears() -> None:
    question = "What is at the top left?"
    with Runtime.open("bundled", threads=1) as runtime:
        for number in range(4):
            answer = runtime.ask(noisy(BEFORE, 5.0, number), question, reuse="perceptual", stream="door")
            assert answer.text == "nothing"
        assert answer.reused["image_units"] == answer.reused["similar_units"] == 5
        answer = runtime.ask(noisy(AFTER, 5.0, 9), question, reuse="perceptual", stream="door")
        assert answer.text == "a red circle"
        assert answer.reused["similar_units"] == 3
        other = runtime.ask(noisy(AFTER, 5.0, 10), question, reuse="perceptual", stream="garden")
        assert other.text == "a red circle"
        assert other.reused["similar_units"] == 0
