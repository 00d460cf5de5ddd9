"""How Idefics3 and SmolVLM resize and cut a picture, from `preprocessor_config.json`.

Source:
    transformers: models/idefics3/image_processing_pil_idefics3.py and its SmolVLM twin. Differs: no side becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from edge_vl.config_values import flag, section, whole_number
from edge_vl.errors import ModelError
from edge_vl.model_spec import ModelSpec

__all__ = ["MAX_CONFIGURED_SIDE", "MAX_TILES", "TileSettings", "read_tile_settings"]

MAX_TILES = 256
"""Of one picture, whatever the settings say."""

MAX_CONFIGURED_SIDE = 65_535
"""Of anything in pixels that a configuration names."""

_MAX_SIDE = 4096  # of a resized picture, fixed in transformers


@dataclass(frozen=True, slots=True)
class TileSettings:
    """How a picture is resized and cut, from `preprocessor_config.json`.

    Attributes:
        tile_side: rows and columns of a tile, in pixels.
        longest_edge: the picture is scaled so that its longer side has this many pixels; 0: it is scaled to `fixed`.
        fixed: (height, width) that the picture is scaled to where there is no longest edge.
        do_resize: whether it is scaled at all before it is fitted to whole tiles.
        do_split: whether it is cut into tiles; otherwise it becomes one tile.
        resample: the filter.
    """

    tile_side: int
    longest_edge: int
    fixed: tuple[int, int]
    do_resize: bool
    do_split: bool
    resample: Image.Resampling

    def picture_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) that a picture is first scaled to."""
        if not self.do_resize:
            return height, width
        if not self.longest_edge:
            return self.fixed
        aspect = width / height
        if width >= height:
            width = self.longest_edge
            height = int(width / aspect)
            height += height % 2
        else:
            height = self.longest_edge
            width = int(height * aspect)
            width += width % 2
        height, width = max(height, 1), max(width, 1)
        aspect = width / height
        if width >= height and width > _MAX_SIDE:
            height, width = int(_MAX_SIDE / aspect), _MAX_SIDE
        elif height > width and height > _MAX_SIDE:
            height, width = _MAX_SIDE, int(_MAX_SIDE * aspect)
        return max(height, 1), max(width, 1)

    def whole_tiles_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) in whole tiles for a scaled picture."""
        aspect = width / height
        if width >= height:
            width = self._whole_tiles(width)
            height = self._whole_tiles(int(width / aspect))
        else:
            height = self._whole_tiles(height)
            width = self._whole_tiles(int(height * aspect))
        return height, width

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the (rows, columns) of tiles that a picture is cut into."""
        if not self.do_split:
            return 1, 1
        height, width = self.whole_tiles_size(*self.picture_size(height, width))
        return height // self.tile_side, width // self.tile_side

    def with_longest_edge(self, longest_edge: int | None) -> TileSettings:
        """Return the settings that the model's processor has with another `size.longest_edge`; None: these."""
        return self if longest_edge is None else replace(self, longest_edge=longest_edge, do_resize=True)

    def smaller_edges(self) -> Iterator[int]:
        """Yield the longest edges with ever fewer columns of tiles (or rows, of upright pictures), down to one.

        Edges between them give, but for rounding, the same tiles with less in them: a picture's longer side is rounded
        up to whole tiles before the other one follows from it. An odd edge would be rounded up beyond its tile.
        """
        longest = min(self.longest_edge if self.do_resize and self.longest_edge else _MAX_SIDE, _MAX_SIDE)
        for count in range(math.ceil(longest / self.tile_side), 0, -1):
            edge = count * self.tile_side
            edge = max(edge - edge % 2, 1)
            if edge < longest:
                yield edge

    def _whole_tiles(self, side: int) -> int:
        """Round a side up to whole tiles; transformers fails where it is 0, here it is one tile."""
        return max(1, math.ceil(side / self.tile_side)) * self.tile_side


def read_tile_settings(spec: ModelSpec) -> TileSettings:
    """Read the settings of a model.

    Raises:
        ModelError: they make no sense.
    """
    path = spec.path / "preprocessor_config.json"
    file = str(path)
    defaults = {"size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}}
    settings_read = {**defaults, **spec.preprocessor}

    def side(mapping: Mapping[str, Any], key: str) -> int:
        return whole_number(mapping, key, path, low=1, high=MAX_CONFIGURED_SIDE)

    size = section(settings_read, "size", path)
    tile_side = side(section(settings_read, "max_image_size", path), "longest_edge")
    longest_edge = side(size, "longest_edge")
    fixed = (side(size, "height"), side(size, "width"))
    if not tile_side or not (longest_edge or all(fixed)):
        raise ModelError(
            f"{file}: wanted size.longest_edge (or height and width) and max_image_size.longest_edge", file=file
        )
    try:
        resample = Image.Resampling(spec.preprocessor.get("resample", Image.Resampling.LANCZOS))
    except (ValueError, TypeError) as error:
        raise ModelError(f"{file}: resample is not a filter of Pillow: {error}", file=file) from error
    do_resize, do_split = (flag(settings_read, key, path, default=True) for key in ("do_resize", "do_image_splitting"))
    settings = TileSettings(tile_side, longest_edge, fixed, do_resize, do_split, resample)
    largest = min(longest_edge, _MAX_SIDE) if longest_edge else max(fixed)
    if settings.do_resize and settings.do_split and math.ceil(largest / tile_side) ** 2 > MAX_TILES:
        raise ModelError(f"{file}: up to {largest} pixels in tiles of {tile_side} are more than {MAX_TILES}", file=file)
    return settings
