"""Muon for matrices beside AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonalize(matrices: Tensor) -> Tensor:
    """Bring the singular values of a stack of matrices near 1 with five Newton-Schulz steps.

    Source:
        Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (github.com/KellerJordan/Muon).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = matrices.size(-1) >= matrices.size(-2)
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised; matrices of one shape are updated together."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for shape, matrices in by_shape.items():
                updates = []
                for matrix in matrices:
                    average = self.state[matrix].setdefault("average", torch.zeros_like(matrix))
                    average.lerp_(matrix.grad, 1 - group["momentum"])
                    updates.append(matrix.grad.lerp(average, group["momentum"]))
                scale = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                for matrix, update in zip(matrices, orthogonalize(torch.stack(updates)), strict=True):
                    matrix.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)
