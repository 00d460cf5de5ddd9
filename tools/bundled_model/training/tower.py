"""Dense supervision of the vision encoder.

A mean class loss alone leaves shapes at chance; a mask of eight by eight pixels per patch makes the encoder find the
objects' outlines first, after which shapes follow within minutes.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tools.bundled_model.scenes import COLORS, SHAPES
from tools.bundled_model.training.network import Dimensions, Network
from tools.bundled_model.training.pool import Pool

IGNORED = -100


class Batch:
    """Pictures with dense labels, flipped at random.

    Attributes:
        pixels: float32 (num_pictures, 5, 3, 64, 64), -1 to 1.
        masks: float32 (num_pictures, 4, 64, 64), the object of each tile.
        shapes: uint8 (num_pictures, 4), 0 for nothing.
        colors: uint8 (num_pictures, 4).
    """

    def __init__(self, pool: Pool, indices: NDArray[np.int64], rng: np.random.Generator) -> None:
        tiles, shapes, colors = pool.tiles[indices], pool.shapes[indices], pool.colors[indices]
        masks = np.unpackbits(pool.masks[indices], axis=-1)
        for axis, order in ((2, (1, 0, 3, 2)), (1, (2, 3, 0, 1))):
            chosen = rng.random(len(indices)) < 0.5
            tiles[chosen] = np.flip(tiles[chosen][:, (*order, 4)], axis + 1)
            masks[chosen] = np.flip(masks[chosen][:, order], axis + 1)
            shapes[chosen], colors[chosen] = shapes[chosen][:, order], colors[chosen][:, order]
        self.pixels = torch.from_numpy(tiles).permute(0, 1, 4, 2, 3).float().div_(127.5).sub_(1)
        self.masks = torch.from_numpy(masks).float()
        self.shapes, self.colors = shapes, colors


def assemble(quadrants: Tensor) -> Tensor:
    """Put four quadrants (batch, 4, side, side) together: (batch, 2 side, 2 side)."""
    batch, _, side, _ = quadrants.shape
    return quadrants.view(batch, 2, 2, side, side).transpose(2, 3).reshape(batch, 2 * side, 2 * side)


def cell_cover(masks: Tensor, cell: int) -> tuple[Tensor, Tensor]:
    """Return how far objects cover the cells of tiles and thumbnail.

    Args:
        masks: float32 (batch, 4, 64, 64).
        cell: side of a square cell in pixels of a tile.

    Returns:
        tiles (batch, 4, 64 / cell, 64 / cell) and thumbnail (batch, 4 objects, 32 / cell, 32 / cell).
    """
    return functional.avg_pool2d(masks, cell), functional.avg_pool2d(masks, 2 * cell)


def cell_labels(masks: Tensor, classes: Tensor, cell: int, enough: float) -> Tensor:
    """Return the class of every cell, 0 where nothing is, `IGNORED` where an object only touches it.

    Returns:
        int64 (batch, 5 tiles, cells).
    """
    labels = []
    for cover in cell_cover(masks, cell):
        label = classes[:, :, None, None].expand_as(cover).clone()
        label[cover < enough] = IGNORED
        label[cover == 0] = 0
        labels.append(label)
    thumbnail = assemble(labels[1]).flatten(1)[:, None]
    return torch.cat([labels[0].flatten(2), thumbnail], 1)


class TowerHeads(nn.Module):
    """Linear read-outs that exist in training only."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.mask = nn.Linear(dims.vision_hidden, dims.patch**2)
        self.patch_shape = nn.Linear(dims.vision_hidden, len(SHAPES) + 1)
        self.patch_color = nn.Linear(dims.vision_hidden, len(COLORS) + 1)
        self.token_shape = nn.Linear(dims.hidden, len(SHAPES) + 1)
        self.token_color = nn.Linear(dims.hidden, len(COLORS) + 1)
        self.token_cell = nn.Linear(dims.hidden, (dims.patches_per_side // dims.scale_factor) ** 2)

    def forward(self, patches: Tensor, tokens: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Return the loss and figures to watch.

        Args:
            patches: (num_pictures * 5, 64, vision_hidden).
            tokens: (num_pictures * 5, 16, hidden).
            batch: the labels.
        """
        masks = batch.masks
        small = assemble(functional.avg_pool2d(masks, 2)).round()[:, None]
        targets = torch.cat([masks, small], 1).view(-1, 8, 8, 8, 8).transpose(2, 3).reshape(-1, 64, 64)
        mask_loss = functional.binary_cross_entropy_with_logits(self.mask(patches), targets)
        shapes, colors = torch.from_numpy(batch.shapes).long(), torch.from_numpy(batch.colors).long()
        scale = tokens.pow(2).mean(-1, keepdim=True).sqrt()
        normal = tokens / (scale + 1e-3)
        losses, shares = {}, {}
        for name, states, classes, cell, enough in (
            ("patch_shape", patches, shapes, 8, 0.2),
            ("patch_color", patches, colors, 8, 0.2),
            ("token_shape", normal, shapes, 16, 0.15),
            ("token_color", normal, colors, 16, 0.15),
        ):
            labels = cell_labels(masks, classes, cell, enough)
            logits = getattr(self, name)(states)
            losses[name] = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
            hits, on_object = logits.argmax(-1).view_as(labels) == labels, labels > 0
            shares[name] = hits[on_object].float().mean().item()
            if name == "token_shape":
                shares["small_shape"] = hits[:, 4][on_object[:, 4]].float().mean().item()
        cells = self.token_cell(normal)
        where = torch.arange(cells.size(1)).expand(cells.size(0), -1)
        cell_loss = functional.cross_entropy(cells.flatten(0, 1), where.flatten())
        scale_loss = (scale.log() - np.log(Network.SCALE)).pow(2).mean()
        loss = 3 * mask_loss + sum(losses.values()) + 0.2 * cell_loss + 0.1 * scale_loss
        figures = {"mask": mask_loss.item(), "cell": cell_loss.item(), "scale": scale.mean().item(), **shares}
        return loss, figures
