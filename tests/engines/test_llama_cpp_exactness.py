"""Tests of what is declared exact for pictures that llama.cpp cuts, and that real cuts keep it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_vl.engine import LaneOptions, PictureCutter
from edge_vl.families.native import Native
from edge_vl.frame import Frame
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import ExactnessRules, ImageChunk, Plan
from edge_vl.plan_check import check_plan, may_cut_image, may_split
from edge_vl_llama_cpp import cutting
from edge_vl_llama_cpp import engine as llama_engine
from edge_vl_llama_cpp.exactness import rules_of
from tests.engines.tiny_gguf import PAIRS, write_pair

ONE_THREAD = LaneOptions(threads=1)
UNITS = {"bundled": "tile", "internvl": "tile", "gemma3": "image", "qwen2vl": "image"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelSpec]:
    """Return tiny models by family, written once; `bundled` is the bundled pair without its configuration."""
    root = tmp_path_factory.mktemp("pairs")
    found: dict[str, ModelSpec] = {}

    def get(family: str) -> ModelSpec:
        if family not in found:
            found[family] = write_pair(root / family, family) if family in PAIRS else bare_bundled(root)
        return found[family]

    return get


def bare_bundled(root: Path) -> ModelSpec:
    folder = root / "bundled"
    folder.mkdir()
    for file in (find_model("bundled").path / "gguf").glob("*.gguf"):
        (folder / file.name).symlink_to(file)
    return find_model(folder)


def frame(height: int, width: int, seed: int = 0) -> Frame:
    return Frame(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8), 0.0, 0.0)


def open_pair(spec: ModelSpec) -> tuple[Any, Any, Native]:
    vision, language = llama_engine.load_vision(spec, ONE_THREAD), llama_engine.load_language(spec, ONE_THREAD)
    assert isinstance(vision, PictureCutter)
    return vision, language, Native(spec, vision, language.spec.rollback)


def two_pictures(native: Native, language: Any) -> Plan:
    grids = [native.tile(frame(*size)) for size in ((60, 100), (130, 40))]
    return native.layout([Message("user", ("One:", grids[0], "and two:", grids[1], "What?"))], language.tokenizer)


class TestDeclaredRules:
    @pytest.mark.parametrize("kind", ["idefics3", "internvl", "resampler", "minicpmv4_6", "lfm2", "llama4", "step3vl"])
    def test_tiles_that_are_encoded_alone_may_go_in_one_by_one(self, kind: str) -> None:
        assert rules_of(kind, is_causal=True) == ExactnessRules("tile", "any", True, "none", "any")

    @pytest.mark.parametrize("kind", ["qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "pixtral", "gemma3nv"])
    def test_whole_pictures_that_are_attended_to_causally_may_be_cut_in_prefill(self, kind: str) -> None:
        assert rules_of(kind, is_causal=True) == ExactnessRules("image", "any", True, "none", "any")

    @pytest.mark.parametrize("kind", ["gemma3", "gemma4v", "gemma4uv"])
    def test_pictures_whose_tokens_see_each_other_are_blocks(self, kind: str) -> None:
        assert rules_of(kind, is_causal=False) == ExactnessRules("image", "block", True, "none", "any")

    @pytest.mark.parametrize("kind", ["", "siglip3000", "Idefics3", "hunyuanvl", "deepseek4v"])
    @pytest.mark.parametrize("is_causal", [True, False])
    def test_kinds_that_nobody_has_looked_at_get_the_strictest_rules(self, kind: str, is_causal: bool) -> None:
        assert rules_of(kind, is_causal=is_causal) == ExactnessRules()


@pytest.mark.parametrize("family", [*PAIRS, "bundled"])
def test_plans_of_real_cuts_keep_their_rules(pairs: Callable[[str], ModelSpec], family: str) -> None:
    vision, language, native = open_pair(pairs(family))
    plan = two_pictures(native, language)
    check_plan(plan)
    assert plan.rules.encode_unit == UNITS[family]
    assert may_split(plan)
    assert may_cut_image(plan) == (family != "gemma3")
    if UNITS[family] == "image":
        assert len(plan.images) == 2
    else:
        assert len(plan.images) > 2
    vision.close()
    language.close()


@pytest.mark.parametrize("family", [*PAIRS, "bundled"])
def test_units_prefilled_before_later_ones_are_encoded_give_the_same_logits(
    pairs: Callable[[str], ModelSpec], family: str
) -> None:
    vision, language, native = open_pair(pairs(family))
    plan = two_pictures(native, language)
    encoded = {chunk.unit.key: vision.encode(chunk.unit) for chunk in reversed(plan.images)}
    logits: list[list[Any]] = []
    for is_late in (False, True):
        cache = language.new_cache()  # one at a time: where a sequence lies in the shared memory changes sums
        logits.append([])
        for chunk in plan.chunks:
            item = chunk
            if isinstance(chunk, ImageChunk):
                item = vision.encode(chunk.unit) if is_late else encoded[chunk.unit.key]
            logits[-1].append(language.prefill(cache, [item]))
        assert cache.num_tokens == plan.num_tokens
        assert cache.next_position == plan.chunks[-1].position + plan.chunks[-1].num_positions
        cache.close()
    for one, other in zip(*logits, strict=True):
        np.testing.assert_array_equal(one, other)
    vision.close()
    language.close()


def test_an_encoder_of_an_unknown_kind_cuts_units_that_are_not_split(
    pairs: Callable[[str], ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "rules_of", lambda kind, *, is_causal: rules_of("new " + kind, is_causal=is_causal))
    vision, language, native = open_pair(pairs("internvl"))
    plan = two_pictures(native, language)
    check_plan(plan)
    assert len(plan.images) > 2
    assert not may_split(plan)
    assert not may_cut_image(plan)
    vision.close()
    language.close()


@pytest.mark.parametrize(
    ("family", "is_smaller"), [("bundled", False), ("internvl", False), ("gemma3", False), ("qwen2vl", True)]
)
def test_rungs_count_what_the_encoder_makes_of_smaller_pictures(
    pairs: Callable[[str], ModelSpec], family: str, is_smaller: bool
) -> None:
    vision, language, native = open_pair(pairs(family))
    picture = frame(300, 400)
    rungs = native.rungs(picture)
    assert (len(rungs) > 1) == is_smaller
    for rung in rungs:
        grid = native.tile(picture, rung.longest_edge)
        assert len(grid.units) == rung.num_units
        assert sum(unit.num_tokens for unit in grid.units) == rung.num_image_tokens
    vision.close()
    language.close()
