"""The training network against the shipped files, and a step of every stage."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.tools.onnx_model import OnnxModel
from tools.bundled_model.export import MODEL_FOLDER, onnx_weights
from tools.bundled_model.questions import Fact
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene
from tools.bundled_model.tiling import tiles

torch = pytest.importorskip("torch")

from tools.bundled_model.training import pool, train  # noqa: E402  (they import torch)
from tools.bundled_model.training.decoder import decode  # noqa: E402
from tools.bundled_model.training.network import Dimensions, Network  # noqa: E402
from tools.bundled_model.training.packing import IGNORED, Packer, pack_turns  # noqa: E402
from tools.bundled_model.training.run import Optimizers  # noqa: E402
from tools.bundled_model.training.stages import STAGES, Stage  # noqa: E402

SCENE = (Fact("circle", "red", "top left"), Fact("star", "orange", "bottom right"))


@pytest.fixture(scope="module")
def onnx_model() -> OnnxModel:
    return OnnxModel()


@pytest.fixture(scope="module")
def network() -> Network:
    weights = {name: torch.tensor(values) for name, values in onnx_weights(MODEL_FOLDER).items()}
    loaded: Network = Network(Dimensions(vocabulary=len(weights["model.text_model.embed_tokens.weight"])))
    loaded.load_state_dict(weights)
    loaded.eval()
    return loaded


def test_the_network_computes_what_the_onnx_files_compute(network: Network, onnx_model: OnnxModel) -> None:
    packer, rng = Packer(onnx_model.tokenizer), np.random.default_rng(0)
    turn = packer.turn(packer.draw(SCENE, rng), later=False)
    packed = pack_turns(packer.prefix, [[turn]])
    pixels = tiles(render(random_scene(1), 160, 120)).transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
    with torch.no_grad():
        _, image_tokens = network.encode(torch.from_numpy(pixels))
        states, *_ = decode(network, packed, image_tokens, onnx_model.image)
        logits = network.head(states[-1]).numpy()
    embeds = onnx_model.embeds(packed.ids.numpy(), [onnx_model.image_embeds(pixels[None])])
    expected, _ = onnx_model.logits(embeds, onnx_model.empty_cache(), 0)
    assert np.abs(logits - expected).max() < 1e-3


def test_packed_questions_do_not_see_each_other(network: Network, onnx_model: OnnxModel) -> None:
    packer, rng = Packer(onnx_model.tokenizer), np.random.default_rng(1)
    turns = [packer.turn(packer.draw(SCENE, rng), later=False) for _ in range(3)]
    image_tokens = torch.randn(5, 16, network.dims.hidden, generator=torch.manual_seed(0))
    with torch.no_grad():
        together, *_ = decode(network, pack_turns(packer.prefix, [turns]), image_tokens, onnx_model.image)
        alone, *_ = decode(network, pack_turns(packer.prefix, [turns[2:]]), image_tokens, onnx_model.image)
    length = len(turns[2])
    assert torch.allclose(together[-1][0, -length:], alone[-1][0, -length:], atol=1e-4)


def test_every_answer_token_is_a_label_and_rests_on_its_object(onnx_model: OnnxModel) -> None:
    packer, rng = Packer(onnx_model.tokenizer), np.random.default_rng(2)
    question = next(drawn for drawn in iter(lambda: packer.draw(SCENE, rng), None) if drawn.kind == "describe")
    tokens = [token for token in packer.turn(question, later=True) if token.label != IGNORED]
    labels = [token.label for token in tokens]
    assert onnx_model.tokenizer.decode(labels).strip() == question.answer
    assert labels[-1] == onnx_model.end
    by_word = {onnx_model.tokenizer.decode([token.label]).strip(): token.places for token in tokens}
    assert (by_word["circle"], by_word["star"], by_word[","]) == (0b0001, 0b1000, 0)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> train.Trainer:
    folder: Path = tmp_path_factory.mktemp("training")
    (folder / "pool").mkdir()
    np.savez(folder / "pool" / "chunk-000.npz", allow_pickle=False, **pool.render_chunk(0, num_pictures=6))
    return train.Trainer(folder)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_step_of_every_stage_changes_what_it_should(trainer: train.Trainer, stage: Stage) -> None:
    before = {name: values.clone() for name, values in trainer.network.state_dict().items()}
    optimizers = Optimizers(trainer.network, trainer.heads, stage.rates, stage.steps)
    figures = trainer.step(stage, optimizers, 0)
    assert all(math.isfinite(value) for name, value in figures.items() if name != "small_shape")
    changed = {
        "text_model" in name for name, values in trainer.network.state_dict().items() if not values.equal(before[name])
    }
    assert changed == ({True} if stage.length else set()) | ({False} if stage.rates.tower else set())
    trainer.save(stage, optimizers, 1)
    assert trainer.load(stage)["step"] == 1
