"""The vision lane: one unit through the vision encoder's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.config_values import flag, number, numbers, section, whole_number
from edge_vl.engine import ImageEmbeds, VisionSpec
from edge_vl.errors import EngineFault, ModelError
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit
from edge_vl_onnxruntime.decoder_graph import FLOAT_TYPES
from edge_vl_onnxruntime.session import ENGINE, Session, reason

__all__ = ["OnnxVisionEncoder"]

_MAX_SIDE = 65_535
_MASK_TYPES: Mapping[str, Any] = {"tensor(bool)": np.bool_, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


class OnnxVisionEncoder:
    """ViT and projector of one model."""

    def __init__(self, session: Session, model: ModelSpec, dtype: str, *, isa: str = "auto") -> None:
        """Read the graph.

        Args:
            session: the loaded graph.
            model: fills in sizes that the graph leaves open, and says how pixels are normalised.
            dtype: precision of the file.
            isa: kernels that normalise pixels, one of `edge_vl_kernels.ISAS`.

        Raises:
            ModelError: the graph takes or gives something that is not understood.
        """
        self._session: Session | None = session
        self._isa = isa
        self._preprocessing = _read_preprocessing(model)
        pixels = self._read_inputs(session)
        output = session.native.get_outputs()[0]
        if len(output.shape) not in {2, 3} or output.type not in FLOAT_TYPES:
            raise _mismatch(
                session, f"gives {output.name} {output.type}{output.shape}, not image embeds of rank 2 or 3"
            )
        self._outputs = [output.name]
        config_file = model.path / "config.json"
        vision = section(model.config, "vision_config", config_file)
        size = whole_number(vision, "image_size", config_file, low=1, high=_MAX_SIDE)
        height, width = (side if isinstance(side, int) else size for side in pixels.shape[-2:])
        _check_tile(session, model, pixels.shape[-2:])
        hidden = output.shape[-1] if isinstance(output.shape[-1], int) else _text_width(model)
        tokens = output.shape[1] if len(output.shape) == 3 else 0
        if not isinstance(tokens, int) or tokens == 0:
            tokens = _tokens_from_config(model, height, width)
        if dtype == "fp32" and pixels.type == "tensor(float16)":
            dtype = "fp16"  # a file without suffix that was converted in place
        self._spec = VisionSpec(ENGINE, height, width, tokens, hidden, dtype, session.device, str(session.path))

    @property
    def spec(self) -> VisionSpec:
        """What it is."""
        return self._spec

    def encode(self, unit: ImageUnit) -> ImageEmbeds:
        """Encode one unit; see `edge_vl.engine.VisionEncoder`."""
        if self._session is None:
            raise EngineFault(ENGINE, "encode", "the vision encoder is closed")
        self._check_unit(unit.pixels)
        try:
            values = self._session.native.run(self._outputs, self._feeds(unit.pixels))[0]
        except Exception as error:
            raise EngineFault(ENGINE, "encode", reason(error)) from error
        embeds: NDArray[np.float32] = np.array(values, np.float32).reshape(-1, values.shape[-1])
        spec = self._spec
        if embeds.shape[1] != spec.hidden_size or (spec.tokens_per_unit and len(embeds) != spec.tokens_per_unit):
            wanted = (spec.tokens_per_unit or "any", spec.hidden_size)
            raise EngineFault(ENGINE, "encode", f"the graph gave embeds of shape {embeds.shape}, not {wanted}")
        if not np.isfinite(embeds).all():
            raise EngineFault(ENGINE, "encode", "the image embeds are not finite")
        return ImageEmbeds(embeds, unit.key)

    def close(self) -> None:
        """Give the memory back."""
        self._session = None

    def _read_inputs(self, session: Session) -> Any:
        """Find the pixels and the mask, and return the pixels' description."""
        inputs = {node.name: node for node in session.native.get_inputs()}
        pixels = inputs.pop("pixel_values", None)
        mask = inputs.pop("pixel_attention_mask", None)
        if pixels is None or len(pixels.shape) not in {4, 5} or pixels.type not in FLOAT_TYPES:
            found = "nothing" if pixels is None else f"{pixels.type}{pixels.shape}"
            raise _mismatch(
                session, f"should take pixel_values as float32 or float16 of rank 4 or 5, and takes {found}"
            )
        if inputs:
            raise _mismatch(session, f"needs inputs that are not known here: {', '.join(inputs)}")
        if mask is not None and (mask.type not in _MASK_TYPES or len(mask.shape) not in {3, 4}):
            raise _mismatch(
                session, f"takes a pixel_attention_mask of {mask.type}{mask.shape}, which is not understood"
            )
        self._pixels_dtype = FLOAT_TYPES[pixels.type]
        self._pixels_rank = len(pixels.shape)
        self._mask_dtype = None if mask is None else _MASK_TYPES[mask.type]
        self._mask_rank = 0 if mask is None else len(mask.shape)
        return pixels

    def _check_unit(self, pixels: NDArray[np.uint8]) -> None:
        """Refuse what does not fit before the backend sees it."""
        spec = self._spec
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
            raise EngineFault(ENGINE, "encode", f"pixels should be uint8 (height, width, 3), not {pixels.shape}")
        for wanted, got in ((spec.tile_height, pixels.shape[0]), (spec.tile_width, pixels.shape[1])):
            if wanted not in {0, got}:
                size = f"{pixels.shape[0]}x{pixels.shape[1]}"
                raise EngineFault(
                    ENGINE,
                    "encode",
                    f"the unit has {size} pixels, the graph takes {spec.tile_height}x{spec.tile_width}",
                )

    def _feeds(self, pixels: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Normalise a tile and lay it out as the graph wants it."""
        from edge_vl_kernels import normalize_tile  # late: it loads a library

        planar = normalize_tile(pixels, *self._preprocessing, isa=self._isa)
        # The exported graph drops pictures that are zero everywhere, as padding. With a mean of 0.5 no pixel value
        # becomes zero (127.5 is not an integer), but with other settings a black tile does.
        if not planar.any():
            planar[0, 0, 0] = 2.0**-14
        feeds: dict[str, NDArray[Any]] = {
            "pixel_values": planar.astype(self._pixels_dtype, copy=False).reshape(
                (1,) * (self._pixels_rank - 3) + planar.shape
            )
        }
        if self._mask_dtype is not None:
            shape = (1,) * (self._mask_rank - 2) + planar.shape[1:]
            feeds["pixel_attention_mask"] = np.ones(shape, self._mask_dtype)
        return feeds


def _read_preprocessing(model: ModelSpec) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return the rescale factor, means and deviations."""
    settings = model.preprocessor
    file = model.path / "preprocessor_config.json"
    factor = number(settings, "rescale_factor", file, default=1 / 255)
    if not flag(settings, "do_rescale", file, default=True):
        factor = 1.0
    if not flag(settings, "do_normalize", file, default=True):
        return factor, (0.0,) * 3, (1.0,) * 3
    mean = numbers(settings, "image_mean", file, default=(0.5, 0.5, 0.5))
    std = numbers(settings, "image_std", file, default=(0.5, 0.5, 0.5))
    if min(std) <= 0:
        raise ModelError(f"{file}: image_std should be above 0, not {list(std)}", file=str(file))
    return factor, mean, std


def _check_tile(session: Session, model: ModelSpec, sides: Sequence[Any]) -> None:
    """Refuse settings that cut tiles of another size than the graph is fixed to."""
    file = model.path / "preprocessor_config.json"
    largest = section(model.preprocessor, "max_image_size", file)
    tile_side = whole_number(largest, "longest_edge", file, low=1, high=_MAX_SIDE)
    fixed = [side for side in sides if isinstance(side, int)]
    if tile_side and any(side != tile_side for side in fixed):
        raise ModelError(
            f"{file}: max_image_size.longest_edge is {tile_side}, and {session.path} takes tiles of "
            f"{'x'.join(map(str, sides))}: they are not of one model",
            file=str(file),
        )


def _text_width(model: ModelSpec) -> int:
    """Return the width of a token's embedding."""
    file = model.path / "config.json"
    text = section(model.config, "text_config", file) or model.config
    width = whole_number(text, "hidden_size", file, low=1, high=1 << 20)
    if not width:
        raise ModelError(f"{model.path / 'config.json'} has no text_config.hidden_size", file=str(model.path))
    return width


def _tokens_from_config(model: ModelSpec, height: int, width: int) -> int:
    """Return the tokens of a unit after the pixel shuffle, 0 if the configuration does not say."""
    file = model.path / "config.json"
    vision = section(model.config, "vision_config", file)
    patch = whole_number(vision, "patch_size", file, low=1, high=_MAX_SIDE)
    factor = whole_number(model.config, "scale_factor", file, low=1, high=_MAX_SIDE)
    if not patch or not factor:
        return 0
    return (height // patch // factor) * (width // patch // factor)


def _mismatch(session: Session, text: str) -> ModelError:
    return ModelError(f"{session.path} {text}", file=str(session.path))
