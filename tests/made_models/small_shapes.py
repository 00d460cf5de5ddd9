"""Shapes of a few layers, with every awkward size of the real ones."""

from __future__ import annotations

from edge_vl.made_models.shapes import ModelShape, TextShape, VisionShape

SMALL_SMOLVLM = ModelShape(
    "small-smolvlm",
    "idefics3",
    TextShape(2, 96, 3, 1, 32, 160, 49280, 100_000.0, 1e-5, 512),
    # The tile is no multiple of the patch and the feed-forward is no multiple of 32, as in the 2.2B model.
    VisionShape(2, 64, 2, 136, tile_side=100, patch_side=12, shuffle=4),
    longest_edge=200,
)
SMALL_INTERNVL = ModelShape(
    "small-internvl",
    "internvl3",
    TextShape(2, 128, 4, 2, 32, 160, 1500, 1_000_000.0, 1e-6, 512, is_tied=True, has_qkv_bias=True),
    VisionShape(2, 64, 2, 128, tile_side=56, patch_side=14, shuffle=2),
)
