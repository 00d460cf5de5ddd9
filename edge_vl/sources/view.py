"""What of a camera's picture is looked at, and which way is up. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import RequestError

__all__ = ["ROTATIONS", "View"]

ROTATIONS = (0, 90, 180, 270)


@dataclass(frozen=True, slots=True)
class View:
    """A rotation, then a region of interest of the upright picture.

    Attributes:
        rotate_deg: clockwise: 0, 90, 180 or 270.
        region: left, top, right and bottom edge as shares of the upright picture, 0 to 1; None: all of it.
    """

    rotate_deg: int = 0
    region: tuple[float, float, float, float] | None = None

    def __post_init__(self) -> None:
        """Check both.

        Raises:
            RequestError: a value makes no sense.
        """
        if not isinstance(self.rotate_deg, (int, float)) or self.rotate_deg not in ROTATIONS:
            raise RequestError(f"rotate_deg is 0, 90, 180 or 270, not {self.rotate_deg!r:.40}", field="rotate_deg")
        if self.region is not None:
            if (
                not isinstance(self.region, (tuple, list))
                or len(self.region) != 4
                or not all(map(_is_number, self.region))
            ):
                raise RequestError("region is left, top, right, bottom, as shares from 0 to 1", field="region")
            left, top, right, bottom = self.region
            if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
                raise RequestError(
                    f"region is left, top, right, bottom, as shares from 0 to 1, left < right and top < bottom, "
                    f"not {self.region!r:.80}",
                    field="region",
                )

    def of(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return what is looked at.

        Args:
            pixels: uint8 (height, width, 3).

        Returns:
            uint8 (height, width, 3), C-contiguous, at least one pixel; the same array where nothing is to be done.
        """
        turned = np.rot90(pixels, -int(self.rotate_deg) // 90) if self.rotate_deg else pixels
        if self.region is not None:
            height, width = turned.shape[:2]
            left, top, right, bottom = self.region
            x = min(int(left * width), width - 1)
            y = min(int(top * height), height - 1)
            turned = turned[y : max(y + 1, round(bottom * height)), x : max(x + 1, round(right * width))]
        return np.ascontiguousarray(turned)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
