"""The Idefics3 family, held against transformers' Pillow-backed processors."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from transformers import PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from edge_vl.costs import unit_shape
from edge_vl.errors import ImageError, ModelError, RequestError
from edge_vl.families import family_of
from edge_vl.families.idefics3 import Idefics3
from edge_vl.families.tile_settings import MAX_TILES, TileSettings
from edge_vl.frame import Frame
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec, read_model_spec
from edge_vl.pictures import load_picture
from edge_vl.plan import ImageChunk, ImageGrid, ImageUnit, Plan, TextChunk
from edge_vl.testing.byte_tokenizer import ByteTokenizer
from edge_vl.tokenizer import HFTokenizer
from tests.smolvlm_files import write_model_folder

BUNDLED = Path(__file__).parents[2] / "edge_vl" / "bundled_model"

EXTREMES = [
    (1, 1), (1, 5000), (5000, 1), (4000, 30), (30, 4000), (2, 1), (1, 2), (3, 3), (4, 1), (1, 3), (2049, 3),
    (7, 2047),
]  # fmt: skip
ORDINARY = [
    (64, 64), (63, 65), (65, 63), (96, 96), (128, 128), (127, 129), (100, 57), (57, 100), (200, 100),
    (100, 200), (224, 224), (256, 256), (300, 301), (320, 240), (240, 320), (333, 77), (77, 333), (364, 364),
    (400, 100), (100, 400), (480, 270), (512, 512), (511, 513), (513, 511), (512, 1024), (640, 480),
    (480, 640), (640, 360), (641, 359), (720, 576), (768, 768), (800, 600), (800, 450), (1000, 10),
    (10, 1000), (1023, 1025), (1024, 768), (1025, 1023), (1280, 720), (1280, 960), (1600, 900), (999, 501),
    (501, 999), (1777, 333), (333, 1777), (854, 480), (1080, 1080), (1366, 768),
]  # fmt: skip
SIZES = EXTREMES + ORDINARY
QUESTIONS = (
    "What is at the top left?",
    "How many objects are there?\n\nAnswer in 12 words.",
    " Grüße 画像 😀",
    "",
    "\n",
)


@cache
def frame_of(width: int, height: int) -> Frame:
    """Make a frame of noise."""
    generator = np.random.default_rng(width * 10_007 + height)
    return load_picture(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


class Twin:
    """A family and the processor of transformers with the same settings."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.family = Idefics3(spec)
        self.tokenizer = HFTokenizer(spec)
        self.images = Idefics3ImageProcessorPil(**spec.preprocessor)
        words = PreTrainedTokenizerFast(
            tokenizer_file=str(spec.tokenizer_file),
            bos_token="<|im_start|>",
            eos_token="<end_of_utterance>",
            pad_token="<|im_end|>",
        )
        self.processor = Idefics3Processor(
            self.images, words, image_seq_len=self.family.tokens_per_unit, chat_template=spec.chat_template
        )

    def tiles(self, frame: Frame, images: Any = None) -> tuple[list[NDArray[np.uint8]], int, int]:
        """Return the units of transformers before they are rescaled, and the rows and columns."""
        output = (images or self.images).preprocess(
            [[Image.fromarray(frame.pixels)]],
            do_rescale=False,
            do_normalize=False,
            do_pad=False,
            return_row_col_info=True,
        )
        units = [np.moveaxis(unit, 0, -1) for unit in output["pixel_values"][0]]
        return units, output["rows"][0][0], output["cols"][0][0]

    def expected_ids(self, conversation: list[dict[str, Any]], grids: list[ImageGrid]) -> list[int]:
        """Return the ids that transformers gives for pictures that were cut into these grids."""
        text = self.processor.apply_chat_template(conversation, add_generation_prompt=True)
        rows, columns = [[grid.rows for grid in grids]], [[grid.columns for grid in grids]]
        pieces = text.split("<image>")
        for index in range(len(grids)):
            marked = self.processor.replace_image_token({"rows": rows, "cols": columns}, index)
            pieces[index + 1] = marked + pieces[index + 1]
        ids: list[int] = self.processor.tokenizer("".join(pieces))["input_ids"]
        return ids

    def flat_ids(self, plan: Plan) -> list[int]:
        """Return the ids of a plan, image tokens written out; check its positions on the way."""
        ids: list[int] = []
        for chunk in plan.chunks:
            assert chunk.position == len(ids)
            assert chunk.num_positions == chunk.num_tokens > 0
            image = self.tokenizer.special_tokens["<image>"]
            ids += chunk.token_ids if isinstance(chunk, TextChunk) else [image] * chunk.num_tokens
        assert len(ids) == plan.num_tokens
        return ids


