"""Pixels: a Pillow image or a NumPy array of any kind as RGB, uint8, upright, on white."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edge_vl.exif import read_orientation
from edge_vl.picture_limits import PictureLimits, UnusablePicture

__all__ = ["array_pixels", "image_pixels"]

_ORIENTATION_TAG = 0x0112
_HEX_EXIF = "Raw profile type exif"  # a text chunk in which ImageMagick keeps it in a PNG
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def image_pixels(image: Image.Image, *, has_raw_exif: bool = False) -> NDArray[np.uint8]:
    """Decode a Pillow image.

    EXIF orientation is applied, transparency is laid on white, grey of more than 8 bits is scaled to 8. Colour
    profiles are ignored, as the processors that the models were trained with do. The frame that the image stands at is
    taken; of a freshly opened animation that is the first.

    Args:
        image: any Pillow image.
        has_raw_exif: nobody has edited its EXIF data since it was opened, so that the raw bytes can be read instead of
            asking Pillow, which warns about damaged ones.

    Returns:
        uint8 (height, width, 3), RGB, C-contiguous, read-only, sharing memory with nothing.

    Raises:
        UnusablePicture: its pixels have no agreed meaning.
        Exception: whatever Pillow raises for a damaged file.
    """
    raw_mode = _raw_mode(image)
    image.load()
    turn = _TURNS.get(_orientation(image, has_raw_exif=has_raw_exif))
    if turn is not None:
        image = image.transpose(turn)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _wide_grey(image, raw_mode)
    if image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        image = _on_white(_with_true_key(image, raw_mode).convert("RGBA"))
    elif image.mode != "RGB":
        image = image.convert("RGB")
    return _read_only(np.array(image))


def array_pixels(array: NDArray[np.generic], limits: PictureLimits, *, bgr: bool = False) -> NDArray[np.uint8]:
    """Copy a NumPy array.

    Args:
        array: bool, uint8 or uint16 (height, width), (height, width, 1), (height, width, 3) or (height, width, 4) with
            alpha last, in any memory layout. uint16 uses its full range: 65535 is white.
        limits: checked before anything is copied.
        bgr: the colours come in OpenCV's order: blue, green, red(, alpha).

    Returns:
        uint8 (height, width, 3), RGB, C-contiguous, read-only, sharing memory with nothing.

    Raises:
        UnusablePicture: another shape or type, or too large.
    """
    array = np.asarray(array)  # a matrix or a masked array behaves differently
    _check_array(array)
    limits.check_size(array.shape[1], array.shape[0])
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif array.dtype != np.uint8:
        array = _sixteen_to_eight(array)
    num_channels = array.shape[2] if array.ndim == 3 else 1
    if num_channels == 1:
        return _read_only(np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2).astype(np.uint8, copy=False))
    if bgr:
        array = array[:, :, [2, 1, 0, 3][:num_channels]]
    copied = np.array(array, dtype=np.uint8, order="C", copy=True)
    if num_channels == 4:
        copied = np.array(_on_white(Image.fromarray(copied)))
    return _read_only(copied)


def _check_array(array: NDArray[np.generic]) -> None:
    found = f"an array of {array.dtype} with shape {array.shape}"
    hint = _shape_hint(array) or _dtype_hint(array.dtype)
    if hint:
        raise UnusablePicture(f"it is {found}; {hint}", found)


def _shape_hint(array: NDArray[np.generic]) -> str:
    """Say what is wrong with a shape; empty if nothing is."""
    is_row_of_bytes = array.size > 64 and array.ndim in (1, 2) and array.size == array.shape[-1]
    if is_row_of_bytes and array.ravel()[:3].tobytes() in (b"\xff\xd8\xff", b"\x89PN", b"RIF"):
        return "it looks like an encoded picture: pass array.tobytes()"
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4)):
        return ""
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] > 5:
        return "channels come last: pass array.transpose(1, 2, 0)"
    if array.ndim == 4:
        return "pass one picture of the batch: array[0]"
    return "wanted (height, width) or (height, width, 1, 3 or 4)"


def _dtype_hint(dtype: np.dtype[np.generic]) -> str:
    """Say what is wrong with a type of values; empty if nothing is."""
    if dtype.kind == "f":
        return "floats have no agreed range: for 0 to 1 pass (array * 255).round().astype(numpy.uint8)"
    if dtype.kind not in "bu" or dtype.itemsize > 2:
        return "wanted uint8: for values of 0 to 255 pass array.astype(numpy.uint8)"
    return ""


def _raw_mode(image: Image.Image) -> str:
    """Say how the file stores a pixel, while that is still known: `L;4`, `RGB;16B`, `I;12`; empty otherwise."""
    tiles = getattr(image, "tile", None)
    if not tiles:
        return ""
    arguments = tiles[0][3]
    first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return first if isinstance(first, str) else ""


def _orientation(image: Image.Image, *, has_raw_exif: bool) -> int:
    if has_raw_exif:
        orientation = read_orientation(_raw_exif(image.info))
        if orientation is not None:
            return orientation
        image.info.pop("exif", None)  # leaves Pillow the other places: XMP, and what a TIFF says of itself
        image.info.pop(_HEX_EXIF, None)
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF must not cost the picture
        return 1
    return value if isinstance(value, int) else 1


def _raw_exif(info: dict[str | tuple[int, int], Any]) -> bytes:
    exif = info.get("exif", b"")
    if not exif and _HEX_EXIF in info:
        try:
            exif = bytes.fromhex("".join(str(info[_HEX_EXIF]).split("\n")[3:]))
        except ValueError:
            return b""
    return exif if isinstance(exif, bytes) else b""


def _with_true_key(image: Image.Image, raw_mode: str) -> Image.Image:
    """Bring the transparent colour of a PNG to the depth of its decoded pixels, which Pillow leaves as stored."""
    key = image.info.get("transparency")
    scale = {"L;2": 85, "L;4": 17}.get(raw_mode)
    if scale is not None and isinstance(key, int):
        image = image.copy()
        image.info["transparency"] = min(255, key * scale)
    elif raw_mode == "RGB;16B" and isinstance(key, tuple):
        image = image.copy()
        image.info["transparency"] = tuple(value >> 8 for value in key)
    return image


def _on_white(image: Image.Image) -> Image.Image:
    """Lay an RGBA image on white, as transformers' `convert_to_rgb` does, to the same bit."""
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _wide_grey(image: Image.Image, raw_mode: str) -> NDArray[np.uint8]:
    """Scale grey of 12, 16 or 32 bits or float to 8 bits.

    16 bits use their full range. 32-bit integers and floats have no agreed range: up to 1 (floats), 255 and 65535 are
    understood, the smallest that holds all values; what is negative or larger is refused.
    """
    values = np.asarray(image)
    if image.mode == "F" and not np.isfinite(values).all():
        raise UnusablePicture("its pixels are floats, some of them not finite", "a picture of floats")
    low, high = values.min(), values.max()
    if image.mode.startswith("I;16"):
        peak = 4095 if raw_mode.startswith("I;12") else 65535
    elif low < 0 or high > 65535:
        kind = "floats" if image.mode == "F" else "32-bit integers"
        raise UnusablePicture(
            f"its pixels are {kind} from {low:g} to {high:g}, which has no agreed meaning; scale them to 0 to 255",
            f"a picture of {kind}",
        )
    elif image.mode == "F" and high <= 1:
        peak = 1
    else:
        peak = 255 if high <= 255 and image.format != "PPM" else 65535
    if image.mode.startswith("I;16") and peak == 65535:
        grey = _sixteen_to_eight(values)
    else:
        grey = np.clip(np.rint(values.astype(np.float64) * (255 / peak)), 0, 255).astype(np.uint8)
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey = np.where(values == key, np.uint8(255), grey)
    return _read_only(np.repeat(grey[:, :, None], 3, axis=2))


def _sixteen_to_eight(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Scale uint16 to uint8, to the nearest."""
    table = ((np.arange(65536, dtype=np.uint32) + 128) // 257).astype(np.uint8)
    return table[values.astype(np.uint16, copy=False)]


def _read_only(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    pixels.setflags(write=False)
    return pixels
