"""Pictures: whatever a caller holds (a path, bytes, an array, a Pillow image, an open file) as a frame."""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import time
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from edge_vl.errors import ImageError, RequestError
from edge_vl.file_kind import name_file_kind
from edge_vl.frame import Frame
from edge_vl.picture_limits import PictureLimits, UnusablePicture
from edge_vl.pixels import array_pixels, image_pixels

__all__ = ["Picture", "PictureLimits", "load_picture"]


@runtime_checkable
class BinaryReader(Protocol):
    """An open binary file, or anything that reads like one."""

    def read(self, size: int = -1, /) -> bytes | None:
        """Return up to `size` bytes, none at the end."""
        ...


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
_STRICT_FORMATS = frozenset({"JPEG", "MPO", "PNG", "GIF", "BMP", "TIFF"})
_SHOWN_SOURCE_CHARACTERS = 160


def load_picture(
    picture: Picture, *, bgr: bool = False, index: int = 0, limits: PictureLimits = DEFAULT_LIMITS
) -> Frame:
    """Turn a picture into a frame: upright, RGB, 8 bits, on white.

    EXIF orientation is applied before anything else looks at the picture. Transparency is laid on white. Grey of 16
    bits is scaled, not clipped. Of an animation the first frame is taken (of a Pillow image: the one that it stands
    at). Colour profiles are ignored.

    Args:
        picture: a path; an encoded picture as bytes, bytearray or memoryview; an open binary file, read from where it
            stands; a NumPy array as `edge_vl.pixels.array_pixels` describes; a Pillow image; or a frame, which is
            returned as it is. All but a frame are copied: the caller may overwrite its buffer at once.
        bgr: the colours of arrays come in OpenCV's order. Files know their own order and are not concerned.
        index: which picture of the request it is, for errors and `Frame.index`.
        limits: checked on the header before decoding.

    Raises:
        ImageError: it is not a picture, is damaged or cut short, or is beyond the limits. Names the picture.
        RequestError: `bgr` was set for a Pillow image, of which nobody can say what it means.
    """
    captured_s, captured_wall_s = time.monotonic(), time.time()
    source = _name_source(picture)
    if bgr and isinstance(picture, Image.Image):
        raise RequestError(
            f"picture {index} ({source}): bgr is about NumPy arrays; a Pillow image must hold its colours in its own "
            "order, so pass numpy.asarray(image) if they are swapped",
            field="bgr",
        )
    try:
        if isinstance(picture, Frame):
            return _checked_frame(picture, limits)
        pixels = _pixels_of(picture, limits, bgr=bgr)
    except UnusablePicture as trouble:
        raise ImageError(
            f"picture {index} ({source}): {trouble.reason}", index=index, detected=trouble.detected
        ) from trouble.__cause__
    return Frame(pixels, captured_s, captured_wall_s, source, index)


def _pixels_of(picture: object, limits: PictureLimits, *, bgr: bool) -> NDArray[np.uint8]:
    if isinstance(picture, np.ndarray):
        return array_pixels(picture, limits, bgr=bgr)
    if isinstance(picture, Image.Image):
        return _convert(picture, limits, "the Pillow image")
    if isinstance(picture, (bytes, bytearray, memoryview)):
        limits.check_file(memoryview(picture).nbytes)
        return _decode(bytes(picture), limits)
    if isinstance(picture, (str, os.PathLike)):
        return _decode(_read_path(os.fspath(picture), limits), limits)
    if isinstance(picture, BinaryReader):
        return _decode(_read_stream(picture, limits), limits)
    found = "None" if picture is None else f"a {type(picture).__name__}"
    if picture is None:
        hint = "cv2.imread and a camera's read() give None for what they cannot read"
    elif isinstance(picture, (list, tuple)):
        hint = "pass its pictures one by one, or numpy.asarray of its numbers"
    elif hasattr(picture, "__array__"):
        hint = "pass it as a NumPy array (height, width, 3) of uint8"
    else:
        hint = "wanted a path, bytes, a NumPy array, a Pillow image or an open file"
    raise UnusablePicture(f"it is {found}; {hint}", found)