def conversation_of(messages: list[Message]) -> list[dict[str, Any]]:
    """Write messages as transformers wants them."""
    return [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in message.parts
            ],
        }
        for message in messages
    ]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """Make the twins with SmolVLM's published settings."""
    return Twin(write_model_folder(tmp_path_factory.mktemp("smolvlm")))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """Make the twins with the settings of the first Idefics3."""
    folder = tmp_path_factory.mktemp("idefics3")
    return Twin(write_model_folder(folder, longest_edge=1456, tile_side=364, patch_size=14, scale_factor=2))


@pytest.fixture(scope="module")
def bundled() -> Twin:
    """Make the twins with the bundled model's files."""
    return Twin(read_model_spec(BUNDLED))


def assert_same_tiles(twin: Twin, frame: Frame, images: Any = None) -> ImageGrid:
    """Compare every unit of a picture, bit by bit."""
    grid = twin.family.tile(frame)
    units, rows, columns = twin.tiles(frame, images)
    assert (grid.rows, grid.columns, len(grid.units)) == (rows, columns, len(units))
    for ours, theirs in zip(grid.units, units, strict=True):
        assert ours.pixels.dtype == np.uint8
        assert ours.pixels.flags.c_contiguous
        assert np.array_equal(ours.pixels, theirs)
    return grid


