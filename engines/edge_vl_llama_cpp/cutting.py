"""The vision lane of every other model: llama.cpp itself resizes and cuts the pictures."""

from __future__ import annotations

import hashlib

import numpy as np

from edge_vl.engine import ImageEmbeds, VisionSpec
from edge_vl.errors import EngineFault, ImageError, ModelError
from edge_vl.frame import Frame
from edge_vl.picture_limits import PictureLimits, UnusablePicture
from edge_vl.plan import ExactnessRules, ImageGrid, ImageUnit
from edge_vl_llama_cpp.exactness import rules_of
from edge_vl_llama_cpp.library import ENGINE
from edge_vl_llama_cpp.projector import NativeChunk, Projector

__all__ = ["CuttingEncoder"]

MAX_ASPECT = 100
"""Longer side of a picture against the shorter one: narrower ones become nothing when they are scaled."""

_LIMITS = PictureLimits(max_pixels=64_000_000, max_side=32_768)
_PROBE_SHAPE = (768, 1024, 3)


class CuttingEncoder:
    """Cuts pictures on any thread, and encodes what it has cut on the lane's."""

    def __init__(self, projector: Projector, spec: VisionSpec, projector_type: str) -> None:
        """Take a loaded encoder, closed with this, and try it out.

        Args:
            projector: the encoder.
            spec: what it is.
            projector_type: what llama.cpp calls its kind.

        Raises:
            ModelError: it cannot cut a picture.
        """
        self._projector = projector
        self._spec = spec
        try:
            chunks = projector.chunks(np.full(_PROBE_SHAPE, 128, np.uint8))
        except ValueError as error:
            raise ModelError(f"{spec.file} cannot cut a picture: {error}", file=spec.file) from error
        if any(token_id < 0 for chunk in chunks if not isinstance(chunk, NativeChunk) for token_id in chunk):
            raise ModelError(
                f"{spec.file} writes pictures with markers that the text model's vocabulary does not have: they are "
                "not of one model",
                file=spec.file,
            )
        self._rules = rules_of(projector_type, is_causal=projector.is_causal)

    @property
    def spec(self) -> VisionSpec:
        """What it is."""
        return self._spec

    @property
    def rules(self) -> ExactnessRules:
        """What may be split, kept and rolled back."""
        return self._rules

    def cut(self, frame: Frame) -> ImageGrid:
        """Resize and cut a picture; see `edge_vl.engine.PictureCutter`."""
        _check_picture(frame)
        try:
            chunks = self._projector.chunks(frame.pixels)
        except ValueError as error:
            raise ImageError(f"{_name(frame)} cannot be cut: {error}", index=frame.index) from error
        digest = hashlib.blake2b(digest_size=16, person=f"{frame.height}x{frame.width}".encode())
        digest.update(np.ascontiguousarray(frame.pixels).data)
        images = [chunk for chunk in chunks if isinstance(chunk, NativeChunk)]
        if not images:
            raise EngineFault(ENGINE, "encode", f"{_name(frame)} became no image tokens")
        is_tiled = self._rules.encode_unit == "tile" and len(images) > 1
        units: list[ImageUnit] = []
        markers: list[tuple[int, ...]] = [()]
        for chunk in chunks:
            if not isinstance(chunk, NativeChunk):
                markers[-1] += chunk
                continue
            units.append(
                ImageUnit(
                    pixels=frame.pixels,
                    kind="tile" if is_tiled else "image",
                    row=0,
                    column=0,
                    key=f"{digest.hexdigest()}-{len(units)}",
                    num_tokens=chunk.num_tokens,
                    num_positions=chunk.num_positions,
                    prepared=chunk,
                )
            )
            markers.append(())
        return ImageGrid(tuple(units), 0, 0, tuple(markers))

    def encode(self, unit: ImageUnit) -> ImageEmbeds:
        """Encode one unit that `cut` has made; see `edge_vl.engine.VisionEncoder`."""
        chunk = unit.prepared
        if not isinstance(chunk, NativeChunk):
            raise EngineFault(ENGINE, "encode", "the unit was not cut by this encoder")
        values = self._projector.encode(chunk)
        return ImageEmbeds(
            values,
            unit.key,
            positions=self._projector.positions(chunk) if self._projector.has_row_positions else None,
            num_positions=chunk.num_positions,
            is_causal=self._projector.is_causal,
        )

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        self._projector.close()


def _check_picture(frame: Frame) -> None:
    """Refuse what llama.cpp would answer with an abort."""
    height, width = frame.pixels.shape[:2]
    try:
        _LIMITS.check_size(width, height)
    except UnusablePicture as error:
        raise ImageError(f"{_name(frame)}: {error.reason}", index=frame.index, detected=error.detected) from error
    if max(width, height) > MAX_ASPECT * min(width, height):
        found = f"{width}x{height} pixels"
        raise ImageError(
            f"{_name(frame)} has {found}: one side may be at most {MAX_ASPECT} times the other for this model",
            index=frame.index,
            detected=found,
        )


def _name(frame: Frame) -> str:
    return f"picture {frame.index + 1} ({frame.source})"
