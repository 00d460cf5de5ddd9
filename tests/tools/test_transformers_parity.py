"""The shipped ONNX files against transformers' own Idefics3, in PyTorch, on the same weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.tools.onnx_model import OnnxModel
from tools.bundled_model.export import MODEL_FOLDER, onnx_weights
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene, random_size
from tools.bundled_model.tiling import tiles

pytestmark = pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
    reason="needs torch and transformers",
)
QUESTIONS = ("Describe the picture.", "What is at the top left?", "How many objects are there?", "Where is the star?")
NUM_SCENES = 8


@pytest.fixture(scope="module")
def torch_model() -> Any:
    import torch
    from transformers import AutoConfig, Idefics3ForConditionalGeneration

    model = Idefics3ForConditionalGeneration(AutoConfig.from_pretrained(MODEL_FOLDER)).eval()
    weights = {name: torch.tensor(values) for name, values in onnx_weights(MODEL_FOLDER).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, NDArray[Any]]]:
    from transformers import AutoTokenizer, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    images = Idefics3ImageProcessorPil.from_pretrained(MODEL_FOLDER)
    processor = Idefics3Processor(images, AutoTokenizer.from_pretrained(MODEL_FOLDER), image_seq_len=16)
    template = (MODEL_FOLDER / "chat_template.jinja").read_text(encoding="utf-8")

    def inputs() -> Iterator[dict[str, NDArray[Any]]]:
        for seed in range(NUM_SCENES):
            picture = render(random_scene(seed, held_out=True), *random_size(seed))
            content = [{"type": "image"}, {"type": "text", "text": QUESTIONS[seed % len(QUESTIONS)]}]
            text = processor.apply_chat_template(
                [{"role": "user", "content": content}], chat_template=template, add_generation_prompt=True
            )
            yield dict(processor(images=[picture], text=text, return_tensors="np"))

    return list(inputs())


def test_onnx_logits_are_those_of_transformers(torch_model: Any, prompts: list[dict[str, NDArray[Any]]]) -> None:
    import torch

    model = OnnxModel()
    for prompt in prompts:
        with torch.no_grad():
            expected = torch_model(**{name: torch.from_numpy(values) for name, values in prompt.items()}).logits.numpy()
        embeds = model.embeds(prompt["input_ids"], [model.image_embeds(prompt["pixel_values"])])
        logits, _ = model.logits(embeds, model.empty_cache(), 0)
        assert np.abs(logits - expected).max() < 1e-3


def test_onnx_greedy_answers_are_those_of_transformers(
    torch_model: Any, prompts: list[dict[str, NDArray[Any]]]
) -> None:
    import torch

    model = OnnxModel()
    pad = torch_model.config.text_config.pad_token_id
    for prompt in prompts:
        tensors = {name: torch.from_numpy(values) for name, values in prompt.items()}
        expected = torch_model.generate(
            **tensors, max_new_tokens=96, do_sample=False, eos_token_id=model.end, pad_token_id=pad
        )
        embeds = model.embeds(prompt["input_ids"], [model.image_embeds(prompt["pixel_values"])])
        ids, _ = model.greedy(embeds, model.empty_cache())
        assert ids == expected[0, prompt["input_ids"].shape[1] :].tolist()


def test_tiles_are_those_of_the_processor(prompts: list[dict[str, NDArray[Any]]]) -> None:
    for seed, prompt in enumerate(prompts):
        picture = render(random_scene(seed, held_out=True), *random_size(seed))
        expected = prompt["pixel_values"][0].transpose(0, 2, 3, 1)
        assert np.abs(tiles(picture) / 127.5 - 1 - expected).max() < 1e-5
