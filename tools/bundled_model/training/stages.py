"""The stages of training, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.bundled_model.training.run import Rates


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage trains, on what, and for how long.

    Attributes:
        name: also names the checkpoint.
        steps: optimiser steps.
        pictures: pictures per step.
        length: tokens per picture, its questions among them; 0 asks none and leaves the decoder alone.
        dense: weight of the dense supervision of the vision encoder.
        attention: weight of the attention loss, falling to 0 over the stage.
        probes: weight of the decoder's read-outs, likewise.
        dialogues: numbers of pictures in a conversation, one drawn per step; 1 stands for packed questions.
        rates: learning rates.
    """

    name: str
    steps: int
    pictures: int
    length: int = 0
    dense: float = 0.0
    attention: float = 0.0
    probes: float = 0.0
    dialogues: tuple[int, ...] = (1,)
    rates: Rates = field(default_factory=Rates)


STAGES = (
    Stage("tower", steps=800, pictures=32, dense=1.0),
    Stage("decoder", steps=200, pictures=16, length=400, attention=0.4, probes=0.2, rates=Rates(tower=0.0)),
    Stage("refined-tower", steps=900, pictures=32, dense=1.0, rates=Rates(muon=0.015, adam=1.5e-3)),
    Stage("answers", steps=1500, pictures=24, length=240, attention=0.3, probes=0.1,
          dialogues=(1, 1, 1, 1, 2, 3, 4, 6, 12), rates=Rates(muon=0.01, adam=1.2e-3, tower=0.0)),
)  # fmt: skip
