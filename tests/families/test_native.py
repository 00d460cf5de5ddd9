"""Tests of models that only their engine knows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

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
