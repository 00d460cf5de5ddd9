"""Scenes, questions and the renderer of the bundled model's training."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tools.bundled_model.questions import COLOR_WORDS, KINDS, PLURALS, Fact, ask, facts, parse_json
from tools.bundled_model.rendering import background, render
from tools.bundled_model.scenes import (
    BACKGROUNDS,
    COLORS,
    PLACES,
    SHAPES,
    SIZES,
    SceneObject,
    coverage,
    random_scene,
    random_size,
)
from tools.bundled_model.tiling import tiles

CROWDED = (
    Fact("circle", "red", "top left"),
    Fact("star", "orange", "top right"),
    Fact("circle", "blue", "bottom left"),
    Fact("cross", "blue", "bottom right"),
)


@pytest.mark.parametrize("size", [(96, 96), (160, 120), (180, 320)])
def test_the_same_seed_gives_the_same_pixels(size: tuple[int, int]) -> None:
    first, again = (render(random_scene(11), *size) for _ in range(2))
    assert first.dtype == np.uint8
    assert first.shape == (size[1], size[0], 3)
    assert np.array_equal(first, again)


def test_other_seeds_give_other_scenes() -> None:
    assert len({random_scene(seed) for seed in range(50)}) == 50


def test_scenes_show_everything_that_the_model_should_know() -> None:
    scenes = [random_scene(seed) for seed in range(400)]
    seen = [fact for scene in scenes for fact in facts(scene)]
    assert {fact.shape for fact in seen} == set(SHAPES)
    assert {fact.color for fact in seen} == set(COLORS)
    assert {fact.place for fact in seen} == set(PLACES)
    assert {scene.background for scene in scenes} == set(BACKGROUNDS)
    assert {len(scene.objects) for scene in scenes} == {0, 1, 2, 3, 4}


def test_measured_sizes_span_the_promised_range() -> None:
    assert {random_size(seed) for seed in range(2000)} == set(SIZES)
    assert min(map(min, SIZES)) == 96
    assert max(SIZES) == (1280, 960)
    assert all(0.5 < width / height < 2 for width, height in SIZES)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", PLACES)
def test_an_object_stays_in_its_quadrant(shape: str, place: str) -> None:
    for angle in np.linspace(0, 6, 7):
        for corner in (-1.0, 1.0):
            item = SceneObject(shape, "red", place, (corner, -corner), 0.45, float(angle), (1.0, 0.0, 0.0))
            cover = coverage(item, 200, 120)
            row, column = item.quadrant
            inside = cover[60 * row : 60 * row + 60, 100 * column : 100 * column + 100]
            assert inside.sum() == pytest.approx(cover.sum())
            assert cover.max() == 1


def test_shapes_have_the_areas_of_their_geometry() -> None:
    def area(shape: str) -> float:
        item = SceneObject(shape, "red", "top left", (0.0, 0.0), 0.45, 0.3, (1.0, 0.0, 0.0))
        return float(coverage(item, 800, 800).sum()) / item.center_and_radius(800, 800)[2] ** 2

    assert area("circle") == pytest.approx(np.pi * 0.88**2, rel=0.01)
    assert area("square") == pytest.approx(1.4**2, rel=0.01)
    assert area("triangle") == pytest.approx(3 * 3**0.5 / 4, rel=0.01)
    assert area("cross") == pytest.approx(2 * 4 * 0.92 * 0.3 - 0.6**2, rel=0.01)
    assert area("star") == pytest.approx(10 * 0.5 * 0.42 * np.sin(np.pi / 5), rel=0.01)


def test_an_unknown_background_is_an_error() -> None:
    with pytest.raises(ValueError, match="plaid"):
        background("plaid", np.random.default_rng(0), 8, 8)


def test_held_out_scenes_use_other_texture() -> None:
    seen, held_out = (background("photo", np.random.default_rng(5), 64, 64, held_out=held) for held in (False, True))
    assert not np.array_equal(seen, held_out)


@pytest.mark.parametrize("size", SIZES)
def test_every_measured_size_becomes_four_tiles_and_a_thumbnail(size: tuple[int, int]) -> None:
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = 255
    cut = tiles(pixels)
    assert cut.shape == (5, 64, 64, 3)
    assert [bool(tile.mean() > 128) for tile in cut] == [True, False, False, False, False]


def answers(kind: str, scene: tuple[Fact, ...] = CROWDED) -> dict[str, str]:
    """Ask a kind of question many times."""
    asked = (ask(kind, scene, np.random.default_rng(seed)) for seed in range(400))
    return {question.text.lower(): question.answer for question in asked if question}


def test_lookups_by_place_are_true() -> None:
    for text, answer in answers("what_at").items():
        place = next(place for place in PLACES if place in text)
        assert answer == str(next(fact for fact in CROWDED if fact.place == place))
    assert set(answers("what_at", CROWDED[:1]).values()) == {"a red circle", "nothing"}
    assert "an orange star" in answers("what_at").values()


def test_lookups_by_content_are_true_and_unambiguous() -> None:
    colors = {shape: answer for text, answer in answers("color_of").items() for shape in SHAPES if shape in text}
    assert colors == {"star": "orange", "cross": "blue", "square": "none", "triangle": "none"}
    shapes = {color: answer for text, answer in answers("shape_of").items() for color in COLORS if f" {color}" in text}
    assert shapes == {"red": "circle", "orange": "star", "yellow": "none", "green": "none", "purple": "none"}
    for text, answer in answers("place_of").items():
        fits = [
            fact.place
            for fact in CROWDED
            if all(fact.shape == shape for shape in SHAPES if shape in text)
            and all(fact.color == color for color in COLORS if f" {color}" in text)
        ]
        assert answer == (fits[0] if fits else "nowhere")
        assert len(fits) <= 1


def test_counts_are_true() -> None:
    assert set(answers("count_all").values()) == {"4"}
    for text, answer in answers("count_shape").items():
        shape = next(shape for shape in SHAPES if PLURALS[shape] in text)
        assert answer == str(sum(fact.shape == shape for fact in CROWDED))
    for text, answer in answers("count_color").items():
        color = next(color for color in COLORS if f" {color}" in text)
        assert answer == str(sum(fact.color == color for fact in CROWDED))


def test_yes_and_no_are_true_and_balanced() -> None:
    drawn = [ask("exists", CROWDED, np.random.default_rng(seed)) for seed in range(1000)]
    for question in drawn:
        assert question is not None
        text = question.text.lower()
        fits = [
            fact
            for fact in CROWDED
            if all(fact.shape == shape for shape in SHAPES if shape in text)
            and all(fact.color == color for color in COLOR_WORDS if f" {color}" in text)
            and all(fact.place == place for place in PLACES if place in text)
        ]
        assert question.answer == ("yes" if fits else "no")
    assert 0.4 < np.mean([question.answer == "yes" for question in drawn if question]) < 0.6


def test_descriptions_hold_every_object_once() -> None:
    expected = (
        "a red circle at the top left, an orange star at the top right, "
        "a blue circle at the bottom left, a blue cross at the bottom right"
    )
    assert set(answers("describe").values()) == {expected}
    assert set(answers("describe", ()).values()) == {"nothing"}


def test_json_answers_are_json() -> None:
    (answer,) = set(answers("json").values())
    assert [tuple(item.values()) for item in json.loads(answer)] == [tuple(fact) for fact in CROWDED]
    assert parse_json(answer) == CROWDED
    assert set(answers("json", ()).values()) == {"[]"}
    with pytest.raises(ValueError, match="not a list of objects"):
        parse_json('[{"shape": "circle"}]')


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_rests_on_objects_that_are_there(kind: str) -> None:
    for seed in range(60):
        scene = facts(random_scene(seed))
        question = ask(kind, scene, np.random.default_rng(seed))
        places = {place for piece in question.pieces for place in piece.places or ()} if question else set()
        assert places <= {fact.place for fact in scene}