class TestParity:
    def test_sixty_sizes_are_compared(self) -> None:
        assert len(set(SIZES)) >= 60

    @pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
    def test_tiles_and_ids_are_those_of_transformers_with_the_bundled_settings(
        self, bundled: Twin, size: tuple[int, int]
    ) -> None:
        grid = assert_same_tiles(bundled, frame_of(*size))
        messages = [Message("user", (grid, QUESTIONS[size[0] % len(QUESTIONS)]))]
        plan = bundled.family.layout(messages, bundled.tokenizer)
        assert bundled.flat_ids(plan) == bundled.expected_ids(conversation_of(messages), [grid])

    @pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
    def test_tiles_and_ids_are_those_of_transformers_with_published_settings(
        self, published: Twin, size: tuple[int, int]
    ) -> None:
        grid = assert_same_tiles(published, frame_of(*size))
        messages = [Message("user", (grid, QUESTIONS[size[1] % len(QUESTIONS)]))]
        plan = published.family.layout(messages, published.tokenizer)
        assert published.flat_ids(plan) == published.expected_ids(conversation_of(messages), [grid])

    @pytest.mark.parametrize("size", [*EXTREMES, (640, 480), (1000, 10), (364, 365)])
    def test_the_first_idefics3_and_smolvlms_own_processor_agree_too(
        self, original: Twin, size: tuple[int, int]
    ) -> None:
        assert_same_tiles(original, frame_of(*size))
        assert_same_tiles(original, frame_of(*size), SmolVLMImageProcessorPil(**original.spec.preprocessor))

    @pytest.mark.parametrize(
        "setting",
        [
            {"do_resize": False},
            {"do_image_splitting": False},
            {"do_image_splitting": False, "do_resize": False},
            {"resample": 2},
            {"resample": 3},
            {"size": {"height": 100, "width": 200}},
            {"size": {"longest_edge": 64}},
        ],
    )
    def test_other_settings_agree_too(self, bundled: Twin, setting: dict[str, Any]) -> None:
        twin = Twin(replace(bundled.spec, preprocessor={**bundled.spec.preprocessor, **setting}))
        for size in ((96, 64), (64, 64), (30, 200), (1, 1)):
            assert_same_tiles(twin, frame_of(*size))

    def test_the_longest_side_is_limited_as_in_transformers(self, bundled: Twin) -> None:
        setting = {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 1024}}
        twin = Twin(replace(bundled.spec, preprocessor={**bundled.spec.preprocessor, **setting}))
        assert assert_same_tiles(twin, frame_of(200, 30)).columns == 4

    def test_ids_and_pixels_of_a_whole_call_agree(self, bundled: Twin) -> None:
        frames = [frame_of(100, 57), frame_of(64, 64), frame_of(30, 4000)]
        grids = [bundled.family.tile(frame) for frame in frames]
        messages = [
            Message("system", ("Answer briefly.",)),
            Message("user", (grids[0], grids[1], "What changed?")),
            Message("assistant", ("The square moved.",)),
            Message("user", ("And here:", grids[2], "\n\nwhere is it now?")),
        ]
        conversation = conversation_of(messages)
        text = bundled.processor.apply_chat_template(conversation, add_generation_prompt=True)
        output = bundled.processor(text=text, images=[[Image.fromarray(frame.pixels) for frame in frames]])
        plan = bundled.family.layout(messages, bundled.tokenizer)
        assert bundled.flat_ids(plan) == output["input_ids"][0]
        expected = np.asarray(output["pixel_values"][0])
        assert len(plan.images) == len(expected)
        for chunk, theirs in zip(plan.images, expected, strict=True):
            ours = (chunk.unit.pixels.astype(np.float32) / 255 - 0.5) / 0.5
            assert np.abs(np.moveaxis(ours, -1, 0) - theirs).max() < 1e-5
        assert [chunk.image for chunk in plan.images] == [0] * 5 + [1] * 5 + [2] * (len(expected) - 10)

    @pytest.mark.parametrize(
        "messages",
        [
            [Message("user", ("Hello",))],
            [Message("system", ("Be kind.",)), Message("user", ("Hi", " there\n"))],
            [Message("user", ("One",)), Message("assistant", ("Two.",)), Message("user", ("Three?",))],
        ],
    )
    def test_prompts_without_pictures_agree(self, published: Twin, messages: list[Message]) -> None:
        plan = published.family.layout(messages, published.tokenizer)
        assert len(plan.chunks) == 1
        assert published.flat_ids(plan) == published.expected_ids(conversation_of(messages), [])

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.text(max_size=12).filter(lambda text: "<" not in text), min_size=1, max_size=3))
    def test_benign_words_give_the_ids_of_transformers(self, published: Twin, words: list[str]) -> None:
        grid = ImageGrid((ImageUnit.of(frame_of(4, 4).pixels, "image"),), 0, 0)
        messages = [Message("user", (grid, *words))]
        plan = published.family.layout(messages, published.tokenizer)
        assert published.flat_ids(plan) == published.expected_ids(conversation_of(messages), [grid])


