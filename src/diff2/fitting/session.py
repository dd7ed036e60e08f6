"""A fit in progress: statistics become releases, and releases lines of a ledger, until the budget is spent.

Prices are in Gaussian differential privacy. Which statistics are asked, and how many, depends on earlier releases; the
squares of their prices never add up to more than the budget's. That is a privacy filter: composition of Gaussian
mechanisms whose prices are chosen as one goes costs what their sum allows (Smith and Thakurta 2022).
"""

from __future__ import annotations

import math
from typing import Protocol

from ..errors import BudgetExceeded
from ..privacy import Budget, Mechanism
from ..privacy.accounting import gdp_mu
from ..privacy.discrete import continuous_budget
from ..privacy.exponential import release_choice
from .asking import Answer, Scores, Statistic
from .cohort import TableCohort

MOST_RELEASES = 512
TOLERANCE = 1e-9  # of the budget: prices are sums of shares, rounded


class Progress(Protocol):
    """Is told the share of the budget that is spent, and what is asked for now."""

    def __call__(self, spent: float, purpose: str) -> None: ...


class Session:
    """Asks a cohort, within a budget."""

    def __init__(self, cohort: TableCohort, mechanism: Mechanism, budget: Budget, progress: Progress | None = None):
        self._cohort = cohort
        self._progress = progress or (lambda spent, purpose: None)
        self._mechanism = mechanism
        # The smallest part in 10^9 is kept back, for what is rounded.
        self._limit = gdp_mu(*continuous_budget(budget.epsilon, budget.delta, MOST_RELEASES))
        self._spent = 0.0  # the sum of the squared prices
        self._number = 0

    @property
    def mu(self) -> float:
        """What a recipe may spend."""
        return self._limit * (1 - TOLERANCE)

    @property
    def left(self) -> float:
        """The share of the budget that is not spent yet."""
        return 1 - self._spent / self._limit**2

    def ask(self, statistic: Statistic, mu: float) -> Answer:
        """Release a statistic at this price."""
        self._spend(mu, statistic.purpose)
        mean = self._cohort.answer(statistic, self._number)
        released = self._mechanism.release(mean, 1 / mu)
        return Answer(released.value, math.sqrt(released.variance))

    def choose(self, scores: Scores, mu: float) -> int:
        """Choose a candidate by its score at this price."""
        self._spend(mu, scores.purpose)
        found = self._cohort.scores(scores)
        return release_choice(self._mechanism, found, scores.sensitivity, mu, self._number, scores.purpose)

    def _spend(self, mu: float, purpose: str) -> None:
        spent = self._spent + mu**2
        if spent > self._limit**2 or self._number >= MOST_RELEASES:
            raise BudgetExceeded(f"the {purpose} would cost more than is left of the budget; nothing was released")
        self._spent = spent
        self._number += 1
        self._progress(1 - self.left, purpose)
