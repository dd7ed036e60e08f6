"""The privacy budget: how much may be learnt about one record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from .._validate import positive
from ..errors import InvalidArgument


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) differential-privacy budget for a whole run.

    Args:
        epsilon: above 0. ``math.inf`` adds no noise at all; clipping still applies, and nothing is private.
        delta: strictly between 0 and 1, and well below one over the number of records.

    >>> Budget(epsilon=3.0, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, infinite=True)
        if isinstance(self.delta, bool) or not isinstance(self.delta, Real) or not 0 < self.delta < 1:
            raise InvalidArgument(
                f"expected 0 < delta < 1, got delta={self.delta!r}; a usual choice is below 1 / (number of records)"
            )

    @property
    def private(self) -> bool:
        """Whether any noise is added."""
        return math.isfinite(self.epsilon)
