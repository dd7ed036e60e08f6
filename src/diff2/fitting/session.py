"""A fit in progress: statistics become releases, and releases lines of a ledger, until the budget is spent."""

from __future__ import annotations

import math

from ..planning.filter import Filter
from ..privacy import Mechanism
from ..privacy.exponential import release_choice
from .asking import Answer, Scores, Statistic
from .cohort import TableCohort

KEPT_BACK = 1e-9  # of the budget: prices are sums of shares, rounded


class Session:
    """Asks a cohort, within a budget."""

    def __init__(self, cohort: TableCohort, mechanism: Mechanism, filter: Filter):
        self._cohort = cohort
        self._mechanism = mechanism
        self._filter = filter

    @property
    def mu(self) -> float:
        """What a recipe may spend."""
        return self._filter.mu * (1 - KEPT_BACK)

    def ask(self, statistic: Statistic, mu: float) -> Answer:
        """Release a statistic at this price."""
        self._filter.spend(mu, statistic.purpose)
        mean = self._cohort.answer(statistic, self._filter.releases)
        released = self._mechanism.release(mean, 1 / mu)
        return Answer(released.value, math.sqrt(released.variance))

    def choose(self, scores: Scores, mu: float) -> int:
        """Choose a candidate by its score at this price."""
        self._filter.spend(mu, scores.purpose)
        found = self._cohort.scores(scores)
        return release_choice(self._mechanism, found, scores.sensitivity, mu, self._filter.releases, scores.purpose)
