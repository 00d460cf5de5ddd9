"""Idefics3 and SmolVLM: tiles of one size in rows and columns, then the whole picture as a thumbnail.

Source:
    transformers: models/idefics3/image_processing_pil_idefics3.py and processing_idefics3.py, and their SmolVLM twins,
    which do the same. Differs: tiles stay uint8 (engines rescale and normalise), they are never padded because all have
    the same size, and the number of tiles is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from edge_vl.config_values import flag, section, whole_number
from edge_vl.engine import Tokenizer, VisionSpec
from edge_vl.errors import ImageError, ModelError, RequestError
from edge_vl.frame import Frame
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import Chunk, ExactnessRules, ImageChunk, ImageGrid, ImageUnit, Plan, TextChunk
from edge_vl.template import ChatTemplate, ImageSlot, tokenize_prompt

__all__ = ["Idefics3", "TileSettings"]

MAX_TILES = 256
"""Of one picture, whatever the settings say."""

_MAX_CONFIGURED_SIDE = 65_535
_MAX_SIDE = 4096  # of a resized picture, fixed in transformers
_RULES = ExactnessRules(
    encode_unit="tile", prefill_cut="any", text_prefix_ok=True, tile_order="thumbnail_last", rollback="any"
)


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

    def _whole_tiles(self, side: int) -> int:
        """Round a side up to whole tiles; transformers fails where it is 0, here it is one tile."""
        return max(1, math.ceil(side / self.tile_side)) * self.tile_side


class Idefics3:
    """The family of Idefics3 and SmolVLM. Safe to call from any thread."""

    def __init__(self, spec: ModelSpec) -> None:
        """Read the settings and the template of a model.

        Raises:
            ModelError: they make no sense.
        """
        self._settings = _read_settings(spec)
        self._tokens_per_unit = _read_tokens_per_unit(spec, self._settings.tile_side)
        self._template = ChatTemplate(spec)
        self._tokenizer_file = str(spec.tokenizer_file)
        self._image = _marker(spec, "image_token", "<image>")
        self._fake = _marker(spec, "fake_image_token", "<fake_token_around_image>")
        self._global = _marker(spec, "global_image_token", "<global-img>")

    @property
    def rules(self) -> ExactnessRules:
        """Tiles are encoded one by one and attended to causally."""
        return _RULES

    @property
    def settings(self) -> TileSettings:
        """How pictures are resized and cut."""
        return self._settings

    @property
    def tokens_per_unit(self) -> int:
        """Image tokens of a tile or thumbnail."""
        return self._tokens_per_unit

    def check_lanes(self, vision: VisionSpec | None, tokenizer: Tokenizer) -> None:
        """Refuse an encoder that takes other tiles or makes other tokens of them, and a tokenizer without markers."""
        needed = {self._image, self._fake, self._global}
        if self._settings.do_split:
            needed.add("<row_1_col_1>")
        self._check_markers(needed, tokenizer)
        if vision is None:
            return
        side = self._settings.tile_side
        differences = [
            f"it takes units of {found} pixels a side, and the pictures are cut into {side}"
            for found in {vision.tile_height, vision.tile_width} - {0, side}
        ]
        if vision.tokens_per_unit not in (0, self._tokens_per_unit):
            differences.append(
                f"it makes {vision.tokens_per_unit} image tokens of a unit, and the model expects "
                f"{self._tokens_per_unit}"
            )
        if differences:
            raise ModelError(
                f"the vision encoder ({vision.engine}: {vision.file}) does not fit the model's configuration: "
                + "; ".join(differences),
                file=vision.file,
            )

    def tile(self, frame: Frame) -> ImageGrid:
        """Resize a picture as the model's processor does and cut it into units.

        Returns:
            The tiles row by row and the thumbnail last; or one unit where the picture fits into a tile.

        Raises:
            ImageError: it would give too many tiles (only for models that do not scale their pictures).
        """
        settings = self._settings
        side = settings.tile_side
        scaled = settings.picture_size(frame.height, frame.width)
        fitted = settings.whole_tiles_size(*scaled) if settings.do_split else (side, side)
        rows, columns = fitted[0] // side, fitted[1] // side
        if rows * columns > MAX_TILES:
            found = f"{frame.width}x{frame.height} pixels"
            raise ImageError(
                f"picture {frame.index + 1} ({frame.source}): {found} would give {rows * columns} tiles and at most "
                f"{MAX_TILES} are made; scale it down",
                index=frame.index,
                detected=found,
            )
        image = _resized(_resized(Image.fromarray(frame.pixels), scaled, settings.resample), fitted, settings.resample)
        pixels = np.asarray(image)
        if rows * columns == 1:
            return ImageGrid((ImageUnit.of(pixels, "image"),), 0, 0)
        units = [
            ImageUnit.of(
                pixels[row * side : (row + 1) * side, column * side : (column + 1) * side], "tile", row + 1, column + 1
            )
            for row in range(rows)
            for column in range(columns)
        ]
        thumbnail = np.asarray(_resized(image, (side, side), settings.resample))
        return ImageGrid((*units, ImageUnit.of(thumbnail, "thumbnail")), rows, columns)

    def layout(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Plan:
        """Lay a conversation out, up to where the model is to answer.

        Raises:
            ModelError: the template cannot be rendered, or the tokenizer lacks a marker that it needs.
            RequestError: there are no messages.
        """
        if not messages:
            raise RequestError("a conversation needs at least one message", field="messages")
        grids = [part for message in messages for part in message.parts if isinstance(part, ImageGrid)]
        self._check_markers(self._markers_of(grids), tokenizer)
        prompt = self._template.render(messages)
        try:
            prompt = prompt.replace(self._image, [self._marked(grid) for grid in grids])
        except ValueError as error:
            raise ModelError(f"the chat template writes {error}", file=self._tokenizer_file) from error
        units = [(index, unit) for index, grid in enumerate(grids) for unit in grid.units]
        chunks = self._chunks(tokenize_prompt(prompt, tokenizer, image_marker=self._image), units)
        return Plan(chunks, _RULES, opens_reasoning=prompt.text.rstrip().endswith("<think>"))

    def _chunks(self, entries: Sequence[int | ImageSlot], units: Sequence[tuple[int, ImageUnit]]) -> tuple[Chunk, ...]:
        """Gather ids into text chunks and put the units into their slots."""
        chunks: list[Chunk] = []
        run: list[int] = []
        position = 0
        for entry in (*entries, None):
            if isinstance(entry, int):
                run.append(entry)
                continue
            if run:
                chunks.append(TextChunk(tuple(run), position))
                position += len(run)
                run = []
            if entry is not None:
                index, unit = units[entry.index]
                chunks.append(ImageChunk(unit, index, self._tokens_per_unit, position, self._tokens_per_unit))
                position += self._tokens_per_unit
        return tuple(chunks)

    def _marked(self, grid: ImageGrid) -> str:
        """Write a picture in markers, one image marker for each of its units."""
        whole = f"{self._fake}{self._global}{self._image}{self._fake}"
        if not grid.rows:
            return whole
        rows = (
            "".join(f"{self._fake}<row_{row}_col_{column}>{self._image}" for column in range(1, grid.columns + 1))
            for row in range(1, grid.rows + 1)
        )
        return "".join(f"{row}\n" for row in rows) + f"\n{whole}"

    def _markers_of(self, grids: Sequence[ImageGrid]) -> set[str]:
        """Return every marker that these pictures are written with."""
        needed = {self._image, self._fake, self._global} if grids else set()
        for grid in grids:
            needed |= {f"<row_{r}_col_{c}>" for r in range(1, grid.rows + 1) for c in range(1, grid.columns + 1)}
        return needed

    def _check_markers(self, needed: set[str], tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer that would write a marker in plain text; the model has never seen it so."""
        missing = sorted(needed - tokenizer.special_tokens.keys())
        if missing:
            raise ModelError(f"the tokenizer has no {', '.join(missing)}", file=self._tokenizer_file)


