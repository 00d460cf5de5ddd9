"""The prompts of `edge-vl verify`: long enough, within the context, and what earlier turns say is true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_vl import Runtime
from edge_vl.drawn_scene import draw_scene, random_scene
from edge_vl.errors import ContextLengthError, ImageError
from edge_vl.families import Family, family_of
from edge_vl.models import find_model
from edge_vl.pictures import load_picture
from edge_vl.plan import TextChunk
from edge_vl.tokenizer import HFTokenizer
from edge_vl.verify_answers import VerifyPrompt
from edge_vl.verify_prompts import MIN_ENTRIES, make_prompts

SPEC = find_model("bundled")
TOKENIZER = HFTokenizer(SPEC)


def bundled_family() -> Family:
    family = family_of(SPEC)
    assert family is not None
    return family


def prompts(*, max_entries: int = 2016, num_prompts: int = 3, **settings: object) -> tuple[VerifyPrompt, ...]:
    return make_prompts(
        bundled_family(),
        TOKENIZER,
        has_vision=bool(settings.pop("has_vision", True)),
        max_entries=max_entries,
        num_prompts=num_prompts,
        num_questions=4,
        **settings,  # type: ignore[arg-type]
    )


def said(prompt: VerifyPrompt) -> str:
    """Return the text of a prompt."""
    ids = [token for chunk in prompt.plans[0].chunks if isinstance(chunk, TextChunk) for token in chunk.token_ids]
    return b"".join(TOKENIZER.token_bytes(token) for token in ids).decode()


def test_prompts_have_several_pictures_and_turns_and_enough_entries() -> None:
    found = prompts()

    for prompt in found:
        assert len(prompt.questions) == len(prompt.plans) == 4
        assert min(plan.num_tokens for plan in prompt.plans) >= MIN_ENTRIES
        assert len({chunk.image for chunk in prompt.plans[0].images}) >= 4
        assert said(prompt).count("User:") >= 4
    assert len({said(prompt) for prompt in found}) == 3, "no two alike"


def test_the_same_prompts_come_every_time() -> None:
    assert [said(prompt) for prompt in prompts()] == [said(prompt) for prompt in prompts()]


def test_a_short_context_takes_fewer_turns() -> None:
    (prompt,) = prompts(max_entries=300, num_prompts=1)
    assert max(plan.num_tokens for plan in prompt.plans) <= 300
    assert said(prompt).count("User:") == 2


def test_a_context_without_room_for_one_picture_is_refused() -> None:
    with pytest.raises(ContextLengthError):
        prompts(max_entries=60)


def test_a_model_that_cannot_see_is_told_the_scenes_in_words() -> None:
    (prompt,) = prompts(has_vision=False, num_prompts=1)
    assert not prompt.plans[0].images
    assert prompt.plans[0].num_tokens >= MIN_ENTRIES
    assert random_scene(0).text in said(prompt)


def test_pictures_of_the_caller_take_the_place_of_drawn_ones(tmp_path: Path) -> None:
    pixels = np.zeros((100, 80, 3), np.uint8)
    (prompt,) = prompts(num_prompts=1, pictures=[pixels])
    keys = {chunk.unit.key for chunk in prompt.plans[0].images}
    assert keys == {unit.key for unit in bundled_family().tile(load_picture(pixels)).units}
    assert "What is in the picture?" in prompt.questions
    with pytest.raises(ImageError):
        prompts(num_prompts=1, pictures=[tmp_path / "missing.png"])


def test_what_is_said_about_a_drawn_scene_is_true_in_the_eyes_of_the_bundled_model() -> None:
    asked = right = 0
    with Runtime.open("bundled", threads=1) as runtime:
        for seed in range(8):
            scene = random_scene(seed)
            for question, answer in scene.asked():
                asked += 1
                right += runtime.ask(draw_scene(scene), question).text == answer
    assert asked == 40
    assert right >= 36


def test_a_scene_has_its_objects_at_different_places() -> None:
    for seed in range(50):
        objects = random_scene(seed).objects
        assert 1 <= len(objects) <= 4
        for trait in range(3):
            assert len({entry[trait] for entry in objects}) == len(objects)