class TestTiling:
    def test_units_come_row_by_row_and_the_thumbnail_last(self, published: Twin) -> None:
        grid = published.family.tile(frame_of(640, 480))
        assert (grid.rows, grid.columns) == (3, 4)
        assert [(unit.row, unit.column) for unit in grid.units[:-1]] == [
            (r, c) for r in (1, 2, 3) for c in (1, 2, 3, 4)
        ]
        last = grid.units[-1]
        assert (last.kind, last.row, last.column, last.pixels.shape) == ("thumbnail", 0, 0, (512, 512, 3))
        assert all(unit.kind == "tile" for unit in grid.units[:-1])

    def test_a_picture_of_one_tile_is_one_unit(self, bundled: Twin) -> None:
        small = replace(bundled.spec, preprocessor={**bundled.spec.preprocessor, "size": {"longest_edge": 64}})
        grid = Idefics3(small).tile(frame_of(96, 96))
        assert [(unit.kind, unit.row) for unit in grid.units] == [("image", 0)]
        assert (grid.rows, grid.columns) == (0, 0)

    def test_equal_pictures_have_equal_keys_and_others_do_not(self, bundled: Twin) -> None:
        first, again = (bundled.family.tile(load_picture(frame_of(96, 96).pixels.copy())) for _ in range(2))
        keys = [unit.key for unit in first.units]
        assert keys == [unit.key for unit in again.units]
        assert len(set(keys)) == len(keys)

    def test_the_frame_is_left_as_it_is(self, bundled: Twin) -> None:
        frame = frame_of(64, 64)
        before = frame.pixels.copy()
        for unit in bundled.family.tile(frame).units:
            assert not np.shares_memory(unit.pixels, frame.pixels)
        assert np.array_equal(frame.pixels, before)

    def test_too_many_tiles_are_refused_with_numbers(self, bundled: Twin) -> None:
        spec = replace(bundled.spec, preprocessor={**bundled.spec.preprocessor, "do_resize": False})
        with pytest.raises(ImageError, match=rf"1088x1024 pixels would give 272 tiles and at most {MAX_TILES}"):
            Idefics3(spec).tile(frame_of(1088, 1024))

    @settings(max_examples=200, deadline=None)
    @given(st.integers(1, 100_000), st.integers(1, 100_000))
    def test_every_size_gives_whole_tiles_within_the_limit(self, published: Twin, height: int, width: int) -> None:
        tiling = published.family.settings
        rows, columns = (side / 512 for side in tiling.whole_tiles_size(*tiling.picture_size(height, width)))
        assert rows in (1, 2, 3, 4)
        assert columns in (1, 2, 3, 4)
        assert max(rows, columns) == 4


class TestLayout:
    def test_markers_join_the_text_next_to_them(self, published: Twin) -> None:
        grid = published.family.tile(frame_of(640, 480))
        plan = published.family.layout([Message("user", (grid, "What?"))], published.tokenizer)
        kinds = [type(chunk) for chunk in plan.chunks]
        assert kinds == [TextChunk, ImageChunk] * 13 + [TextChunk]
        assert plan.num_image_tokens == 13 * 64 == 832
        assert all(chunk.unit is unit for chunk, unit in zip(plan.images, grid.units, strict=True))
        assert plan.rules.encode_unit == "tile"
        assert plan.rules.tile_order == "thumbnail_last"

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.one_of(st.text(max_size=5), st.sampled_from(["<image>", "<row_1_col_1>", "<end_of_utterance>"])))
    )
    def test_no_words_of_a_person_change_the_markers(self, bundled: Twin, words: list[str]) -> None:
        grid = bundled.family.tile(frame_of(64, 64))
        special = set(bundled.tokenizer.special_tokens.values())

        def markers(question: str) -> list[int]:
            plan = bundled.family.layout([Message("user", (grid, question))], bundled.tokenizer)
            return [token_id for token_id in bundled.flat_ids(plan) if token_id in special]

        assert markers("".join(words)) == markers("What?")

    def test_eleven_pictures_in_one_request_keep_their_order(self, bundled: Twin) -> None:
        grids = [bundled.family.tile(frame_of(10 + number, 10)) for number in range(11)]
        plan = bundled.family.layout([Message("user", (*grids, "Which?"))], bundled.tokenizer)
        assert [chunk.unit.key for chunk in plan.images] == [unit.key for grid in grids for unit in grid.units]
        assert [chunk.image for chunk in plan.images] == [n for n, grid in enumerate(grids) for _ in grid.units]

    def test_any_tokenizer_with_the_markers_will_do(self, bundled: Twin) -> None:
        grid = bundled.family.tile(frame_of(64, 64))
        plan = bundled.family.layout([Message("user", (grid, "What?"))], ByteTokenizer())
        assert len(plan.images) == len(grid.units)

    def test_a_tokenizer_without_a_marker_is_refused_by_name(self, bundled: Twin) -> None:
        class Poor(ByteTokenizer):
            @property
            def special_tokens(self) -> dict[str, int]:
                return {
                    text: token_id for text, token_id in super().special_tokens.items() if "row_1_col_2" not in text
                }

        grid = bundled.family.tile(frame_of(64, 64))
        with pytest.raises(ModelError, match="<row_1_col_2>"):
            bundled.family.layout([Message("user", (grid, "What?"))], Poor())
        assert bundled.family.layout([Message("user", ("What?",))], Poor()).num_image_tokens == 0

    def test_a_template_that_forgets_a_picture_is_refused(self, bundled: Twin) -> None:
        spec = replace(bundled.spec, chat_template="{{ messages[0].content[1].text }}")
        grid = bundled.family.tile(frame_of(64, 64))
        with pytest.raises(ModelError, match="0 times <image> for 1 pictures"):
            Idefics3(spec).layout([Message("user", (grid, "What?"))], bundled.tokenizer)

    def test_a_conversation_needs_a_message(self, bundled: Twin) -> None:
        with pytest.raises(RequestError, match="message"):
            bundled.family.layout([], bundled.tokenizer)


