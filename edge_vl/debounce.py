"""A yes/no state that changes only after several equal answers in a row. Pure."""

from __future__ import annotations

from edge_vl.option_checks import require_whole_number

__all__ = ["Debounce"]


class Debounce:
    """Follows answers, but not the odd one out.

    Belongs to one thread.

    Attributes:
        state: what holds now; None before the first state.
    """

    def __init__(self, after: int) -> None:
        """Begin without a state.

        Args:
            after: equal answers in a row, at least 1, before the state changes; the first state needs as many.

        Raises:
            RequestError: `after` is no whole number above 0.
        """
        require_whole_number(after, "after", 1)
        self.state: bool | None = None
        self._after = after
        self._candidate: bool | None = None
        self._num_equal = 0

    def update(self, value: bool | None) -> bool | None:
        """Take in one answer.

        Args:
            value: the answer; None: it is unclear, so nothing changes, and no row of equal answers is interrupted.

        Returns:
            The new state if this answer changed it, else None.
        """
        if value is None:
            return None
        if value is self.state:
            self._candidate, self._num_equal = None, 0
            return None
        self._num_equal = self._num_equal + 1 if value is self._candidate else 1
        self._candidate = value
        if self._num_equal < self._after:
            return None
        self.state, self._candidate, self._num_equal = value, None, 0
        return value
