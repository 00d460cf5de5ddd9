"""Pictures: whatever a caller holds (a path, bytes, an array, a Pillow image, an open file) as a frame."""

from __future__ import annotations

import io
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from edge_vl.errors import ImageError, RequestError
from edge_vl.file_kind import name_file_kind
from edge_vl.frame import Frame
from edge_vl.jpeg_header import split_jpeg
from edge_vl.picture_limits import PictureLimits, UnusablePicture
from edge_vl.picture_reading import BinaryReader, read_buffer, read_path, read_stream
from edge_vl.pixels import array_pixels, image_pixels
from edge_vl.ppm_header import tidy_ppm

__all__ = ["DEFAULT_LIMITS", "Picture", "PictureLimits", "load_picture"]


Picture = (
    str
    | os.PathLike[str]
    | bytes
    | bytearray
    | memoryview
    | NDArray[np.uint8]
    | NDArray[np.uint16]
    | NDArray[np.bool_]
    | Image.Image
    | BinaryReader
    | Frame
)

DEFAULT_LIMITS = PictureLimits()

# Only formats that begin with an unmistakable mark, are decoded in C and start no other program.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000", "AVIF")
_NOT_THIS_FORMAT = (SyntaxError, IndexError, TypeError, struct.error)  # what Pillow's own `open` takes for "not mine"
_STRICT_FORMATS = frozenset({"JPEG", "PNG", "GIF", "BMP", "TIFF"})
_SHOWN_SOURCE_CHARACTERS = 160


def load_picture(
    picture: Picture,
    *,
    bgr: bool = False,
    index: int = 0,
    limits: PictureLimits = DEFAULT_LIMITS,
    before_decoding: Callable[[int], object] = lambda num_pixels: None,
) -> Frame:
    """Turn a picture into a frame: upright, RGB, 8 bits, on white.

    EXIF orientation is applied before anything else looks at the picture. Transparency is laid on white. Grey of 16
    bits is scaled, not clipped. Of an animation the first frame is taken (of a Pillow image: the one that it stands
    at). Colour profiles are ignored. Pillow's warnings about damaged metadata are avoided for JPEG, PNG and WebP; those
    about the directory of a TIFF, which are its container, and the EXIF data of an AVIF reach the process's filters.

    Args:
        picture: a path; an encoded picture as bytes, bytearray or memoryview; an open binary file, read from where it
            stands; a NumPy array as `edge_vl.pixels.array_pixels` describes; a Pillow image; or a frame, which is
            returned as it is. All but a frame are copied: the caller may overwrite its buffer at once.
        bgr: the colours of arrays come in OpenCV's order. Files know their own order and are not concerned.
        index: which picture of the request it is, for errors and `Frame.index`.
        limits: checked on the header before decoding.
        before_decoding: called with the number of pixels of a picture that is to be decoded, when its size is known
            and allowed; may wait, and what it raises is passed on.

    Raises:
        ImageError: it is not a picture, is damaged or cut short, or is beyond the limits. Names the picture.
        RequestError: `bgr` was set for a Pillow image, of which nobody can say what it means.
    """
    captured_s, captured_wall_s = time.monotonic(), time.time()
    source = _name_source(picture)
    if bgr and isinstance(picture, Image.Image):
        raise RequestError(
            f"picture {index + 1} ({source}): bgr is about NumPy arrays; a Pillow image must hold its colours in its "
            "own order, so pass numpy.asarray(image) if they are swapped",
            field="bgr",
        )
    try:
        if isinstance(picture, Frame):
            return _checked_frame(picture, limits)
        pixels = _pixels_of(picture, limits, before_decoding, bgr=bgr)
    except UnusablePicture as trouble:
        raise ImageError(
            f"picture {index + 1} ({source}): {trouble.reason}", index=index, detected=trouble.detected
        ) from trouble.__cause__
    return Frame(pixels, captured_s, captured_wall_s, source, index)


def _pixels_of(
    picture: object, limits: PictureLimits, before_decoding: Callable[[int], object], *, bgr: bool
) -> NDArray[np.uint8]:
    if isinstance(picture, np.ndarray):
        return array_pixels(picture, limits, bgr=bgr)
    if isinstance(picture, Image.Image):
        return _convert(picture, limits, before_decoding, "the Pillow image")
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return _decode(read_buffer(picture, limits), limits, before_decoding)
    if isinstance(picture, (str, os.PathLike)):
        return _decode(read_path(picture, limits), limits, before_decoding)
    if isinstance(picture, type):
        found = f"the class {picture.__name__}"
    elif _is_reader(picture):
        return _decode(read_stream(picture, limits), limits, before_decoding)
    else:
        found = "None" if picture is None else f"a {type(picture).__name__}"
    if picture is None:
        hint = "cv2.imread and a camera's read() give None for what they cannot read"
    elif isinstance(picture, (list, tuple)):
        hint = "pass its pictures one by one, or numpy.asarray of its numbers"
    elif hasattr(type(picture), "__array__"):
        hint = "pass it as a NumPy array (height, width, 3) of uint8"
    else:
        hint = "wanted a path, bytes, a NumPy array, a Pillow image or an open file"
    raise UnusablePicture(f"it is {found}; {hint}", found)