def _resized(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    height, width = size
    return image if image.size == (width, height) else image.resize((width, height), resample)


def _read_settings(spec: ModelSpec) -> TileSettings:
    path = spec.path / "preprocessor_config.json"
    file = str(path)
    defaults = {"size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}}
    settings_read = {**defaults, **spec.preprocessor}

    def side(mapping: Mapping[str, Any], key: str) -> int:
        return whole_number(mapping, key, path, low=1, high=_MAX_CONFIGURED_SIDE)

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


def _read_tokens_per_unit(spec: ModelSpec, tile_side: int) -> int:
    """Compute how many image tokens the model makes of a tile: its patches after pixel shuffle."""
    path = spec.path / "config.json"
    file = str(path)
    vision = section(spec.config, "vision_config", path)
    patch = whole_number(vision, "patch_size", path, low=1, high=_MAX_CONFIGURED_SIDE, default=32)
    factor = whole_number(spec.config, "scale_factor", path, low=1, high=_MAX_CONFIGURED_SIDE, default=2)
    num_patches = tile_side // patch
    if not num_patches or num_patches % factor:
        raise ModelError(
            f"{file}: a tile of {tile_side} pixels has {num_patches} patches a side, which scale_factor {factor} "
            "does not divide",
            file=file,
        )
    return (num_patches // factor) ** 2


def _marker(spec: ModelSpec, name: str, usual: str) -> str:
    """Return the text of a marker, which newer tokenizer configurations name."""
    extra = spec.tokenizer_config.get("extra_special_tokens")
    value = extra.get(name) if isinstance(extra, Mapping) else None
    value = spec.tokenizer_config.get(name) if value is None else value
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) and value else usual
