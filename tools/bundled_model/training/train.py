"""Train the bundled model: `python -m tools.bundled_model.training.train FOLDER`.

The folder holds the pool of pictures, a checkpoint per stage, and a log. A run that was interrupted goes on where its
last checkpoint was.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from tools.bundled_model.export import MODEL_FOLDER
from tools.bundled_model.questions import COLOR_WORDS, Fact
from tools.bundled_model.scenes import PLACES, SHAPES
from tools.bundled_model.tokenizer import IMAGE, load_tokenizer
from tools.bundled_model.training.decoder import DecoderHeads, Weights, losses
from tools.bundled_model.training.network import Dimensions, Network
from tools.bundled_model.training.packing import Packer
from tools.bundled_model.training.pool import Pool
from tools.bundled_model.training.run import Log, Optimizers
from tools.bundled_model.training.stages import STAGES, Stage
from tools.bundled_model.training.tower import Batch, TowerHeads
from tools.bundled_model.training.validation import accuracy

LOG_STEPS, SAVE_STEPS, VALIDATION_STEPS, VALIDATION_SCENES = 25, 100, 200, 60


def batch_facts(batch: Batch) -> list[list[Fact]]:
    """Return what is true of every picture of a batch."""
    return [
        [
            Fact(SHAPES[shape - 1], COLOR_WORDS[color - 1], place)
            for shape, color, place in zip(shapes, colors, PLACES, strict=True)
            if shape
        ]
        for shapes, colors in zip(batch.shapes, batch.colors, strict=True)
    ]


class Trainer:
    """A network, its read-outs, and the folder they are saved to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = Pool.load(folder / "pool")
        tokenizer = load_tokenizer(MODEL_FOLDER)
        self.packer, self.image_token_id = Packer(tokenizer), tokenizer.encode(IMAGE).ids[0]
        dims = Dimensions(vocabulary=tokenizer.get_vocab_size())
        self.network = Network(dims)
        self.heads = nn.ModuleDict({"tower": TowerHeads(dims), "decoder": DecoderHeads(dims)})
        self.log = Log(folder / "log.txt")

    def checkpoint(self, stage: Stage) -> Path:
        """Return where a stage's state is kept."""
        return self.folder / f"{stage.name}.pt"

    def load(self, stage: Stage) -> dict[str, Any]:
        """Restore network and read-outs from a stage's checkpoint and return the rest of it."""
        state: dict[str, Any] = torch.load(self.checkpoint(stage))
        self.network.load_state_dict(state["network"])
        self.heads.load_state_dict(state["heads"])
        return state

    def save(self, stage: Stage, optimizers: Optimizers, step: int) -> None:
        """Save a checkpoint; an interrupted write leaves the old one."""
        state = {
            "network": self.network.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizers": optimizers.state_dict(),
            "step": step,
        }
        unfinished = self.checkpoint(stage).with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.rename(self.checkpoint(stage))

    def run(self, stage: Stage) -> None:
        """Run a stage, or what is left of it."""
        optimizers = Optimizers(self.network, self.heads, stage.rates, stage.steps)
        first = 0
        if self.checkpoint(stage).exists():
            state = self.load(stage)
            optimizers.load_state_dict(state["optimizers"])
            first = state["step"]
        for step in range(first, stage.steps):
            self.log.add(self.step(stage, optimizers, step))
            done = step + 1
            if done % LOG_STEPS == 0:
                self.log.write(f"{stage.name} {done}")
            if done % SAVE_STEPS == 0 or done == stage.steps:
                self.save(stage, optimizers, done)
            if stage.length and (done % VALIDATION_STEPS == 0 or done == stage.steps):
                self.log.add(accuracy(self.network, self.packer, self.image_token_id, VALIDATION_SCENES))
                self.log.write(f"{stage.name} {done} unseen:")

    def step(self, stage: Stage, optimizers: Optimizers, step: int) -> dict[str, float]:
        """Take one step and return figures to watch."""
        rng = np.random.default_rng((*stage.name.encode(), step))
        batch = Batch(self.pool, rng.integers(0, len(self.pool), stage.pictures), rng)
        remaining = 1 - step / stage.steps
        loss = torch.zeros(())
        figures: dict[str, float] = {}
        with torch.autocast("cpu", torch.bfloat16):
            with nullcontext() if stage.rates.tower else torch.no_grad():
                patches, image_tokens = self.network.encode(batch.pixels.flatten(0, 1))
            if stage.length:
                scenes, num_pictures = batch_facts(batch), int(rng.choice(stage.dialogues))
                if num_pictures == 1:
                    packed = self.packer.pack(scenes, stage.length, rng)
                    weights = Weights(stage.attention * remaining, stage.probes * remaining)
                else:
                    rows = [scenes[start : start + num_pictures] for start in range(0, len(scenes), num_pictures)]
                    packed, weights = self.packer.pack_dialogues(rows, rng), Weights(0.0, 0.0)
                loss, figures = losses(
                    self.network, self.heads["decoder"], packed, batch, image_tokens, self.image_token_id, weights
                )
        if stage.dense:
            dense, dense_figures = self.heads["tower"](patches.float(), image_tokens.float(), batch)
            loss, figures = loss + stage.dense * dense, figures | dense_figures
        loss.backward()
        optimizers.step(step)
        return figures


def main() -> None:
    """Run the stages that are not finished and write the weights."""
    parser = argparse.ArgumentParser(description="Train the bundled model.")
    parser.add_argument("folder", type=Path, help="holds pool/, checkpoints and log.txt")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(1)
    trainer = Trainer(options.folder)
    for stage in STAGES:
        finished = trainer.checkpoint(stage).exists() and trainer.load(stage)["step"] == stage.steps
        if not finished:
            trainer.run(stage)
    save_file(trainer.network.state_dict(), options.folder / "weights.safetensors")


if __name__ == "__main__":
    main()
