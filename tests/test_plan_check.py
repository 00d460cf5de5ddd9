"""Tests of what a plan must keep and what its rules allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.errors import ModelError
from edge_vl.families.idefics3 import Idefics3
from edge_vl.message import Message
from edge_vl.model_spec import read_model_spec
from edge_vl.pictures import load_picture
from edge_vl.plan import Chunk, ExactnessRules, ImageChunk, ImageUnit, Plan, TextChunk
from edge_vl.plan_check import check_plan, may_cut_image, may_split
from edge_vl.tokenizer import HFTokenizer

BUNDLED = Path(__file__).parent.parent / "edge_vl" / "bundled_model"
TILES = ExactnessRules("tile", "any", True, "thumbnail_last", "any")
WHOLE = ExactnessRules("image", "any", True, "none", "any")
BLOCKS = ExactnessRules("image", "block", True, "none", "any")
PIXELS = np.zeros((2, 2, 3), np.uint8)

Kind = tuple[str, int, int]
TILE_11, TILE_12, TILE_21, TILE_22 = (("tile", row, column) for row in (1, 2) for column in (1, 2))
SMALL: Kind = ("thumbnail", 0, 0)
PICTURE: Kind = ("image", 0, 0)
SLICE: Kind = ("tile", 0, 0)


def plan_of(*pictures: list[Kind], rules: ExactnessRules, num_tokens: int = 4, num_positions: int = 4) -> Plan:
    """Lay units out, text before, between and behind them."""
    chunks: list[Chunk] = [TextChunk((1, 2), 0)]
    for image, kinds in enumerate(pictures):
        for kind, row, column in kinds:
            unit = ImageUnit.of(PIXELS, kind, row, column)  # type: ignore[arg-type]
            position = chunks[-1].position + chunks[-1].num_positions
            chunks.append(ImageChunk(unit, image, num_tokens, position, num_positions))
            chunks.append(TextChunk((3,), position + num_positions))
    return Plan(tuple(chunks), rules)


def with_chunk(plan: Plan, index: int, chunk: Chunk) -> Plan:
    chunks = list(plan.chunks)
    chunks[index] = chunk
    return replace(plan, chunks=tuple(chunks))


def assert_refused(plan: Plan, why: str) -> None:
    with pytest.raises(ModelError, match=why) as caught:
        check_plan(plan, file="model.gguf")
    assert caught.value.file == "model.gguf"


class TestPlansThatAreRight:
    @pytest.mark.parametrize("size", [(48, 64), (300, 200), (1, 900), (16, 16)])
    def test_plans_of_the_bundled_model_are_right(self, size: tuple[int, int]) -> None:
        spec = read_model_spec(BUNDLED)
        family, tokenizer = Idefics3(spec), HFTokenizer(spec)
        grids = [family.tile(load_picture(np.full((*size, 3), shade, np.uint8))) for shade in (10, 200)]
        messages = [
            Message("user", (grids[0], "What?")),
            Message("assistant", ("A cat.",)),
            Message("user", (grids[1],)),
        ]
        plan = family.layout(messages, tokenizer)
        check_plan(plan)
        assert plan.images[-1].image == 1

    @pytest.mark.parametrize(
        ("pictures", "rules"),
        [
            ([], TILES),
            ([[PICTURE]], TILES),
            ([[TILE_11, TILE_12, TILE_21, TILE_22, SMALL]], TILES),
            ([[PICTURE], [TILE_11, TILE_12, SMALL], [PICTURE]], TILES),
            ([[TILE_11, TILE_12]], TILES),
            ([[SMALL, TILE_11, TILE_12]], replace(TILES, tile_order="thumbnail_first")),
            ([[SLICE, SLICE, SLICE]], replace(TILES, tile_order="none")),
            ([[PICTURE], [PICTURE]], BLOCKS),
            ([[PICTURE, PICTURE]], ExactnessRules()),
        ],
    )
    def test_pictures_that_keep_the_rules_are_taken(self, pictures: list[list[Kind]], rules: ExactnessRules) -> None:
        check_plan(plan_of(*pictures, rules=rules))

    def test_an_image_may_span_fewer_positions_than_it_has_tokens(self) -> None:
        plan = plan_of([PICTURE], [PICTURE], rules=WHOLE, num_tokens=16, num_positions=4)
        check_plan(plan)
        last = plan.chunks[-1]
        assert last.position + last.num_positions == plan.num_tokens - 2 * 12


class TestChunks:
    def test_a_plan_without_chunks_is_refused(self) -> None:
        assert_refused(Plan((), TILES), "no chunks")

    def test_a_plan_that_ends_in_a_picture_is_refused(self) -> None:
        plan = plan_of([PICTURE], rules=WHOLE)
        assert_refused(replace(plan, chunks=plan.chunks[:-1]), "ends in a picture")

    def test_a_text_without_tokens_is_refused(self) -> None:
        assert_refused(Plan((TextChunk((), 0), TextChunk((1,), 0)), TILES), "chunk 0 is a text without tokens")

    def test_a_plan_must_begin_at_position_0(self) -> None:
        assert_refused(Plan((TextChunk((1,), 1),), TILES), "chunk 0 begins at position 1 and should at 0")

    def test_positions_counted_as_entries_are_refused(self) -> None:
        plan = plan_of([PICTURE], rules=WHOLE, num_tokens=16, num_positions=4)
        wrong = with_chunk(plan, 2, TextChunk((3,), 2 + 16))
        assert_refused(wrong, "chunk 2 begins at position 18 and should at 6")

    @settings(deadline=None)
    @given(st.integers(0, 6), st.integers(-3, 3).filter(bool))
    def test_every_chunk_out_of_its_position_is_refused(self, index: int, shift: int) -> None:
        plan = plan_of([TILE_11, TILE_12, SMALL], rules=TILES)
        chunk = plan.chunks[index]
        wrong = with_chunk(plan, index, replace(chunk, position=chunk.position + shift))
        assert_refused(wrong, f"chunk {index} begins at position")

    @pytest.mark.parametrize(("num_tokens", "num_positions"), [(0, 0), (4, 0), (4, 5), (0, 4)])
    def test_images_that_span_no_positions_or_more_than_tokens_are_refused(
        self, num_tokens: int, num_positions: int
    ) -> None:
        plan = plan_of([PICTURE], rules=WHOLE, num_tokens=num_tokens, num_positions=num_positions)
        assert_refused(plan, f"image of {num_tokens} tokens that spans {num_positions} positions")

    @pytest.mark.parametrize("cut", [(9, 4), (4, 2)])
    def test_a_unit_planned_otherwise_than_it_was_cut_is_refused(self, cut: tuple[int, int]) -> None:
        plan = plan_of([PICTURE], rules=WHOLE)
        chunk = plan.images[0]
        unit = replace(chunk.unit, num_tokens=cut[0], num_positions=cut[1])
        assert_refused(with_chunk(plan, 1, replace(chunk, unit=unit)), f"was cut into {cut[0]} tokens at {cut[1]}")


class TestPictures:
    @pytest.mark.parametrize(
        ("picture", "rules", "why"),
        [
            ([TILE_11, TILE_12, SMALL], WHOLE, "encoded whole"),
            ([SLICE], BLOCKS, "encoded whole"),
            ([TILE_11, PICTURE], TILES, "whole picture among its tiles"),
            ([SMALL, TILE_11, TILE_12], TILES, "thumbnails out of place: thumbnail, tile, tile"),
            ([TILE_11, SMALL, TILE_12], TILES, "thumbnails out of place"),
            ([TILE_11, TILE_12, SMALL], replace(TILES, tile_order="thumbnail_first"), "thumbnails out of place"),
            ([TILE_11, TILE_12, SMALL], replace(TILES, tile_order="none"), "tile order is none"),
            ([TILE_11, SMALL, SMALL], TILES, "thumbnails out of place"),
            ([SMALL], TILES, "thumbnails out of place"),
            ([TILE_11, TILE_12, TILE_22, SMALL], TILES, "has 3 tiles, and its last is at row 2 and column 2"),
            (
                [TILE_11, TILE_21, TILE_12, TILE_22],
                TILES,
                "tile of row 2 and column 1 where that of row 1 and column 2",
            ),
            ([TILE_11, SLICE], TILES, "tiles with places and tiles without"),
            ([("tile", 1, 0)], TILES, "has 1 tiles"),
        ],
    )
    def test_pictures_that_break_the_rules_are_refused(
        self, picture: list[Kind], rules: ExactnessRules, why: str
    ) -> None:
        assert_refused(plan_of([PICTURE], picture, rules=rules), f"picture 2 .*{why}")

    @pytest.mark.parametrize("images", [(1, 2, 3), (0, 2, 3), (0, 1, 0), (1, 0, 0), (0, 0, 2)])
    def test_pictures_out_of_turn_are_refused(self, images: tuple[int, ...]) -> None:
        plan = plan_of([PICTURE], [PICTURE], [PICTURE], rules=WHOLE)
        for index, image in enumerate(images):
            chunk = plan.chunks[1 + 2 * index]
            assert isinstance(chunk, ImageChunk)
            plan = with_chunk(plan, 1 + 2 * index, replace(chunk, image=image))
        assert_refused(plan, "does not stand in its turn")


class TestWhatIsAllowed:
    def test_the_strictest_rules_allow_nothing(self) -> None:
        plan = plan_of([PICTURE], rules=ExactnessRules())
        assert not may_split(plan)
        assert not may_cut_image(plan)

    def test_tiles_that_are_encoded_alone_and_attended_to_causally_may_go_in_one_by_one(self) -> None:
        plan = plan_of([TILE_11, TILE_12, SMALL], rules=TILES)
        assert may_split(plan)
        assert may_cut_image(plan)

    def test_whole_pictures_may_go_in_one_by_one_even_as_blocks(self) -> None:
        plan = plan_of([PICTURE], [PICTURE], rules=BLOCKS)
        assert may_split(plan)
        assert not may_cut_image(plan)

    @pytest.mark.parametrize(
        ("picture", "rules"),
        [
            ([PICTURE, PICTURE], WHOLE),
            ([PICTURE, PICTURE], BLOCKS),
            ([TILE_11, TILE_12], replace(TILES, prefill_cut="block")),
            ([TILE_11, TILE_12], replace(TILES, encode_unit="tile_row")),
            ([TILE_11, TILE_12], replace(TILES, text_prefix_ok=False)),
        ],
    )
    def test_units_that_belong_together_are_not_split(self, picture: list[Kind], rules: ExactnessRules) -> None:
        plan = plan_of([PICTURE], picture, rules=rules)
        check_plan(plan)
        assert not may_split(plan)

    def test_a_text_alone_may_go_in_at_once(self) -> None:
        assert may_split(plan_of(rules=BLOCKS))
