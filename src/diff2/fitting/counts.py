r"""RF-P: counts, by the Poisson likelihood with a log link on random features.

With m the released mean, a record's descent direction is :math:`(y/m - e^z)\, \psi`, its output
:math:`z = \theta^T \psi` limited to :math:`\pm 3`. So residuals, and predictions :math:`m e^z`, are bounded whatever
the records are and wherever steps lead: :math:`e^{-3} m` to :math:`e^3 m`. Around z = 0 the Hessian is the second
moment of the features, as for squared error.

Few large counts decide a mean, and a public bound of counts is often far above all of them. So a histogram of
magnitudes tells first what bound most counts need; where noise hides it, the mean of log(1 + y), which is within few
units, tells the scale. Clipping gradients draws predictions down: at the end all are
multiplied by one factor, so that their released mean is that of the counts.

Shares of the budget: magnitudes .01, mean of logarithms .01 to .3, mean .03 to .3, factor .01 to .1, the rest as in
``regression.py``. The larger ones are for few records. Where records times mu is below 100, descent would follow noise,
and an exponential makes much of it (synthetic tables of 250 records at epsilon .5: three times the deviance of the
mean): there the mean is the model, for up to .6 of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..tables.rows import Rows
from .asking import Ask
from .bounds import Magnitudes, octave_around, standing_out
from .linear import LinearModel
from .preparation import Preparation
from .regression import descent_of, prepared
from .statistics import Residuals, TargetMean

SHARES = {"magnitudes": 0.01, "logarithms": 0.01, "mean": 0.03}  # the least
FEWEST = 100  # records times mu, for anything but the mean
REACH = 3.0
MAX_ROUNDS = 32  # more follow the noise of large counts: equal or worse on synthetic tables and on RAND
MOST_COUNTS = 0.8  # share of the counts that a bound is taken from
MOST_RATIO = 4.0  # of a prediction to the mean, where the factor is found


class CountModel(NamedTuple):
    """A linear model of the logarithm, the mean of the counts, and the bound that they need."""

    linear: LinearModel
    mean: float
    high: float


def expected_counts(model: LinearModel, outputs: np.ndarray) -> np.ndarray:
    """Return positive predictions from outputs."""
    return np.exp(model.offset + np.clip(outputs - model.offset, -REACH, REACH))


@dataclass(frozen=True, eq=False)
class CountResiduals(Residuals):
    """Counts less what is expected, in units of the mean."""

    def of(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        outputs = np.clip(self.design.features(rows, cache) @ self.theta, -REACH, REACH)
        return np.clip(rows.target, *self.bounds) / math.exp(float(self.offset)) - np.exp(outputs)


@dataclass(frozen=True)
class LogMean:
    """The mean of log(1 + y)."""

    high: float
    purpose: str = "target"

    @property
    def longest(self) -> float:
        return math.log1p(self.high)

    @property
    def diameter(self) -> float:
        return math.log1p(self.high)

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        return np.array([weights @ np.log1p(np.clip(rows.target, 0.0, self.high))])


@dataclass(frozen=True)
class RatioMean:
    """The mean of predictions over the mean of the counts, each at most 4."""

    model: LinearModel
    purpose: str = "factor"
    longest: float = MOST_RATIO
    diameter: float = MOST_RATIO

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        moved = self.model.outputs(rows, cache) - self.model.offset
        return np.array([weights @ np.minimum(np.exp(np.clip(moved, -REACH, REACH)), MOST_RATIO)])


def shares_of(mu: float, weight: float, high: float) -> dict[str, float]:
    """Return the shares of mu^2 for all but the descent, from public numbers.

    The noise of the mean of the logarithms is to be .15, that of the mean of counts up to 8 times the mean .15 of it,
    and that of the factor .05.
    """

    def share(longest: float, noise: float, least: float, most: float) -> float:
        return min(most, max(least, (longest * weight / (noise * mu)) ** 2))

    return {
        "magnitudes": SHARES["magnitudes"],
        "logarithms": share(math.log1p(high), 0.15, SHARES["logarithms"], 0.3),
        "mean": share(8.0, 0.15, SHARES["mean"], 0.6 if mu < FEWEST * weight else 0.3),
        "factor": 0.0 if mu < FEWEST * weight else share(MOST_RATIO, 0.05, 0.01, 0.1),
    }


def mean_and_bound(ask: Ask, mu: float, high: float, shares: Mapping[str, float] = SHARES) -> tuple[float, float]:
    """Return the mean of the counts, and a bound that most of them are below."""
    sizes = ask(Magnitudes((), True), mu * math.sqrt(shares["magnitudes"]))
    logs = ask(LogMean(high), mu * math.sqrt(shares["logarithms"]))
    typical = math.expm1(min(max(float(logs.value[0]), logs.noise_std / 2), math.log1p(high)))
    span = standing_out(sizes.value, sizes.noise_std, 1)
    if span is not None and float(sizes.value[span[0] : span[1] + 1].sum()) < MOST_COUNTS:
        span = None  # noise hides the larger ones
    high = min(high, 8 * (1 + typical) if span is None else max(octave_around(*span)[1], 1.0))
    centred = TargetMean(0.0, high)
    answer = ask(centred, mu * math.sqrt(shares["mean"]))
    mean = centred.middle + float(answer.value[0])
    return (float(min(mean, high)) if mean > 3 * answer.noise_std else min(typical, high)), high


def fit_counts(
    ask: Ask,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    high: float,
    rng: np.random.Generator,
) -> CountModel:
    """Fit by releases that cost ``mu`` together; ``weight`` is that of the heaviest unit."""
    shares = shares_of(mu, weight, high)
    mean, high = mean_and_bound(ask, mu, high, shares)
    rest = mu * math.sqrt(1 - sum(shares.values()))
    descent = descent_of(ask, rest, weight, *prepared(ask, rest, weight, preparation, bounds), rng)
    descent = descent._replace(rounds=min(descent.rounds, MAX_ROUNDS))
    offset = math.log(mean)
    if mu < FEWEST * weight:
        return CountModel(LinearModel(descent.design, np.zeros(len(descent.whitener.values)), offset), mean, high)
    theta, _ = descent.run(
        ask,
        lambda theta: CountResiduals(descent.design, theta, np.array(offset), (0.0, high)),
        high / mean,
        linear=False,
    )
    model = LinearModel(descent.design, theta, offset)
    answer = ask(RatioMean(model), mu * math.sqrt(shares["factor"]))
    ratio = max(float(answer.value[0]), 0.5) if answer.noise_std < 0.1 else 1.0
    return CountModel(LinearModel(descent.design, theta, offset - math.log(ratio)), mean, high)
