"""Pictures of a request to a gateway: named, or sent along."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from edge_vl.errors import ImageError, RequestError
from edge_vl.file_kind import name_file_kind
from edge_vl.frame import Frame
from edge_vl.mqtt.messages import ImageRef
from edge_vl.picture_limits import PictureLimits, UnusablePicture
from edge_vl.picture_reading import read_path
from edge_vl.pictures import Picture, load_picture

__all__ = ["RawPicture", "RemotePicture", "take_picture"]

RemotePicture = Picture | ImageRef | Mapping[str, str]
"""What a client takes: a picture as the runtime does, or what the gateway knows, as in `{"camera": "door"}`."""

_LIMITS = PictureLimits()
_JPEG_QUALITY = 92
# What is compressed goes over the link as it is.
_SENT_AS_THEY_ARE = frozenset({"a JPEG picture", "a PNG picture", "a WebP picture", "a GIF picture", "an AVIF picture"})


@dataclass(frozen=True, slots=True)
class RawPicture:
    """A picture that has to be sent: bytes of a file, a path to one, or pixels that are still to be encoded."""

    content: bytes | Path | Frame
    index: int

    def encoded(self) -> bytes:
        """Return the encoded picture. Reads files and encodes, so it is for a helper thread.

        Raises:
            ImageError: the file cannot be read or is no picture.
        """
        content, path = self.content, None
        if isinstance(content, Path):
            path = content
            try:
                content = read_path(path, _LIMITS)
            except UnusablePicture as trouble:
                raise ImageError(
                    f"picture {self.index + 1} ({path}): {trouble.reason}",
                    index=self.index,
                    detected=trouble.detected,
                ) from trouble.__cause__
        if isinstance(content, bytes):
            if name_file_kind(content) in _SENT_AS_THEY_ARE:
                return content
            content = self._decoded(content, path)
        file = io.BytesIO()
        Image.fromarray(content.pixels).save(file, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
        return file.getvalue()

    def _decoded(self, encoded: bytes, path: Path | None) -> Frame:
        try:
            return load_picture(encoded, index=self.index, limits=_LIMITS)
        except ImageError as error:
            if path is None:
                raise
            named = error.again()
            named.args = (str(error).replace("<bytes>", str(path)),)
            raise named from None


def take_picture(picture: RemotePicture, index: int) -> ImageRef | RawPicture:
    """Take over what a caller passes; a buffer of the caller's is copied and may be overwritten at once.

    Args:
        picture: see `RemotePicture`.
        index: which picture of the request it is.

    Raises:
        ImageError: it is not a picture.
        RequestError: a mapping is no reference to a picture.
    """
    if isinstance(picture, ImageRef):
        return picture
    if isinstance(picture, Mapping):
        return _read_reference(dict(picture), index)
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return RawPicture(bytes(picture), index)
    if isinstance(picture, (str, os.PathLike)):
        return RawPicture(Path(picture), index)
    return RawPicture(load_picture(picture, index=index, limits=_LIMITS), index)


def _read_reference(fields: dict[str, Any], index: int) -> ImageRef:
    try:
        return msgspec.convert(fields, ImageRef)
    except (msgspec.ValidationError, TypeError) as error:
        raise RequestError(
            f"picture {index + 1} names a camera, file, base64 or topic, as in {{'camera': 'door'}}: {error}",
            field="images",
        ) from None
