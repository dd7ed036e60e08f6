"""Records as `fit` sees them: numbers within public bounds, codes of public categories, a target, a weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

CHUNK = 4096  # rows that go through a matrix product together


class Rows(NamedTuple):
    """Encoded records."""

    numeric: np.ndarray  # (rows, numeric columns), within the bounds; NaN: missing
    codes: np.ndarray  # (rows, categorical columns), whole numbers from 0
    target: np.ndarray

    @property
    def size(self) -> int:
        return len(self.target)

    def chunks(self, rows: int = CHUNK) -> Iterator[tuple[slice, Rows]]:
        """Yield the rows in order, a few at a time, with their place."""
        for start in range(0, len(self.target), rows):
            place = slice(start, start + rows)
            yield place, Rows(self.numeric[place], self.codes[place], self.target[place])
