"""The privacy budget: how much may be learnt about one record."""

import math
import warnings
from dataclasses import dataclass
from numbers import Real

from .._validate import positive, wrong
from ..errors import WeakEpsilonWarning

MEANINGFUL = 10.0  # the largest epsilon that means something


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
            wrong(f"expected 0 < delta < 1, got delta={self.delta!r}; a usual choice is below 1 / (number of records)")

    @property
    def private(self) -> bool:
        """Whether any noise is added."""
        return math.isfinite(self.epsilon)

    def warn(self, stacklevel: int = 3) -> None:
        """Warn of an epsilon too large to mean much: before a run or a fit, not where a ledger is read."""
        if MEANINGFUL < self.epsilon < math.inf:
            warnings.warn(
                f"epsilon={self.epsilon:g} says little: who was in the table may be guessed with odds of "
                f"up to exp({self.epsilon:g}) to 1. Around 1 is strong, 3 to 5 common; choose at most {MEANINGFUL:g}",
                WeakEpsilonWarning,
                stacklevel=stacklevel,
            )
