"""Idefics3 and SmolVLM: tiles of one size in rows and columns, then the whole picture as a thumbnail.

Source:
    transformers: models/idefics3/image_processing_pil_idefics3.py and processing_idefics3.py, and their SmolVLM twins,
    which do the same. Differs: tiles stay uint8 (engines rescale and normalise), they are never padded because all have
    the same size, and the number of tiles is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from edge_vl.config_values import section, whole_number
from edge_vl.engine import Tokenizer, VisionSpec
from edge_vl.errors import ImageError, ModelError, RequestError
from edge_vl.families.tile_settings import MAX_CONFIGURED_SIDE, MAX_TILES, TileSettings, read_tile_settings
from edge_vl.frame import Frame
from edge_vl.ladder import Rung
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import Chunk, ExactnessRules, ImageChunk, ImageGrid, ImageUnit, Plan, TextChunk
from edge_vl.template import ChatTemplate, ImageSlot, tokenize_prompt

__all__ = ["Idefics3"]

_RULES = ExactnessRules(
    encode_unit="tile", prefill_cut="any", text_prefix_ok=True, tile_order="thumbnail_last", rollback="any"
)


class Idefics3:
    """The family of Idefics3 and SmolVLM. Safe to call from any thread."""

    def __init__(self, spec: ModelSpec) -> None:
        """Read the settings and the template of a model.

        Raises:
            ModelError: they make no sense.
        """
        self._settings = read_tile_settings(spec)
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

    def rungs(self, frame: Frame) -> tuple[Rung, ...]:
        """Return the settings that a picture can be cut with, without looking at its pixels.

        Returns:
            Best first, each with fewer units than the one before, the last with one.

        Raises:
            ImageError: the model's own setting would give too many tiles.
        """
        rungs = [self._rung(None, *self._grid(self._settings, frame))]
        for edge in self._settings.smaller_edges():
            rung = self._rung(edge, *self._settings.with_longest_edge(edge).grid(frame.height, frame.width))
            if rung.num_units < rungs[-1].num_units:
                rungs.append(rung)
        return tuple(rungs)

    def tile(self, frame: Frame, longest_edge: int | None = None) -> ImageGrid:
        """Resize a picture as the model's processor does and cut it into units.

        Args:
            frame: the picture.
            longest_edge: what the processor is to have for `size.longest_edge`; None: what the model has.

        Returns:
            The tiles row by row and the thumbnail last; or one unit where the picture fits into a tile.

        Raises:
            ImageError: it would give too many tiles (only for models that do not scale their pictures).
        """
        settings = self._settings.with_longest_edge(longest_edge)
        side = settings.tile_side
        rows, columns = self._grid(settings, frame)
        scaled = settings.picture_size(frame.height, frame.width)
        fitted = rows * side, columns * side
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

    def _grid(self, settings: TileSettings, frame: Frame) -> tuple[int, int]:
        """Return the (rows, columns) of tiles; refuses too many."""
        rows, columns = settings.grid(frame.height, frame.width)
        if rows * columns > MAX_TILES:
            found = f"{frame.width}x{frame.height} pixels"
            raise ImageError(
                f"picture {frame.index + 1} ({frame.source}): {found} would give {rows * columns} tiles and at most "
                f"{MAX_TILES} are made; scale it down",
                index=frame.index,
                detected=found,
            )
        return rows, columns

    def _rung(self, longest_edge: int | None, rows: int, columns: int) -> Rung:
        num_units = rows * columns + (rows * columns > 1)
        side, tokens = self._settings.tile_side, self._tokens_per_unit
        return Rung(longest_edge, num_units, num_units * tokens, f"{side}x{side}/{tokens}")

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


def _read_tokens_per_unit(spec: ModelSpec, tile_side: int) -> int:
    """Compute how many image tokens the model makes of a tile: its patches after pixel shuffle."""
    path = spec.path / "config.json"
    file = str(path)
    vision = section(spec.config, "vision_config", path)
    patch = whole_number(vision, "patch_size", path, low=1, high=MAX_CONFIGURED_SIDE, default=32)
    factor = whole_number(spec.config, "scale_factor", path, low=1, high=MAX_CONFIGURED_SIDE, default=2)
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