class TestSettings:
    @pytest.mark.parametrize(
        "setting",
        [
            {"size": {"longest_edge": 0}},
            {"size": {"longest_edge": "128"}},
            {"size": {"shortest_edge": 128}},
            {"size": 128},
            {"max_image_size": {}},
            {"max_image_size": {"longest_edge": True}},
            {"max_image_size": {"longest_edge": 60}},
            {"size": {"longest_edge": 4096}},
            {"resample": 9},
            {"resample": "lanczos"},
            {"resample": [1]},
            {"size": None},
            {"size": 5},
            {"do_resize": 1},
            {"do_image_splitting": "yes"},
        ],
    )
    def test_settings_that_make_no_sense_are_a_model_error(self, bundled: Twin, setting: dict[str, Any]) -> None:
        with pytest.raises(ModelError):
            Idefics3(replace(bundled.spec, preprocessor={**bundled.spec.preprocessor, **setting}))

    @pytest.mark.parametrize(
        "setting",
        [{"scale_factor": 0}, {"scale_factor": True}, {"scale_factor": 3}, {"vision_config": {"patch_size": "8"}}],
    )
    def test_a_config_that_makes_no_sense_is_a_model_error(self, bundled: Twin, setting: dict[str, Any]) -> None:
        with pytest.raises(ModelError):
            Idefics3(replace(bundled.spec, config={**bundled.spec.config, **setting}))

    def test_tokens_per_tile_are_those_of_the_published_models(
        self, published: Twin, original: Twin, bundled: Twin
    ) -> None:
        assert published.family.tokens_per_unit == 64
        assert original.family.tokens_per_unit == 169
        assert (
            bundled.family.tokens_per_unit
            == json.loads((BUNDLED / "processor_config.json").read_text())["image_seq_len"]
        )

    def test_a_tile_that_the_patches_do_not_fill_counts_whole_patches(self, tmp_path: Path) -> None:
        spec = write_model_folder(tmp_path, longest_edge=1536, tile_side=384, patch_size=14, scale_factor=3)
        assert Idefics3(spec).tokens_per_unit == 81

    def test_smolvlm_is_of_this_family(self, published: Twin) -> None:
        assert isinstance(family_of(published.spec), Idefics3)


def test_a_template_that_opens_the_reasoning_is_noticed(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path)
    opened = replace(model, chat_template=model.chat_template.replace("Assistant:", "Assistant:<think>\n"))
    tokenizer = HFTokenizer(model)
    asked = [Message("user", ("Why?",))]
    assert not Idefics3(model).layout(asked, tokenizer).opens_reasoning
    assert Idefics3(opened).layout(asked, tokenizer).opens_reasoning


