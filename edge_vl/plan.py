"""A plan: the chunks of a prompt in sequence order, before anything is computed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Chunk", "ExactnessRules", "ImageChunk", "ImageGrid", "ImageUnit", "Plan", "TextChunk"]


@dataclass(frozen=True, slots=True)
class ExactnessRules:
    """What may be split, kept and rolled back without changing an answer. The defaults are the strictest.

    Attributes:
        encode_unit: the smallest thing that can be encoded on its own.
        prefill_cut: `any`: image tokens attend causally, so prefill may stop between any two tokens;
            `block`: an image's tokens see each other and go in together.
        text_prefix_ok: text before the first picture does not depend on the picture.
        tile_order: where the thumbnail stands among the tiles.
        rollback: what the cache can forget: `any` number of last tokens, only the `whole` sequence, or a `bounded` run.
    """

    encode_unit: Literal["tile", "tile_row", "image"] = "image"
    prefill_cut: Literal["any", "block"] = "block"
    text_prefix_ok: bool = False
    tile_order: Literal["thumbnail_last", "thumbnail_first", "none"] = "none"
    rollback: Literal["any", "whole", "bounded"] = "whole"


@dataclass(frozen=True, slots=True, eq=False)
class ImageUnit:
    """What the vision encoder takes in one go: a tile, a thumbnail or a whole picture.

    Attributes:
        pixels: uint8 (height, width, 3), RGB, already resized; not yet rescaled or normalised.
        kind: which of the three.
        row: 1-based row in the grid of tiles; 0 for a thumbnail or whole picture.
        column: 1-based column, likewise.
        key: content key: equal for equal pixels.
        num_tokens: image tokens that it will become, where the encoder cut the picture itself; 0: the family knows.
        num_positions: positions that they span, likewise.
        prepared: what that encoder has made of it; nobody else looks inside.
    """

    pixels: NDArray[np.uint8]
    kind: Literal["tile", "thumbnail", "image"]
    row: int
    column: int
    key: str
    num_tokens: int = 0
    num_positions: int = 0
    prepared: object = None

    @staticmethod
    def of(
        pixels: NDArray[np.uint8], kind: Literal["tile", "thumbnail", "image"], row: int = 0, column: int = 0
    ) -> ImageUnit:
        """Make a unit and its content key from pixels (made contiguous if they are not)."""
        pixels = np.ascontiguousarray(pixels)
        digest = hashlib.blake2b(pixels.data, digest_size=16, person=str(pixels.shape[:2]).encode()[:16])
        return ImageUnit(pixels, kind, row, column, digest.hexdigest())


@dataclass(frozen=True, slots=True, eq=False)
class ImageGrid:
    """One picture, cut into units.

    Attributes:
        units: in sequence order.
        rows: rows of tiles; 0 when the picture was not split.
        columns: columns of tiles, likewise.
        markers: where the encoder cut the picture itself: token ids before each unit and behind the last; empty where
            the family writes them.
    """

    units: tuple[ImageUnit, ...]
    rows: int
    columns: int
    markers: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A run of text tokens.

    Attributes:
        token_ids: in order, at least one.
        position: position of the first token.
    """

    token_ids: tuple[int, ...]
    position: int

    @property
    def num_tokens(self) -> int:
        """Cache entries it will take."""
        return len(self.token_ids)

    @property
    def num_positions(self) -> int:
        """Positions it spans."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class ImageChunk:
    """The image tokens of one unit.

    Attributes:
        unit: what to encode.
        image: which picture of the prompt, from 0.
        num_tokens: cache entries it will take.
        position: position of the first token.
        num_positions: positions it spans (smaller than `num_tokens` for M-RoPE).
    """

    unit: ImageUnit
    image: int
    num_tokens: int
    position: int
    num_positions: int


Chunk = TextChunk | ImageChunk


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A whole prompt as chunks in sequence order.

    Attributes:
        chunks: in order, without gaps.
        rules: what may be done with them.
        opens_reasoning: the template itself ends in `<think>`, so that the answer begins inside the reasoning.
    """

    chunks: tuple[Chunk, ...]
    rules: ExactnessRules
    opens_reasoning: bool = False

    @property
    def num_tokens(self) -> int:
        """Cache entries of the whole prompt."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_image_tokens(self) -> int:
        """Cache entries of its pictures."""
        return sum(chunk.num_tokens for chunk in self.chunks if isinstance(chunk, ImageChunk))

    @property
    def images(self) -> tuple[ImageChunk, ...]:
        """Only the image chunks."""
        return tuple(chunk for chunk in self.chunks if isinstance(chunk, ImageChunk))
