"""Dimensions of the models that can be made.

Read from a published configuration: SmolVLM-500M. Known from the model cards and not verified to the last digit:
SmolVLM-256M (with the tower of 500M); `rope_theta`, `max_positions` and `longest_edge` of SmolVLM-2.2B, which differ
between its versions; InternVL3-1B. None of the unverified values changes how long a step takes by a measurable amount.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from edge_vl.errors import RequestError

__all__ = ["SHAPES", "ModelShape", "TextShape", "VisionShape", "find_shape"]


@dataclass(frozen=True, slots=True)
class TextShape:
    """A decoder-only language model.

    Attributes:
        num_layers: blocks of attention and gated feed-forward.
        hidden_size: width of an embedding.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides `num_heads`.
        head_dim: width of a head.
        ffn_size: width between the feed-forward's matrices.
        vocab_size: entries of the vocabulary, added tokens included.
        rope_theta: base of the rotary embedding.
        rms_eps: added to the mean square in a norm.
        max_positions: tokens of the context.
        is_tied: whether the head is the token embedding.
        has_qkv_bias: whether query, key and value projections have biases.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    rope_theta: float
    rms_eps: float
    max_positions: int
    is_tied: bool = False
    has_qkv_bias: bool = False


@dataclass(frozen=True, slots=True)
class VisionShape:
    """A vision transformer and its pixel shuffle.

    Attributes:
        num_layers: blocks of attention and feed-forward.
        hidden_size: width of a patch's embedding.
        num_heads: attention heads.
        ffn_size: width between the feed-forward's matrices.
        tile_side: rows and columns of a tile, in pixels.
        patch_side: rows and columns of a patch, in pixels.
        shuffle: patches per side that become one image token.
        norm_eps: added to the variance in a layer norm.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int
    tile_side: int
    patch_side: int
    shuffle: int
    norm_eps: float = 1e-6

    @property
    def num_patches(self) -> int:
        """Patches of a tile."""
        return (self.tile_side // self.patch_side) ** 2

    @property
    def tokens_per_tile(self) -> int:
        """Image tokens of a tile."""
        return (self.tile_side // self.patch_side // self.shuffle) ** 2


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A vision-language model.

    Attributes:
        name: short name.
        family: `idefics3` or `internvl3`.
        text: the language model.
        vision: the vision encoder.
        longest_edge: pixels that the longer side of a picture is scaled to; 0: the family tiles otherwise.
    """

    name: str
    family: str
    text: TextShape
    vision: VisionShape
    longest_edge: int = 0


def _smollm2(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> TextShape:
    return TextShape(layers, hidden, heads, kv_heads, 64, ffn, 49280, 100_000.0, 1e-5, 8192)


_SIGLIP_BASE = VisionShape(12, 768, 12, 3072, tile_side=512, patch_side=16, shuffle=4)
_SIGLIP_SO400M = VisionShape(27, 1152, 16, 4304, tile_side=384, patch_side=14, shuffle=3)
_INTERNVIT_300M = VisionShape(24, 1024, 16, 4096, tile_side=448, patch_side=14, shuffle=2)
_SMOLLM2_1_7B = TextShape(24, 2048, 32, 32, 64, 8192, 49280, 130_000.0, 1e-5, 8192)
_QWEN25_05B = TextShape(
    24, 896, 14, 2, 64, 4864, 151_674, 1_000_000.0, 1e-6, 32768, is_tied=True, has_qkv_bias=True
)  # fmt: skip

SHAPES: Mapping[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("smolvlm-256m", "idefics3", _smollm2(30, 576, 9, 3, 1536), _SIGLIP_BASE, 2048),
        ModelShape("smolvlm-500m", "idefics3", _smollm2(32, 960, 15, 5, 2560), _SIGLIP_BASE, 2048),
        ModelShape("smolvlm-2.2b", "idefics3", _SMOLLM2_1_7B, _SIGLIP_SO400M, 1536),
        ModelShape("internvl3-1b", "internvl3", _QWEN25_05B, _INTERNVIT_300M),
    )
}
"""By short name."""


def find_shape(name: str) -> ModelShape:
    """Find a shape by its short name.

    Raises:
        RequestError: there is none.
    """
    if name in SHAPES:
        return SHAPES[name]
    close = difflib.get_close_matches(name, SHAPES, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(SHAPES)}"
    raise RequestError(f"no shape is called {name!r:.80}{hint}", field="model")
