"""RoPE: the angles by which queries and keys are turned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rope", "describe"]


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """How queries and keys are turned by their positions.

    Attributes:
        cosines: float32 (num_positions, rotary_dim // 2); copied where it is not contiguous.
        sines: float32 (num_positions, rotary_dim // 2); likewise.
        is_interleaved: pairs of channels are (0, 1), (2, 3), ...; otherwise (i, i + rotary_dim // 2).
    """

    cosines: NDArray[np.float32]
    sines: NDArray[np.float32]
    is_interleaved: bool = False

    def __post_init__(self) -> None:
        """Check the tables.

        Raises:
            ValueError: they are no such tables.
        """
        for name in ("cosines", "sines"):
            table = getattr(self, name)
            if not isinstance(table, np.ndarray) or table.dtype != np.float32 or table.ndim != 2 or table.size == 0:
                raise ValueError(f"{name} must be float32 (num_positions, rotary_dim // 2), not {describe(table)}")
            object.__setattr__(self, name, np.ascontiguousarray(table))
        if self.cosines.shape != self.sines.shape:
            raise ValueError(f"cosines are {describe(self.cosines)} but sines {describe(self.sines)}")
        if self.is_interleaved not in (False, True):
            raise ValueError(f"is_interleaved must be True or False, not {self.is_interleaved!r}")
        object.__setattr__(self, "is_interleaved", bool(self.is_interleaved))

    @property
    def num_positions(self) -> int:
        """How many positions the tables have."""
        return len(self.cosines)

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that are turned, from the first on."""
        return 2 * int(self.cosines.shape[1])


def describe(array: object) -> str:
    """Say what something is where an array was expected."""
    return f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