def _decode(data: bytes, limits: PictureLimits) -> NDArray[np.uint8]:
    kind = name_file_kind(data)
    if not data:
        raise UnusablePicture(f"it is {kind}", kind)
    file = _WholeFile(data)
    try:
        image = _open(file, data[:16])
    except Exception as error:  # Pillow's readers raise nearly anything for a damaged header
        if kind.endswith(" picture"):
            raise _damaged(kind, error) from error
        image = None
    if image is None:
        raise UnusablePicture(f"it is {kind}, not a picture that can be read", kind)
    file.is_strict = ImageFile.LOAD_TRUNCATED_IMAGES and image.format in _STRICT_FORMATS
    return _convert(image, limits, kind)


def _convert(image: Image.Image, limits: PictureLimits, kind: str) -> NDArray[np.uint8]:
    limits.check_size(*image.size)
    try:
        return image_pixels(image)
    except UnusablePicture:
        raise
    except Exception as error:  # as above, now for the pixels
        raise _damaged(kind, error) from error


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


def _read_path(path: str | bytes, limits: PictureLimits) -> bytes:
    """Read a regular file. Never opens a pipe or a device, which could block for ever."""
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not path:
        raise UnusablePicture("the path is empty", "an empty path")
    try:
        _check_regular(Path(path).stat().st_mode)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            _check_regular(status.st_mode)
            limits.check_file(status.st_size)
            data = file.read(limits.max_file_bytes + 1)
    except OSError as error:
        raise _unreadable_path(path, error) from error
    except ValueError as error:  # a zero character
        raise UnusablePicture(f"the path is not valid: {error}", "an invalid path") from error
    limits.check_file(len(data))
    return data


def _check_regular(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
    found = next((name for is_kind, name in kinds if is_kind(mode)), "a device")
    hint = "" if found == "a directory" else "; read it yourself and pass the bytes"
    raise UnusablePicture(f"it is {found}, not a file{hint}", found)


def _unreadable_path(path: str, error: OSError) -> UnusablePicture:
    if "://" in path or path.startswith("data:"):
        return UnusablePicture("it is a URL, not a file; fetch it and pass the bytes", "a URL")
    found = {
        errno.ENOENT: "a missing file",
        errno.ENOTDIR: "a missing file",
        errno.EACCES: "a file that may not be read",
        errno.EPERM: "a file that may not be read",
    }.get(error.errno or 0, "a file that cannot be read")
    return UnusablePicture(f"it is {found} ({error.strerror or error})", found)


def _read_stream(stream: BinaryReader, limits: PictureLimits) -> bytes:
    """Read an open file to its end, or until it is too large."""
    blocks: list[bytes] = []
    num_bytes = 0
    try:
        while block := stream.read(min(1 << 20, limits.max_file_bytes + 1)):
            if not isinstance(block, (bytes, bytearray, memoryview)):
                raise UnusablePicture(f"it reads {type(block).__name__}, not bytes; open it in mode 'rb'", "text")
            num_bytes += len(block)
            limits.check_file(num_bytes)
            blocks.append(bytes(block))
    except (OSError, ValueError) as error:  # ValueError: it is closed, or its text cannot be decoded
        raise UnusablePicture(f"it cannot be read: {error}", "an open file that cannot be read") from error
    return b"".join(blocks)


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
        name = getattr(picture, "filename", "")
        return name if isinstance(name, str) and name else "<pillow>"
    if isinstance(picture, (str, Path)):
        name = str(picture)
    else:
        name = getattr(picture, "name", "")
        name = name if isinstance(name, str) and name else f"<{type(picture).__name__}>"
    return name if len(name) <= _SHOWN_SOURCE_CHARACTERS else f"{name[:_SHOWN_SOURCE_CHARACTERS]}..."