class TestRungs:
    @pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
    def test_tiles_of_every_rung_are_those_of_transformers_with_its_longest_edge(
        self, bundled: Twin, size: tuple[int, int]
    ) -> None:
        assert_honest_rungs(bundled, frame_of(*size))

    @pytest.mark.parametrize("size", [(1, 5000), (2049, 3), (640, 480), (480, 640), (333, 1777), (1080, 1080)])
    def test_so_are_those_of_published_settings(self, published: Twin, original: Twin, size: tuple[int, int]) -> None:
        assert_honest_rungs(published, frame_of(*size))
        assert_honest_rungs(original, frame_of(*size))

    @pytest.mark.parametrize(
        "setting",
        [
            {"do_resize": False},
            {"do_image_splitting": False},
            {"resample": 3},
            {"size": {"height": 100, "width": 200}},
            {"size": {"longest_edge": 129}},
            {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 512}},
        ],
        ids=str,
    )
    def test_so_are_those_of_other_settings(self, tmp_path: Path, setting: dict[str, Any]) -> None:
        preprocessor = {"size": {"longest_edge": 256}, "max_image_size": {"longest_edge": 64}, **setting}
        side = preprocessor["max_image_size"]["longest_edge"]
        twin = Twin(
            write_model_folder(tmp_path, tile_side=side, patch_size=16, scale_factor=2, preprocessor=preprocessor)
        )
        for size in ((200, 100), (77, 333), (64, 64)):
            assert_honest_rungs(twin, frame_of(*size))

    def test_the_ladder_of_a_camera_frame_with_published_settings(self, published: Twin) -> None:
        rungs = published.family.rungs(frame_of(640, 480))
        assert [(rung.longest_edge, rung.num_units) for rung in rungs] == [(None, 13), (1536, 10), (1024, 5), (512, 1)]
        assert [rung.num_image_tokens for rung in rungs] == [13 * 64, 10 * 64, 5 * 64, 64]

    @settings(deadline=None)
    @given(width=st.integers(1, 3000), height=st.integers(1, 3000), side=st.integers(16, 40), edge=st.integers(1, 400))
    def test_smaller_edges_lead_down_to_one_tile_for_any_size(
        self, width: int, height: int, side: int, edge: int
    ) -> None:
        tiles = TileSettings(side, edge, (0, 0), True, True, Image.Resampling.LANCZOS)
        edges = [edge, *tiles.smaller_edges()]
        assert edges == sorted(set(edges), reverse=True)
        assert tiles.with_longest_edge(edges[-1]).grid(height, width) == (1, 1)

    def test_a_picture_with_too_many_tiles_has_no_rungs(self, tmp_path: Path) -> None:
        spec = write_model_folder(
            tmp_path,
            patch_size=16,
            scale_factor=2,
            preprocessor={"max_image_size": {"longest_edge": 64}, "size": {"longest_edge": 128}, "do_resize": False},
            tile_side=64,
        )
        with pytest.raises(ImageError, match="272 tiles"):
            Idefics3(spec).rungs(frame_of(1088, 1024))


def assert_honest_rungs(twin: Twin, frame: Frame) -> None:
    """Compare the tiles of every rung with those of transformers, and their number with what the rung says."""
    rungs = twin.family.rungs(frame)
    assert rungs[0].longest_edge is None
    assert rungs[-1].num_units == 1
    counts = [rung.num_image_tokens for rung in rungs]
    assert counts == sorted(set(counts), reverse=True)
    for rung in rungs:
        changed: dict[str, Any] = {}
        if rung.longest_edge is not None:
            changed = {"size": {"longest_edge": rung.longest_edge}, "do_resize": True}
        images = Idefics3ImageProcessorPil(**{**twin.spec.preprocessor, **changed})
        grid = twin.family.tile(frame, rung.longest_edge)
        units, rows, columns = twin.tiles(frame, images)
        assert (grid.rows, grid.columns, len(grid.units)) == (rows, columns, len(units))
        for ours, theirs in zip(grid.units, units, strict=True):
            assert np.array_equal(ours.pixels, theirs)
        assert rung.num_units == len(units)
        assert rung.num_image_tokens == len(units) * twin.family.tokens_per_unit
        tokens = twin.family.tokens_per_unit
        assert {unit_shape(ImageChunk(unit, 0, tokens, 0, tokens)) for unit in grid.units} == {rung.shape}
