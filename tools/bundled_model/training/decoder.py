"""Supervision of the decoder: the answers, and what helps it over the plateau of looking things up.

A small decoder learns to answer "what color is the circle?" late and suddenly, since it has to gather the question's
words, find the image tokens that match, and read them, and no step pays without the others. Here each step is rewarded
on its own during training: read-outs for what the question names, for what an image token shows, and for the places of
the objects that the next token depends on; and a loss on the attention of a few heads, which should rest on those.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.bundled_model.questions import COLOR_WORDS
from tools.bundled_model.scenes import PLACES, SHAPES
from tools.bundled_model.training.network import Dimensions, Network
from tools.bundled_model.training.packing import ALL_KINDS, IGNORED, Packed
from tools.bundled_model.training.tower import Batch, assemble, cell_cover, cell_labels

GATHERED_AFTER = 2  # layers
LOOKUP_LAYER = 2
LOOKUP_HEADS = (0, 2, 4)
TOKEN_CELL = 16


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the helping losses."""

    attention: float
    probes: float


def object_tokens(masks: Tensor) -> Tensor:
    """Return which image tokens show each object: bool (batch, 4 objects, 80 tokens)."""
    tiles, thumbnail = cell_cover(masks, TOKEN_CELL)
    batch = masks.size(0)
    shown = torch.zeros(batch, 4, 5, 16, dtype=torch.bool)
    for place in range(4):
        shown[:, place, place] = tiles[:, place].flatten(1) > 0.2
        alone = torch.zeros_like(thumbnail)
        alone[:, place] = thumbnail[:, place]
        shown[:, place, 4] = assemble(alone).flatten(1) > 0.15
    return shown.flatten(2)


class DecoderHeads(nn.Module):
    """Linear read-outs that exist in training only."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dims.hidden, eps=1e-5, elementwise_affine=False)
        classes = {"shape": len(SHAPES) + 1, "color": len(COLOR_WORDS) + 1, "place": len(PLACES)}
        self.image = nn.ModuleDict({name: nn.Linear(dims.hidden, size) for name, size in classes.items()})
        classes |= {"place": len(PLACES) + 1, "kind": len(ALL_KINDS)}
        self.question = nn.ModuleDict({name: nn.Linear(dims.hidden, size) for name, size in classes.items()})
        self.matches = nn.Linear(dims.hidden, len(PLACES))

    def image_loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Ask every image token for its shape, color and quadrant: states (batch, 80, hidden)."""
        states = self.norm(states)
        shapes, colors = torch.from_numpy(batch.shapes).long(), torch.from_numpy(batch.colors).long()
        quadrants = torch.arange(4).view(1, 4, 1).expand(len(states), 4, 16)
        thumbnail = assemble(torch.arange(4).view(1, 4, 1, 1).expand(len(states), 4, 2, 2)).flatten(1)[:, None]
        labels = {
            "shape": cell_labels(batch.masks, shapes, TOKEN_CELL, 0.15),
            "color": cell_labels(batch.masks, colors, TOKEN_CELL, 0.15),
            "place": torch.cat([quadrants, thumbnail], 1),
        }
        return torch.stack([
            functional.cross_entropy(self.image[name](states).flatten(0, 1), target.flatten(), ignore_index=IGNORED)
            for name, target in labels.items()
        ]).sum()  # fmt: skip

    def question_loss(self, states: Tensor, packed: Packed) -> Tensor:
        """Ask the position before the answer for kind, shape, color and place of the question."""
        begins = packed.kinds != IGNORED
        states = self.norm(states[begins])
        labels = dict(zip(("shape", "color", "place"), packed.asked[:, begins], strict=True))
        labels["kind"] = packed.kinds[begins]
        return torch.stack([
            functional.cross_entropy(self.question[name](states), target) for name, target in labels.items()
        ]).sum()  # fmt: skip

    def matches_loss(self, states: Tensor, packed: Packed) -> Tensor:
        """Ask for the places of the objects that the next token rests on, which is what counting needs."""
        rests = packed.places
        due = rests > 0
        wanted = (rests[due][:, None] >> torch.arange(len(PLACES), dtype=torch.uint8)) & 1
        found = self.matches(self.norm(states[due]))
        return functional.binary_cross_entropy_with_logits(found, wanted.to(found.dtype))