def _is_reader(picture: object) -> TypeGuard[BinaryReader]:
    try:
        return isinstance(picture, BinaryReader)
    except Exception:  # asks for its attribute `read`, which may be a property that raises
        return False


def _decode(data: bytes, limits: PictureLimits, before_decoding: Callable[[int], object]) -> NDArray[np.uint8]:
    kind = name_file_kind(data)
    if not data:
        raise UnusablePicture(f"it is {kind}", kind)
    exif = b""
    if data.startswith(b"\xff\xd8\xff"):
        data, exif = split_jpeg(data, limits)
    file = _WholeFile(tidy_ppm(data))
    try:
        image = _open(file, data[:16])
    except Exception as error:  # Pillow's readers raise nearly anything for a damaged header
        if kind.endswith(" picture"):
            raise _damaged(kind, error) from error
        image = None
    if image is None:
        raise UnusablePicture(f"it is {kind}, not a picture that can be read", kind)
    file.is_strict = ImageFile.LOAD_TRUNCATED_IMAGES and image.format in _STRICT_FORMATS
    if exif:
        image.info["exif"] = exif
    return _convert(image, limits, before_decoding, kind, is_own=True)


def _convert(
    image: Image.Image,
    limits: PictureLimits,
    before_decoding: Callable[[int], object],
    kind: str,
    *,
    is_own: bool = False,
) -> NDArray[np.uint8]:
    limits.check_size(*image.size)
    before_decoding(image.width * image.height)
    try:
        return image_pixels(image, has_raw_exif=is_own)
    except UnusablePicture:
        raise
    except Exception as error:  # as above, now for the pixels
        if not is_own and _is_closed(image, error):
            raise UnusablePicture(f"{kind} is closed, or the file it reads from is", "a closed Pillow image") from error
        raise _damaged(kind, error) from error


def _is_closed(image: Image.Image, error: Exception) -> bool:
    """Tell from what Pillow raised, and what it left of a file that was not yet decoded, that someone closed it."""
    has_lost_file = isinstance(image, ImageFile.ImageFile) and image.fp is None and bool(image.tile)
    return has_lost_file or (isinstance(error, ValueError) and " closed " in str(error))


def _damaged(kind: str, error: Exception) -> UnusablePicture:
    if isinstance(error, Image.DecompressionBombError):  # some of Pillow's readers have limits of their own
        return UnusablePicture(f"{kind} that is too large: {error}", "too many pixels")
    return UnusablePicture(f"{kind}, damaged or cut short: {error}", f"{kind}, damaged")


class _WholeFile(io.BytesIO):
    """A file that can refuse to be read past its end.

    Pillow reports a picture that was cut short unless anything in the process has set its global
    `LOAD_TRUNCATED_IMAGES`; then it fills the rest with grey. This one reports it all the same.
    """

    is_strict = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as `BytesIO` does; if strict, raise OSError where nothing is left."""
        data = super().read(size)
        if self.is_strict and not data and size is not None and size > 0:
            raise OSError("the file ends before the picture does")
        return data


def _open(file: io.BytesIO, prefix: bytes) -> Image.Image | None:
    """Read the header with the first of our formats that takes it; None if none knows its mark.

    `PIL.Image.open` is not used because it compares the size with a process-wide limit and warns; the limits here are
    the caller's own, and warnings cannot be silenced for one thread alone.
    """
    refused: Exception | None = None
    Image.preinit()
    for name in _FORMATS:
        if name not in Image.OPEN:
            Image.init()
        if name not in Image.OPEN:  # this Pillow was built without it
            continue
        factory, accept = Image.OPEN[name]
        accepted = accept(prefix) if accept is not None else False
        if isinstance(accepted, str):
            raise OSError(accepted)
        if not accepted:
            continue
        file.seek(0)
        try:
            return factory(file, "")
        except _NOT_THIS_FORMAT as error:
            refused = error
    if refused is not None:
        raise refused
    return None


def _checked_frame(frame: Frame, limits: PictureLimits) -> Frame:
    pixels: Any = frame.pixels
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        found = f"a frame of {getattr(pixels, 'dtype', type(pixels).__name__)}, shape {getattr(pixels, 'shape', '?')}"
        raise UnusablePicture(f"it is {found}; wanted uint8 (height, width, 3)", found)
    limits.check_size(frame.width, frame.height)
    return frame


def _name_source(picture: object) -> str:
    if isinstance(picture, Frame):
        return picture.source
    if isinstance(picture, np.ndarray):
        return "<array>"
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return "<bytes>"
    if isinstance(picture, Image.Image):
        name = _text_attribute(picture, "filename")
        return name or "<pillow>"
    if isinstance(picture, (str, Path)):
        name = str(picture)
    else:
        name = _text_attribute(picture, "name") or f"<{type(picture).__name__}>"
    return name if len(name) <= _SHOWN_SOURCE_CHARACTERS else f"{name[:_SHOWN_SOURCE_CHARACTERS]}..."


def _text_attribute(picture: object, attribute: str) -> str:
    try:
        value = getattr(picture, attribute, "")
    except Exception:  # a property of a caller's class may raise anything
        return ""
    return value if isinstance(value, str) else ""
