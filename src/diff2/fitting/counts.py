r"""RF-P: counts, by the Poisson likelihood with a log link on random features.

With m the released mean, a record's descent direction is :math:`(y/m - e^z)\, \psi`, its output
:math:`z = \theta^T \psi` limited to :math:`\pm 3`. So residuals, and predictions :math:`m e^z`, are bounded whatever
the records are and wherever steps lead: :math:`e^{-3} m` to :math:`e^3 m`. Around z = 0 the Hessian is the second
moment of the features, as for squared error.

Few large counts decide a mean, and a public bound of counts is often far above all of them. So a histogram of
magnitudes tells first what bound most counts need; where noise hides it, the mean of log(1 + y), which is within few
units, tells the scale. Clipping gradients draws predictions down: at the end all are
multiplied by one factor, so that their released mean is that of the counts.

Shares of the budget: magnitudes .01, mean of logarithms .01, mean .03, factor .01 to .1, the rest as in
``regression.py``.
"""

from __future__ import annotations

import math
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

SHARES = {"magnitudes": 0.01, "logarithms": 0.01, "mean": 0.03}
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


def mean_and_bound(ask: Ask, mu: float, high: float) -> tuple[float, float]:
    """Return the mean of the counts, and a bound that most of them are below."""
    sizes = ask(Magnitudes((), True), mu * math.sqrt(SHARES["magnitudes"]))
    logs = ask(LogMean(high), mu * math.sqrt(SHARES["logarithms"]))
    typical = math.expm1(min(max(float(logs.value[0]), logs.noise_std / 2), math.log1p(high)))
    span = standing_out(sizes.value, sizes.noise_std, 1)
    if span is not None and float(sizes.value[span[0] : span[1] + 1].sum()) < MOST_COUNTS:
        span = None  # noise hides the larger ones
    high = min(high, 8 * (1 + typical) if span is None else max(octave_around(*span)[1], 1.0))
    centred = TargetMean(0.0, high)
    answer = ask(centred, mu * math.sqrt(SHARES["mean"]))
    mean = centred.middle + float(answer.value[0])
    return (float(min(mean, high)) if mean > 3 * answer.noise_std else min(typical, high)), high


def share_of_factor(mu: float, weight: float) -> float:
    """Return the share of mu^2 for the factor: its noise is to be .05, for a hundredth to a tenth of the budget."""
    return min(0.1, max(0.01, (MOST_RATIO * weight / (0.05 * mu)) ** 2))


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
    mean, high = mean_and_bound(ask, mu, high)
    factor = share_of_factor(mu, weight)
    rest = mu * math.sqrt(1 - sum(SHARES.values()) - factor)
    descent = descent_of(ask, rest, weight, *prepared(ask, rest, weight, preparation, bounds), rng)
    descent = descent._replace(rounds=min(descent.rounds, MAX_ROUNDS))
    offset = math.log(mean)
    theta, _ = descent.run(
        ask,
        lambda theta: CountResiduals(descent.design, theta, np.array(offset), (0.0, high)),
        high / mean,
        linear=False,
    )
    model = LinearModel(descent.design, theta, offset)
    answer = ask(RatioMean(model), mu * math.sqrt(factor))
    ratio = max(float(answer.value[0]), 0.5) if answer.noise_std < 0.1 else 1.0
    return CountModel(LinearModel(descent.design, theta, offset - math.log(ratio)), mean, high)