def decode(
    network: Network, packed: Packed, image_tokens: Tensor, image_token_id: int
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Run the decoder.

    Returns:
        The hidden states after each layer, the lookup layer's queries and keys, and the mask.
    """
    x = network.embed(packed.ids, image_tokens, image_token_id)
    rotation, mask = network.rotation(packed.positions), packed.mask()
    states, queries, keys = [], x, x
    for number, layer in enumerate(network.model.text_model.layers):
        x, q, k = layer(x, rotation, mask)
        states.append(x)
        if number == LOOKUP_LAYER:
            queries, keys = q, k
    return states, queries, keys, mask


def attention_loss(
    queries: Tensor, keys: Tensor, mask: Tensor, packed: Packed, shown: Tensor, image_at: Tensor
) -> Tensor:
    """Ask the lookup heads to share their attention evenly among the objects that the next token rests on.

    Args:
        queries: (batch, heads, length, head_dim).
        keys: likewise.
        mask: bool (batch, 1, length, length).
        packed: the batch.
        shown: bool (batch, 4, 80), the tokens that show each object.
        image_at: int64 (80,), where the image tokens are in the sequence.
    """
    batch, _, length, head_dim = queries.shape
    rests = packed.places
    most = int((rests > 0).sum(1).max())
    at = (rests > 0).int().argsort(dim=1, descending=True, stable=True)[:, :most]
    rests = rests.gather(1, at)
    heads = list(LOOKUP_HEADS)
    index = at[:, None, :, None]
    q = queries[:, heads].gather(2, index.expand(batch, len(heads), most, head_dim))
    visible = mask.gather(2, index.expand(batch, 1, most, length))
    scores = (q @ keys[:, heads].mT) * head_dim**-0.5
    shares = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    on_objects = torch.einsum("bhqi,boi->bhqo", shares[..., image_at], shown.to(shares.dtype))
    on_targets = torch.cat([on_objects, shares[..., :1]], -1)
    wanted = (rests[:, None, :, None] >> torch.arange(5, dtype=torch.uint8)) & 1
    loss = -(on_targets + 1e-5).log() * wanted
    per_query = loss.sum(-1) / wanted.sum(-1).clamp(min=1)
    return per_query.sum() / (rests > 0).sum() / len(heads)


def losses(
    network: Network,
    heads: DecoderHeads,
    packed: Packed,
    batch: Batch,
    image_tokens: Tensor,
    image_token_id: int,
    weights: Weights,
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of a batch and figures to watch; image tokens are (batch * 5, 16, hidden)."""
    states, queries, keys, mask = decode(network, packed, image_tokens, image_token_id)
    due = packed.labels != IGNORED
    logits = network.head(states[-1][due])
    labels, share = packed.labels[due], packed.weights[due]
    answer_loss = (functional.cross_entropy(logits, labels, reduction="none") * share).sum() / share.sum()
    is_right = (logits.argmax(-1) == labels)[share == 1]
    loss, figures = answer_loss, {"answer": answer_loss.item(), "short": is_right.float().mean().item()}
    image_at = (packed.ids[0] == image_token_id).nonzero()[:, 0]
    if weights.attention:
        lookup = attention_loss(queries, keys, mask, packed, object_tokens(batch.masks), image_at)
        loss = loss + weights.attention * lookup
        figures["attention"] = lookup.item()
    if weights.probes:
        gathered = states[GATHERED_AFTER - 1]
        image_loss = heads.image_loss(gathered[:, image_at], batch)
        question_loss = heads.question_loss(gathered, packed)
        matches_loss = heads.matches_loss(states[LOOKUP_LAYER], packed)
        loss = loss + weights.probes * (image_loss + question_loss + 5 * matches_loss)
        figures |= {"image": image_loss.item(), "question": question_loss.item(), "matches": matches_loss.item()}
    return loss, figures
