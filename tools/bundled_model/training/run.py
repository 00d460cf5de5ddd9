"""Optimisers with one schedule, and a log of running means."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tools.bundled_model.training.muon import Muon


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates of a stage.

    Attributes:
        muon: for hidden matrices of the decoder and, times `tower`, of the vision encoder.
        adam: for embeddings, norms, biases and read-outs.
        tower: factor on both for the vision encoder and the connector; 0 freezes them.
        warmup_steps: steps of linear warm-up; a cosine to `final` of the peak follows.
        final: fraction of the peak at the end.
    """

    muon: float = 0.02
    adam: float = 2e-3
    tower: float = 1.0
    warmup_steps: int = 50
    final: float = 0.02


class Optimizers:
    """Muon and AdamW over a network and its read-outs, with one schedule."""

    def __init__(self, network: nn.Module, heads: nn.Module, rates: Rates, total_steps: int) -> None:
        self.rates, self.total_steps = rates, total_steps
        groups: dict[tuple[str, bool], list[nn.Parameter]] = defaultdict(list)
        for name, parameter in network.named_parameters():
            in_tower = "text_model" not in name
            parameter.requires_grad_(not in_tower or rates.tower > 0)
            if parameter.requires_grad:
                kind = "muon" if parameter.ndim == 2 and ".layers." in name else "adam"
                groups[kind, in_tower].append(parameter)
        groups["adam", False].extend(heads.parameters())
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = []
        for (kind, in_tower), parameters in groups.items():
            factor = rates.tower if in_tower else 1.0
            if kind == "muon":
                self.optimizers.append((Muon(parameters, rates.muon), rates.muon * factor))
            else:
                adam = torch.optim.AdamW(parameters, rates.adam, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
                self.optimizers.append((adam, rates.adam * factor))
        self.parameters = [parameter for group in groups.values() for parameter in group]

    def step(self, step: int) -> None:
        """Clip the gradients, update, and clear them."""
        progress = step / self.total_steps
        cosine = self.rates.final + (1 - self.rates.final) * 0.5 * (1 + math.cos(math.pi * progress))
        factor = min(1.0, (step + 1) / self.rates.warmup_steps) * cosine
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of all optimisers."""
        return [optimizer.state_dict() for optimizer, _ in self.optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore the state of all optimisers."""
        for (optimizer, _), state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)


@dataclass(slots=True)
class Log:
    """Writes running means of figures with the wall time."""

    path: Path
    started_s: float = field(default_factory=time.monotonic)
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, figures: dict[str, float]) -> None:
        """Collect one step's figures."""
        for name, value in figures.items():
            if not math.isnan(value):
                self.figures[name].append(value)

    def write(self, title: str) -> None:
        """Write the means since the last line."""
        means = " ".join(f"{name} {sum(values) / len(values):.3f}" for name, values in self.figures.items() if values)
        self.figures.clear()
        line = f"{time.strftime('%H:%M:%S')} +{time.monotonic() - self.started_s:.0f}s {title} {means}"
        with self.path.open("a") as file:
            file.write(line + "\n")
