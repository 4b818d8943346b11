"""The values that a search may try."""

from __future__ import annotations

import math


class Grid:
    """Powers of 1 + ``precision``, to five digits: each value is larger than the one before by that share.

    It has no bounds of its own, so that searches over different ranges try the same values, and can share their runs.
    Raises ValueError for a precision outside [0.001, 1].
    """

    def __init__(self, precision: float) -> None:
        if not 0.001 <= precision <= 1.0:
            raise ValueError(f"the precision of a search must be from 0.001 to 1, not {precision:g}")
        self._step = math.log1p(precision)

    def value(self, index: int) -> float:
        return float(f"{math.exp(index * self._step):.5g}")

    def at_least(self, value: float) -> int:
        """The index of the smallest value that is not below ``value``, which is positive."""
        index = math.floor(math.log(value) / self._step) - 1
        while self.value(index) < value:
            index += 1
        return index
