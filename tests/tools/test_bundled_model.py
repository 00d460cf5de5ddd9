"""The shipped files: complete, small, and the same weights in both forms."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest

from edge_vl.made_models.gguf_file import stored
from edge_vl.made_models.idefics3_gguf import gguf_name, gguf_tensor
from edge_vl.made_models.idefics3_onnx import FILES
from edge_vl.made_models.onnx_graph import OPSET
from edge_vl.made_models.weights import StoredWeights
from tools.bundled_model.configuration import configurations
from tools.bundled_model.export import MAX_BYTES, MODEL_FOLDER, export, onnx_weights
from tools.bundled_model.gguf_export import TEXT_FILE, VISION_FILE
from tools.bundled_model.questions import KINDS, facts, random_question
from tools.bundled_model.scenes import random_scene
from tools.bundled_model.tokenizer import IMAGE, IMAGE_TOKENS, NEW_LINE, image_text, load_tokenizer


def test_the_model_fits_its_share_of_the_package() -> None:
    assert sum(path.stat().st_size for path in MODEL_FOLDER.rglob("*") if path.is_file()) <= MAX_BYTES


@pytest.mark.parametrize("name", list(configurations(MODEL_FOLDER)))
def test_configuration_files_are_what_the_exporter_writes(name: str) -> None:
    shipped = json.loads((MODEL_FOLDER / name).read_text(encoding="utf-8"))
    assert shipped == configurations(MODEL_FOLDER)[name]


def test_graphs_have_the_names_of_the_hugging_face_layout() -> None:
    vision, embed, decoder = (onnx.load(MODEL_FOLDER / "onnx" / name) for name in FILES)
    assert [entry.name for entry in vision.graph.input] == ["pixel_values", "pixel_attention_mask"]
    assert [entry.name for entry in vision.graph.output] == ["image_features"]
    assert [entry.name for entry in embed.graph.input] == ["input_ids"]
    assert [entry.name for entry in embed.graph.output] == ["inputs_embeds"]
    past = [f"past_key_values.{layer}.{kind}" for layer in range(4) for kind in ("key", "value")]
    assert [entry.name for entry in decoder.graph.input] == [
        "inputs_embeds", "attention_mask", "position_ids", *past, "num_logits_to_keep",
    ]  # fmt: skip
    present = [f"present.{layer}.{kind}" for layer in range(4) for kind in ("key", "value")]
    assert [entry.name for entry in decoder.graph.output] == ["logits", *present]
    assert all(model.opset_import[0].version == OPSET for model in (vision, embed, decoder))


def test_gguf_tensors_are_the_onnx_weights() -> None:
    config = json.loads((MODEL_FOLDER / "config.json").read_text(encoding="utf-8"))
    written = {
        tensor.name: tensor
        for name in (TEXT_FILE, VISION_FILE)
        for tensor in gguf.GGUFReader(MODEL_FOLDER / "gguf" / name).tensors
    }
    weights = onnx_weights(MODEL_FOLDER)
    assert written.keys() == {gguf_name(name) for name in weights}
    for name in weights:
        tensor = gguf_tensor(StoredWeights(weights), name, config, "f16")
        expected = stored(tensor.make(), tensor.type)
        assert np.array_equal(np.asarray(written[tensor.name].data).reshape(expected.shape), expected), name


def test_an_export_from_the_shipped_files_writes_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((MODEL_FOLDER / "tokenizer.json").read_bytes())
    export(onnx_weights(MODEL_FOLDER), tmp_path)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (MODEL_FOLDER / path.relative_to(tmp_path)).read_bytes(), path.name


def test_any_text_survives_the_tokenizer() -> None:
    tokenizer = load_tokenizer(MODEL_FOLDER)
    for text in ("What is at the top left?", "naïve façade 東京 🙂", "\x00\x7f tab\t\n"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_picture_is_eighty_image_tokens_among_its_markers() -> None:
    tokens = load_tokenizer(MODEL_FOLDER).encode(image_text()).tokens
    assert tokens.count(IMAGE) == 5 * IMAGE_TOKENS
    assert tokens.count(2 * NEW_LINE) == tokens.count(NEW_LINE) == 1
    assert [token for token in tokens if token.startswith("<row")] == [
        f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)
    ]


def test_questions_and_answers_are_few_tokens() -> None:
    tokenizer, rng = load_tokenizer(MODEL_FOLDER), np.random.default_rng(0)
    for kind in KINDS:
        question = random_question(facts(random_scene(5)), rng, (kind,))
        assert len(tokenizer.encode(question.text).ids) <= 24
        assert len(tokenizer.encode(" " + question.answer).ids) <= 96
