"""What a benchmark returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Bar", "Cell", "Result"]

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured value and the limit that it must keep. The unit is in the bar's name.

    Attributes:
        value: what was measured; NaN never passes.
        limit: the worst value that passes.
        at_least: the value must not be lower than the limit; False: not higher.
    """

    value: float
    limit: float
    at_least: bool = False

    @property
    def ok(self) -> bool:
        """Whether the value keeps the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def as_json(self) -> dict[str, Cell]:
        """Return it as JSON has it; a value that is not finite becomes null."""
        return {"value": self.value if math.isfinite(self.value) else None, "limit": self.limit, "ok": self.ok}


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark found.

    Attributes:
        bars: what must hold, by name; empty where a benchmark only informs.
        table: rows of what was measured; every row has the same columns.
    """

    bars: Mapping[str, Bar]
    table: Sequence[Mapping[str, Cell]]

    @property
    def ok(self) -> bool:
        """Whether every bar is kept."""
        return all(bar.ok for bar in self.bars.values())
