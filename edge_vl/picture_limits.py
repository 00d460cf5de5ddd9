"""How large a picture may be, checked on its header before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PictureLimits", "UnusablePicture"]


class UnusablePicture(Exception):
    """Why a picture cannot be used, before it is known which of a request's pictures it is."""

    def __init__(self, reason: str, detected: str) -> None:
        """Keep a clause that ends a sentence about the picture, and what was found instead of a good one."""
        super().__init__(reason)
        self.reason = reason
        self.detected = detected


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """The largest picture that is taken.

    Attributes:
        max_file_bytes: of an encoded picture.
        max_pixels: height times width; decoding takes 10 to 20 bytes for each.
        max_side: the longer side, in pixels.
        max_pixels_at_once: of the pictures that the requests of one runtime decode at the same time; others wait. A
            picture that alone has more is decoded alone.
    """

    max_file_bytes: int = 64 * 1024 * 1024
    max_pixels: int = 100_000_000
    max_side: int = 65_535
    max_pixels_at_once: int = 100_000_000

    def check_file(self, num_bytes: int) -> None:
        """Raise `UnusablePicture` if a file is too large."""
        if num_bytes > self.max_file_bytes:
            raise UnusablePicture(
                f"it has {num_bytes} bytes or more and at most {self.max_file_bytes} are taken", "too many bytes"
            )

    def check_size(self, width: int, height: int) -> None:
        """Raise `UnusablePicture` if a picture has no pixels, too many, or a side that is too long."""
        if width < 1 or height < 1:
            raise UnusablePicture(f"it has {width}x{height} pixels, which is none", "no pixels")
        if max(width, height) > self.max_side:
            raise UnusablePicture(
                f"it has {width}x{height} pixels and a side may have at most {self.max_side}", "too many pixels"
            )
        if width * height > self.max_pixels:
            raise UnusablePicture(
                f"it has {width}x{height} = {width * height} pixels and at most {self.max_pixels} are taken",
                "too many pixels",
            )
