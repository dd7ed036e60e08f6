"""A fit in progress: statistics become releases, and releases lines of a ledger, until the budget is spent."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from ..errors import LedgerError
from ..planning.filter import Filter
from ..privacy import BoundedMean, Mechanism
from ..privacy.exponential import release_choice
from .asking import Answer, Scores, Statistic
from .cohort import Census

KEPT_BACK = 1e-9  # of the budget: prices are sums of shares, rounded


class Progress(Protocol):
    """Is told the share of the budget that is spent, and what is asked for now."""

    def __call__(self, spent: float, purpose: str) -> None: ...


class Cohort(Protocol):
    """Answers statistics, each with its number and with the noise multiplier that it will be released with."""

    census: Census

    def answer(self, statistic: Statistic, number: int, multiplier: float) -> BoundedMean: ...

    def scores(self, scores: Scores, number: int, multiplier: float) -> np.ndarray: ...


class Session:
    """Asks a cohort, within a budget."""

    def __init__(self, cohort: Cohort, mechanism: Mechanism, filter: Filter, progress: Progress | None = None):
        self._cohort = cohort
        self._progress = progress or (lambda spent, purpose: None)
        self._mechanism = mechanism
        self._filter = filter

    @property
    def mu(self) -> float:
        """What a recipe may spend."""
        return self._filter.mu * (1 - KEPT_BACK)

    def ask(self, statistic: Statistic, mu: float) -> Answer:
        """Release a statistic at this price."""
        self._spend(mu, statistic.purpose)
        mean = self._cohort.answer(statistic, self._filter.releases, 1 / mu)
        released = self._mechanism.release(mean, 1 / mu)
        return Answer(released.value, math.sqrt(released.variance))

    def choose(self, scores: Scores, mu: float) -> int:
        """Choose a candidate by its score at this price."""
        self._spend(mu, scores.purpose)
        found = self._cohort.scores(scores, self._filter.releases, 1 / mu)
        return release_choice(self._mechanism, found, scores.sensitivity, mu, self._filter.releases, scores.purpose)

    def _spend(self, mu: float, purpose: str) -> None:
        self._filter.spend(mu, purpose)
        known = self._mechanism.ledger.releases[self._filter.releases - 1 :][:1]  # of a fit that is resumed
        if known and known[0].purpose != purpose:
            raise LedgerError(
                f"release {self._filter.releases} was a {known[0].purpose} and is a {purpose} now: records or code "
                "were changed. Nothing was released now; start again in another directory. Earlier releases stay spent"
            )
        self._progress(1 - self._filter.left, purpose)
