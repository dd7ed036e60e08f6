"""A rehearsal of a fit, on made-up records: what a budget would be spent on, before any data is touched.

The recipe itself is run, so that shares, rounds and noise are what it would do; records are drawn within the public
bounds, with a target of which about half can be explained. What recipes read off releases, the number of rounds for
one, is that of these records: about right, for others. A few thousand records stand for all.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._validate import at_least
from ..planning.filter import Filter
from ..privacy import BoundedMean, Ledger, Mechanism, NoiseSource, Release
from ..privacy.release import EXPONENTIAL
from ..tables.encode import LEAST_RECORDS, Encoded
from ..tables.kinds import Classes, Counts
from ..tables.rows import Rows
from ..tables.schema import Schema
from .asking import Scores, Statistic
from .cohort import Census, ClientTable
from .counts import FEWEST
from .expectation import Expectation, expectation
from .fit import algorithm_of, fitted
from .health import planned
from .opening import Opened, Terms, budget_of, delta_of, header_of, public_draws
from .session import Session

MADE_UP = 4096  # records at most
DEVIATIONS = 8  # within the bounds of a target


class Purpose(NamedTuple):
    """The releases for one purpose."""

    purpose: str
    releases: int
    share: float  # of the budget, in mu^2
    multiplier: float  # of one release: the noise over the sensitivity
    noise: float | None  # length of the noise over the longest that can be released; None for a choice


class Rehearsal(NamedTuple):
    """What a fit would do."""

    epsilon: float
    delta: float
    records: int
    task: str
    purposes: Sequence[Purpose]
    expected: Expectation

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        purposes = [one._asdict() for one in self.purposes]
        expected = {**self.expected._asdict(), "sentence": str(self.expected)}
        return {**self._asdict(), "purposes": purposes, "expected": expected}


def rehearse(
    schema: Schema, records: int, *, epsilon: float, delta: float | str = "auto", score: bool = True
) -> Rehearsal:
    """Return what a fit to this number of records, or other units, would do. No data is needed.

    >>> schema = Schema.from_arguments(["x"], bounds=[(0, 1)], target_bounds=(0, 4), target="y")
    >>> found = rehearse(schema, 5000, epsilon=1.0)
    >>> round(sum(one.share for one in found.purposes), 2), found.expected.share > 0.8
    (1.0, True)
    """
    at_least("records", records, LEAST_RECORDS)
    terms = Terms(epsilon, delta, seed=0)
    budget = budget_of(epsilon, delta_of(delta, records))
    ledger = Ledger(header_of(schema, budget, terms, [records], algorithm_of(schema), []))
    cohort, noise = StandIns(made_up(schema, min(records, MADE_UP)), records), NoiseSource.from_seed(0)
    session = Session(cohort, Mechanism(ledger, noise), Filter(budget))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weak models: it is in what is returned; of columns: they are made up
        fitted(schema, Opened(cohort.census, session, ledger, public_draws(noise)), epsilon, score=score)
    classes = len(schema.target.values) if isinstance(schema.target, Classes) else None
    fewest = FEWEST if isinstance(schema.target, Counts) else 0.0
    expected = expectation(epsilon, budget.delta, 1 / records, len(schema.columns), classes, fewest)
    return Rehearsal(epsilon, budget.delta, records, algorithm_of(schema)["task"], _purposes(ledger), expected)


class StandIns:
    """Made-up records that stand for more: their weights add up to one, and sensitivities are those of all."""

    def __init__(self, records: Encoded, units: int):
        self._table = ClientTable(records, "record")
        self._units = units
        self.census = Census((units,), (units,), "records")

    def answer(self, statistic: Statistic, number: int, multiplier: float) -> BoundedMean:
        value = self._table.total(statistic, 1 / self._table.units)
        return self.census.bounded(statistic, number, value, len(value))

    def scores(self, scores: Scores, number: int, multiplier: float) -> np.ndarray:
        return scores.scores(self._table.total(scores, self._units / self._table.units))


def made_up(schema: Schema, size: int) -> Encoded:
    """Return records within the bounds, with a target of which about half can be explained."""
    rng = np.random.default_rng(0)
    bounds = np.where(np.isnan(schema.bounds), [-3.0, 3.0], schema.bounds)
    shares = rng.random((size, len(bounds)))
    codes = np.array([rng.integers(0, max(1, width - 2), size) for width in schema.widths], np.int64)
    codes = codes.T.reshape(size, len(schema.widths))
    inputs = np.concatenate([shares - 0.5, codes % 2 - 0.5], axis=1)
    signal = inputs @ rng.standard_normal(inputs.shape[1])
    score = (signal / max(float(signal.std()), 1e-12) + rng.standard_normal(size)) / math.sqrt(2)
    numeric = bounds[:, 0] + shares * (bounds[:, 1] - bounds[:, 0])
    return Encoded(Rows(numeric, codes, _target(schema, score, rng)), np.ones(size, bool), None, None)


def _target(schema: Schema, score: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    target = schema.target
    if isinstance(target, Classes):
        count = len(target.values)
        return np.searchsorted(np.quantile(score, np.arange(1, count) / count), score).astype(np.float64)
    if isinstance(target, Counts):
        mean = float(target.high) / DEVIATIONS
        return np.clip(rng.poisson(mean * np.exp(np.clip(score, -3, 3) / 2)), 0, target.high).astype(np.float64)
    if target.low is None or target.high is None:
        return score
    low, high = float(target.low), float(target.high)
    return np.clip((low + high) / 2 + score * (high - low) / DEVIATIONS, low, high)


def _purposes(ledger: Ledger) -> list[Purpose]:
    groups: dict[str, list[Release]] = {}
    for release in ledger.releases:
        groups.setdefault(release.purpose, []).append(release)
    total, found = planned(ledger)[1], []
    for purpose, releases in groups.items():
        share = math.fsum(one.multiplier**-2 for one in releases) / total
        noised = [
            one.noise_std * math.sqrt(one.dimension) / one.clip for one in releases if one.mechanism != EXPONENTIAL
        ]
        noise = math.fsum(noised) / len(noised) if noised else None
        found.append(Purpose(purpose, len(releases), share, max(one.multiplier for one in releases), noise))
    return found
