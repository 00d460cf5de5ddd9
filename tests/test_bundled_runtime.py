"""Tests of the whole with the bundled model and the bundled pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_vl import ContextLengthError, DeadlineExceeded, ImageError, RequestError, Runtime
from edge_vl.kv_policy import KVPolicy, KVPrecision
from tests.conftest import flush

PICTURES = Path(__file__).parent.parent / "examples" / "pictures"
SCENES: dict[str, dict[str, str]] = json.loads((PICTURES / "scenes.json").read_text())
NAMES = sorted(SCENES)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime.open(model="bundled") as opened:
        yield opened


@pytest.mark.parametrize("name", NAMES)
def test_the_answers_about_the_bundled_pictures_are_true(runtime: Runtime, name: str) -> None:
    answers = {question: runtime.ask(PICTURES / name, question).text for question in SCENES[name]}
    assert answers == SCENES[name]


def test_however_a_picture_comes_the_answer_is_the_same(runtime: Runtime) -> None:
    path = PICTURES / NAMES[0]
    question, truth = next(iter(SCENES[NAMES[0]].items()))
    with Image.open(path) as image:
        rgb = np.asarray(image.convert("RGB"))
        pillow = image.convert("RGB")
    assert {runtime.ask(picture, question).text for picture in (path, str(path), path.read_bytes(), rgb, pillow)} == {
        truth
    }
    assert runtime.ask(rgb[:, :, ::-1], question, bgr=True).text == truth


def test_pictures_a_b_a_and_eleven_at_once_answer_as_a_fresh_runtime_does(runtime: Runtime) -> None:
    order = [[PICTURES / NAMES[0]], [PICTURES / NAMES[1]], [PICTURES / NAMES[0]]]
    eleven = [PICTURES / NAMES[number % len(NAMES)] for number in range(11)]
    together = [runtime.ask(pictures, "Describe the picture.").text for pictures in (*order, eleven)]
    fresh: list[str] = []
    for pictures in (*order, eleven):
        with Runtime.open(model="bundled") as other:
            fresh.append(other.ask(pictures, "Describe the picture.").text)
    assert together == fresh


def test_a_conversation_answers_truly_turn_by_turn(runtime: Runtime) -> None:
    with runtime.conversation() as talk:
        for name in NAMES[:2]:
            shown: list[Path] = [PICTURES / name]
            for question, truth in list(SCENES[name].items())[:3]:
                answer = talk.ask(question, shown)
                assert answer.text == truth
                assert len(talk.turns) == 2 or answer.reused["image_units"] > 0
                shown = []


def test_a_turn_computed_from_the_cache_equals_one_computed_anew(runtime: Runtime) -> None:
    questions = list(SCENES[NAMES[0]])[:3]
    with Runtime.open() as other_runtime, runtime.conversation() as kept, other_runtime.conversation() as anew:
        for number, question in enumerate(questions):
            shown = [PICTURES / NAMES[0]] if number == 0 else []
            one = kept.ask(question, shown)
            flush(other_runtime)
            anew._resident.drop()
            other = anew.ask(question, shown)
            assert one.text == other.text
            assert other.reused["kv_tokens"] < 10  # what every prompt begins with


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers_and_the_next_one_works(runtime: Runtime) -> None:
    with pytest.raises(ContextLengthError) as caught:
        runtime.ask([PICTURES / NAMES[0]] * 40, "Describe the picture.")
    assert caught.value.num_tokens > caught.value.max_context == runtime.language_spec.context_length
    question, truth = next(iter(SCENES[NAMES[0]].items()))
    assert runtime.ask(PICTURES / NAMES[0], question).text == truth


def test_a_deadline_and_a_bad_picture_leave_the_runtime_working(runtime: Runtime) -> None:
    with pytest.raises(DeadlineExceeded):
        runtime.ask(PICTURES / NAMES[0], "Describe the picture.", deadline_s=1e-6)
    with pytest.raises(ImageError):
        runtime.ask((PICTURES / NAMES[0]).read_bytes()[:200], "Describe the picture.")
    question, truth = next(iter(SCENES[NAMES[0]].items()))
    assert runtime.ask(PICTURES / NAMES[0], question).text == truth


def test_int8_vision_is_said_in_the_answer_and_still_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_VL_CACHE_DIR", str(tmp_path))
    question, truth = next(iter(SCENES[NAMES[0]].items()))
    with Runtime.open(model="bundled", vision_dtype="int8") as runtime:
        answer = runtime.ask(PICTURES / NAMES[0], question)
    assert (answer.dtypes["vision"], answer.dtypes["language"]) == ("int8", "fp32")
    assert answer.text == truth


@pytest.mark.parametrize("kv", ["int8", {"text": "int8"}, KVPolicy(KVPrecision("int8", "int8"))])
def test_a_kv_policy_reaches_the_engine_and_the_answer_names_it(kv: Any) -> None:
    question, truth = next(iter(SCENES[NAMES[0]].items()))
    with Runtime.open(language_engine="llama_cpp", kv=kv, threads=1) as runtime:
        assert runtime.language_spec.kv == "int8"
        answer = runtime.ask(PICTURES / NAMES[0], question)
    assert answer.dtypes["kv"] == "int8"
    assert answer.text == truth


@pytest.mark.parametrize("kv", [8, "int5", {"text": None}, {"texts": "int8"}])
def test_what_is_no_kv_policy_is_refused_before_anything_is_loaded(kv: Any) -> None:
    with pytest.raises(RequestError) as caught:
        Runtime.open("no such model", kv=kv)
    assert caught.value.field == "kv"


@pytest.mark.parametrize(
    "options", [{"temperature": 0.7, "top_p": 0.9}, {"temperature": 3.0, "top_k": 5, "min_p": 0.1}]
)
def test_sampling_repeats_itself_with_the_same_seed(runtime: Runtime, options: dict[str, float]) -> None:
    one, other = (
        runtime.ask(PICTURES / NAMES[0], "Describe the picture.", seed=11, **options).text  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert one == other


def test_the_trace_says_whose_attention_runs(runtime: Runtime) -> None:
    notes = runtime.ask(PICTURES / NAMES[0], "What is it?", max_tokens=1).timings.schedule["engine_notes"]
    assert any(note.startswith("attention: ") for note in notes)


@pytest.mark.parametrize("kv", ["f32", "int8", "int4"])
def test_a_compressed_cache_that_was_rolled_back_answers_as_a_fresh_one(kv: str) -> None:
    questions = ["Describe the picture.", "What is at the top left?", "How many objects are there?"]
    with Runtime.open(model="bundled", kv=kv, threads=1) as kept:
        answers = [kept.ask(PICTURES / NAMES[0], question) for question in questions]
        with kept.conversation() as talk:
            turns = [talk.ask(question, PICTURES / NAMES[0]).text for question in questions]
    assert min(answer.reused["kv_tokens"] for answer in answers[1:]) >= 68  # up to the border of the first block
    with Runtime.open(model="bundled", kv=kv, threads=1) as fresh, fresh.conversation() as talk:
        again = [talk.ask(question, PICTURES / NAMES[0]).text for question in questions]
    alone = []
    for question in questions:
        with Runtime.open(model="bundled", kv=kv, threads=1) as fresh:
            alone.append(fresh.ask(PICTURES / NAMES[0], question).text)
    assert [answer.text for answer in answers] == alone
    assert turns == again
