"""Tests of models that only their engine knows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from edge_vl.costs import unit_shape
from edge_vl.engine import PictureCutter
from edge_vl.errors import ImageError, ModelError
from edge_vl.families.native import Native
from edge_vl.frame import Frame
from edge_vl.message import Message
from edge_vl.model_spec import GGUF_FAMILY, ModelSpec
from edge_vl.pictures import load_picture
from edge_vl.plan import ExactnessRules, ImageChunk, ImageGrid, ImageUnit, TextChunk
from edge_vl.testing import ByteTokenizer

BEGIN, END = 256, 257
STRINGS = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
LISTS = (
    "{% for message in messages %}[{{ message['role'] }}]{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %}{% endfor %}[assistant]"
)
PICTURE = np.zeros((4, 6, 3), np.uint8)


class Cutter:
    """Cuts every picture into two units of 4 tokens that span 2 positions, as M-RoPE does."""

    rules = ExactnessRules(prefill_cut="block", text_prefix_ok=True, rollback="any")

    def cut(self, frame: Frame) -> ImageGrid:
        units = tuple(
            dataclasses.replace(ImageUnit.of(frame.pixels, "image"), num_tokens=4, num_positions=2, prepared=index)
            for index in range(2)
        )
        return ImageGrid(units, 0, 0, ((BEGIN,), (), (END, END)))


class OpeningTokenizer(ByteTokenizer):
    """Wants a token at the very beginning."""

    opening_token_ids = (258,)


def spec_with(template: str) -> ModelSpec:
    config = {"model_type": "any", "text_config": {}, "vision_config": {"hidden_size": 8}}
    return ModelSpec("any", Path("any"), GGUF_FAMILY, config, {}, {}, template, Path("any.gguf"), {})


def lay_out(template: str, *parts: str | ImageGrid) -> list[TextChunk | ImageChunk]:
    native = Native(spec_with(template), Cutter(), "any")
    return list(native.layout([Message("user", parts)], ByteTokenizer()).chunks)


def text_of(chunk: TextChunk | ImageChunk) -> bytes:
    assert isinstance(chunk, TextChunk)
    return bytes(token for token in chunk.token_ids if token < 256)


@pytest.mark.parametrize("template", [STRINGS, LISTS])
def test_a_picture_becomes_what_the_encoder_cut_where_it_stands(template: str) -> None:
    grid = Cutter().cut(load_picture(PICTURE))
    before, one, other, after = lay_out(template, "Look:", grid, "What?")
    assert text_of(before) == b"[user]Look:"
    assert isinstance(before, TextChunk)
    assert before.token_ids[-1] == BEGIN
    assert isinstance(one, ImageChunk)
    assert isinstance(other, ImageChunk)
    assert (one.unit.prepared, other.unit.prepared) == (0, 1)
    assert isinstance(after, TextChunk)
    assert after.token_ids[:2] == (END, END)
    assert text_of(after) == b"What?[assistant]"


def test_positions_and_cache_entries_are_two_counters() -> None:
    grid = Cutter().cut(load_picture(PICTURE))
    chunks = lay_out(STRINGS, grid, "What?")
    length = chunks[0].num_tokens
    assert [chunk.position for chunk in chunks] == [0, length, length + 2, length + 4]
    assert sum(chunk.num_tokens for chunk in chunks) - sum(chunk.num_positions for chunk in chunks) == 4


def test_words_of_a_person_cannot_stand_for_a_picture() -> None:
    grid = Cutter().cut(load_picture(PICTURE))
    chunks = lay_out(STRINGS, grid, "\U000f0000 <image>")
    assert sum(isinstance(chunk, ImageChunk) for chunk in chunks) == 2
    assert "\U000f0000".encode() in text_of(chunks[-1])


def test_opening_tokens_come_first_and_once() -> None:
    native = Native(spec_with(STRINGS), Cutter(), "any")
    plan = native.layout([Message("user", ("Hello",))], OpeningTokenizer())
    assert isinstance(plan.chunks[0], TextChunk)
    assert plan.chunks[0].token_ids[0] == 258
    assert plan.chunks[0].token_ids.count(258) == 1


def test_a_template_that_loses_the_picture_is_refused() -> None:
    grid = Cutter().cut(load_picture(PICTURE))
    template = "{% for message in messages %}{{ message['content'][1:] }}{% endfor %}"
    with pytest.raises(ModelError, match="leaves out"):
        lay_out(template, grid, "What?")


def test_a_model_that_reads_text_only_refuses_pictures() -> None:
    native = Native(spec_with(STRINGS), None, "any")
    with pytest.raises(ImageError, match="reads text only"):
        native.tile(load_picture(PICTURE))


def test_a_cache_that_forgets_only_everything_makes_the_rules_stricter() -> None:
    assert isinstance(Cutter(), PictureCutter)
    assert Native(spec_with(STRINGS), Cutter(), "any").rules.rollback == "any"
    assert Native(spec_with(STRINGS), Cutter(), "whole").rules.rollback == "whole"


def test_a_text_model_forgets_as_its_cache_does() -> None:
    assert Native(spec_with(STRINGS), None, "any").rules.rollback == "any"
    assert Native(spec_with(STRINGS), None, "whole").rules.rollback == "whole"


class CountingCutter:
    """Cuts tiles of 64 pixels with 16 tokens each, as many as a picture covers, at most 8 a side, and a thumbnail."""

    rules = ExactnessRules("tile", "any", True, "none", "any")

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def cut(self, frame: Frame) -> ImageGrid:
        self.frames.append(frame)
        if max(frame.height, frame.width) > 20 * min(frame.height, frame.width):
            raise ImageError("too narrow")
        rows, columns = (min(-(-side // 64), 8) for side in (frame.height, frame.width))
        num_units = rows * columns + (rows * columns > 1)
        kind: Literal["tile", "image"] = "tile" if num_units > 1 else "image"
        unit = ImageUnit(frame.pixels, kind, 0, 0, "key", num_tokens=16, num_positions=16)
        return ImageGrid((unit,) * num_units, 0, 0, ((),) * (num_units + 1))


class TestRungs:
    def test_every_rung_counts_what_its_tiles_are(self) -> None:
        cutter = CountingCutter()
        native = Native(spec_with(STRINGS), cutter, "any")
        frame = load_picture(np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8))
        rungs = native.rungs(frame)
        assert [(rung.longest_edge, rung.num_units) for rung in rungs] == [
            (None, 36),
            (283, 21),
            (200, 13),
            (141, 7),
            (100, 5),
        ]
        for rung in rungs:
            grid = native.tile(frame, rung.longest_edge)
            assert len(grid.units) == rung.num_units
            assert sum(unit.num_tokens for unit in grid.units) == rung.num_image_tokens
            assert unit_shape(ImageChunk(grid.units[0], 0, 16, 0, 16)) == rung.shape

    def test_a_picture_is_scaled_down_in_its_proportions_and_never_up(self) -> None:
        cutter = CountingCutter()
        native = Native(spec_with(STRINGS), cutter, "any")
        pixels = np.zeros((300, 400, 3), np.uint8)
        pixels[:, 200:] = 255
        frame = load_picture(pixels)
        native.tile(frame, 100)
        small = cutter.frames[-1]
        assert small.pixels.shape == (75, 100, 3)
        assert small.pixels.dtype == np.uint8
        assert small.pixels[:, :45].max() < 8
        assert small.pixels[:, 55:].min() > 247
        assert small.source == frame.source
        for longest_edge in (None, 400, 1000):
            native.tile(frame, longest_edge)
            assert cutter.frames[-1] is frame

    def test_a_size_is_cut_for_its_counts_once(self) -> None:
        cutter = CountingCutter()
        native = Native(spec_with(STRINGS), cutter, "any")
        first = native.rungs(load_picture(np.zeros((300, 400, 3), np.uint8)))
        num_cut = len(cutter.frames)
        assert num_cut > len(first) - 1
        assert native.rungs(load_picture(np.full((300, 400, 3), 9, np.uint8))) == first
        assert len(cutter.frames) == num_cut
        assert native.rungs(load_picture(np.zeros((400, 300, 3), np.uint8))) != first

    def test_ladders_of_many_sizes_do_not_pile_up(self) -> None:
        native = Native(spec_with(STRINGS), CountingCutter(), "any")
        for width in range(64, 200):
            native.rungs(load_picture(np.zeros((64, width, 3), np.uint8)))
        assert len(native._ladders) == 64

    def test_an_encoder_that_always_makes_as_many_tokens_has_one_rung(self) -> None:
        native = Native(spec_with(STRINGS), Cutter(), "any")
        (rung,) = native.rungs(load_picture(np.zeros((300, 400, 3), np.uint8)))
        assert (rung.longest_edge, rung.num_units, rung.num_image_tokens) == (None, 2, 8)

    def test_a_picture_that_cannot_be_cut_has_no_rungs(self) -> None:
        native = Native(spec_with(STRINGS), CountingCutter(), "any")
        with pytest.raises(ImageError, match="too narrow"):
            native.rungs(load_picture(np.zeros((10, 400, 3), np.uint8)))

    def test_a_rung_that_rounding_has_made_too_narrow_ends_the_ladder(self) -> None:
        native = Native(spec_with(STRINGS), CountingCutter(), "any")
        narrow = np.zeros((29, 580, 3), np.uint8)  # half its area is 20x410
        rungs = native.rungs(load_picture(narrow))
        assert [rung.longest_edge for rung in rungs] == [None]
