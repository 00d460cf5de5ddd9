"""The vision lane of Idefics3 and SmolVLM: tiles that our own family has cut."""

from __future__ import annotations

import numpy as np

from edge_vl.config_values import numbers
from edge_vl.engine import ImageEmbeds, VisionSpec
from edge_vl.errors import EngineFault, ModelError
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit
from edge_vl_llama_cpp.files import GGUFFile
from edge_vl_llama_cpp.library import ENGINE
from edge_vl_llama_cpp.projector import NativeChunk, Projector

__all__ = ["TileEncoder", "tokens_of_tile"]


def tokens_of_tile(file: GGUFFile) -> int:
    """Return the image tokens of a tile: its patches after the pixel shuffle.

    Raises:
        ModelError: the file does not say what is needed.
    """
    side, patch = file.number("vision.image_size"), file.number("vision.patch_size")
    factor = file.number("vision.projector.scale_factor")
    if not side or not patch or not factor:
        raise ModelError(f"{file.path} does not say how large its tiles are", file=str(file.path))
    return (side // patch // factor) ** 2


def check_normalization(model: ModelSpec, file: GGUFFile) -> None:
    """Refuse an encoder that normalises pixels in another way than the model's configuration says.

    Raises:
        ModelError: it says what differs.
    """
    config = model.path / "preprocessor_config.json"
    for name in ("image_mean", "image_std"):
        wanted = numbers(model.preprocessor, name, config, default=(0.5, 0.5, 0.5))
        found = file.values.get(f"clip.vision.{name}")
        if isinstance(found, list) and not np.allclose(found, wanted, atol=1e-3):
            raise ModelError(
                f"{config} has an {name} of {list(wanted)} and {file.path} one of {[round(one, 4) for one in found]}: "
                "they are not of one model",
                file=str(file.path),
            )


class TileEncoder:
    """Encodes exactly the pixels of a tile.

    llama.cpp would resize and cut a picture itself. Told to make as many image tokens as one tile has, it leaves a
    bitmap of a tile's size alone and returns it twice, as the only tile and as the thumbnail.

    Source:
        mtmd_image_preprocessor_idefics3 of llama.cpp, tools/mtmd/mtmd-image.cpp: pictures whose size does not change
        are copied.
    """

    def __init__(self, projector: Projector, spec: VisionSpec) -> None:
        """Take a loaded encoder; closed with this."""
        self._projector = projector
        self._spec = spec

    @property
    def spec(self) -> VisionSpec:
        """What it is."""
        return self._spec

    def encode(self, unit: ImageUnit) -> ImageEmbeds:
        """Encode one unit; see `edge_vl.engine.VisionEncoder`."""
        pixels, spec = unit.pixels, self._spec
        if pixels.dtype != np.uint8 or pixels.shape != (spec.tile_height, spec.tile_width, 3):
            raise EngineFault(
                ENGINE,
                "encode",
                f"the unit is {pixels.dtype} {pixels.shape}, the encoder takes uint8 "
                f"({spec.tile_height}, {spec.tile_width}, 3)",
            )
        try:
            chunks = self._projector.chunks(pixels)
        except ValueError as error:
            raise EngineFault(ENGINE, "encode", error) from error
        images = [chunk for chunk in chunks if isinstance(chunk, NativeChunk)]
        if [image.num_tokens for image in images] != [spec.tokens_per_unit] * 2:
            found = ", ".join(str(image.num_tokens) for image in images)
            raise EngineFault(ENGINE, "encode", f"a tile became {len(images)} images of {found} tokens")
        return ImageEmbeds(self._projector.encode(images[0]), unit.key)

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        self._projector.close()
