r"""Private evaluation: how good a model is on other records, with a budget and a ledger of its own.

The guarantee is for the records of the evaluation; those that the model was fitted to are not touched. Shares of the
budget (of mu^2): the constant to compare with .1 (the mean, or the shares of the classes, *of these records*), loss and
share of the deviance .5 (``scoring.py``), and .4 for

* classes: one histogram of scores (log odds, for more than two classes those of the likeliest) by label; two counts of
  it move, :math:`\sqrt 2`. It gives the area under the ROC curve of two classes, ties within a bin counting half, and
  the calibration;
* numbers: with p and y the prediction and the target less the constant, in units of c and within one, the sums of
  p y, p^2 and y - p, each within one: distance 3. Slope of y on p, and bias.

Intervals (95 %) account for noise and for the sampling of records.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from ..planning.filter import EVALUATION
from ..privacy import Guarantee, Ledger
from ..tables.encode import encode
from ..tables.kinds import Classes, Regression
from ..tables.rows import Rows
from .asking import Answer
from .model import FittedModel
from .opening import Terms, opened
from .scoring import NORMAL, Errors, Score, score_of
from .second_moment import ROOT
from .session import Session
from .statistics import ClassShares, TargetMean

SHARES = {"constant": 0.1, "score": 0.5, "calibration": 0.4}
LOG_ODDS = np.arange(-16, 17) / 2.0  # edges of scores
FEWEST = 0.02  # share of the records in a line of the calibration


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


class Calibrated(NamedTuple):
    """Of records with about this probability, the share whose label is true."""

    predicted: float
    observed: Estimate
    records: float  # their share of all


@dataclass(frozen=True)
class Evaluation:
    """Private scores of a model. ``str()`` lists them."""

    score: Score
    ledger: Ledger
    auc: Estimate | None = None
    calibration: tuple[Calibrated, ...] = ()
    slope: Estimate | None = None  # of the target on the prediction: 1 is right, below 1 predictions spread too far
    bias: Estimate | None = None  # mean of the target less the prediction

    @property
    def guarantee(self) -> Guarantee:
        """For the records of the evaluation."""
        return self.ledger.guarantee()

    def __str__(self) -> str:
        score, loss = self.score, "mean squared error" if self.score.what == "variance" else "mean deviance"
        lines = [str(score)]
        if score.loss is not None:
            interval = f"({score.loss_low:.4g} to {score.loss_high:.4g})"
            lines.append(f"{loss}: {score.loss:.4g} {interval}, errors above {score.cut:.3g} cut off")
        lines += [f"{name}: {one}" for name, one in self._estimates().items() if one is not None]
        lines += [f"probability {one.predicted:.2f}: true for {one.observed}" for one in self.calibration]
        return "\n".join([*lines, str(self.guarantee)])

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        parts = {name: None if one is None else one._asdict() for name, one in self._estimates().items()}
        table = [{**one._asdict(), "observed": one.observed._asdict()} for one in self.calibration]
        return {"score": asdict(self.score), **parts, "calibration": table, "guarantee": self.guarantee.to_json()}

    def _estimates(self) -> dict[str, Estimate | None]:
        return {"auc": self.auc, "slope": self.slope, "bias": self.bias}


def evaluate(
    model: FittedModel,
    data: Any,
    *,
    epsilon: float,
    delta: float | str = "auto",
    unit: str = "record",
    weighting: str = "records",
    seed: int | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Evaluation:
    """Score a model on records that it was not fitted to, within an (epsilon, delta) budget for these records.

    Args:
        data: a table with the columns of the model's schema, including the target.
        seed: None takes the noise from the operating system. A seed makes the scores repeatable and *not private*.
        directory: for the ledger.

    >>> from diff2.fitting.fit import fit
    >>> from diff2.tables.schema import Schema
    >>> x = np.linspace(0, 1, 5000)
    >>> schema = Schema.from_arguments(["x"], bounds=[(0, 1)], target_bounds=(0, 4), target="y")
    >>> model = fit({"x": x, "y": 1 + 2 * x}, schema, epsilon=1.0, seed=0)
    >>> found = evaluate(model, {"x": x[::2], "y": 1 + 2 * x[::2]}, epsilon=1.0, seed=1)
    >>> found.score.low > 0.5, round(found.guarantee.epsilon, 3)
    (True, 1.0)
    """
    terms = Terms(epsilon, delta, unit, weighting, seed, directory)
    terms.check(model.schema)
    encoded = encode(data, model.schema, least=1)
    run = opened(encoded, model.schema, terms, {"name": EVALUATION}, leaks=[], settings={"model": model.ledger.model})
    census, session, ledger = run.census, run.session, run.ledger
    prices = {name: session.mu * math.sqrt(share) for name, share in SHARES.items()}
    errors = Errors(model.model, model.schema.target, model.bounds, 0.0)
    errors = Errors(model.model, model.schema.target, model.bounds, _constant(session, prices["constant"], errors))
    score = score_of(session.ask, prices["score"], census.heaviest, errors)
    if isinstance(errors.target, Classes):
        answer = session.ask(ScoreHistogram(errors), prices["calibration"])
        auc = area(answer, census.heaviest) if len(errors.target.values) == 2 else None
        found: dict[str, Any] = {"auc": auc, "calibration": calibration(answer, census.heaviest)}
    else:
        size = _largest_error(score, errors)
        answer = session.ask(Moments(errors, size), prices["calibration"])
        found = slope_and_bias(answer, size, census.heaviest)
    ledger.close()
    if run.directory is not None:
        run.directory.finish()
    return Evaluation(score, ledger, **found)


def _constant(session: Session, mu: float, errors: Errors) -> np.ndarray | float:
    """Return the constant that predicts these records best."""
    if isinstance(errors.target, Classes):
        answer = session.ask(ClassShares(len(errors.target.values)), mu)
        return np.log(np.maximum(answer.value, max(answer.noise_std, 1e-12)))
    centred = TargetMean(*errors.bounds)
    return float(np.clip(centred.middle + session.ask(centred, mu).value[0], *errors.bounds))


def _largest_error(score: Score, errors: Errors) -> float:
    """Return how far from the constant targets usually are; a Poisson deviance is about 4 (sqrt y - sqrt m)^2."""
    cut = score.cut or errors.longest
    if not isinstance(errors.target, Regression):
        cut = cut * math.sqrt(float(errors.constant)) + cut**2 / 4
    return max(min(cut, errors.bounds[1] - errors.bounds[0]), 1e-300)


@dataclass(frozen=True)
class ScoreHistogram:
    """How many records of either label have which log odds."""

    errors: Errors
    purpose: str = "calibration"
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        logs = self.errors.predictions(rows, cache)
        likeliest = np.ones(rows.size, dtype=np.int64) if logs.shape[1] == 2 else logs.argmax(axis=1)
        chance = np.clip(np.exp(logs[np.arange(rows.size), likeliest]), 1e-12, 1 - 1e-12)
        bins = np.searchsorted(LOG_ODDS, np.log(chance / (1 - chance)))
        label = rows.target.astype(np.int64) == likeliest
        return np.bincount(2 * bins + label, weights, 2 * (len(LOG_ODDS) + 1))


def area(answer: Answer, weight: float) -> Estimate:
    """Return the area under the ROC curve from scores by label."""
    false, true = answer.value.reshape(-1, 2).T
    both = false.sum(), true.sum()
    if min(both) <= 3 * answer.noise_std * math.sqrt(len(true)):  # noise hides one of the classes
        return Estimate(0.5, 0.0, 1.0)
    below = (np.cumsum(false) - false / 2) / both[0]
    above = (true.sum() - np.cumsum(true) + true / 2) / both[1]
    value = float(np.clip(true @ below / both[1], 0.0, 1.0))
    noise = answer.noise_std**2 * (
        np.sum((below - value) ** 2) / both[1] ** 2 + np.sum((above - value) ** 2) / both[0] ** 2
    )
    # Hanley and McNeil 1982
    more = value / (2 - value) - value**2, 2 * value**2 / (1 + value) - value**2
    sampling = weight * (more[0] / both[1] + more[1] / both[0]) + weight**2 / (both[0] * both[1])
    half = NORMAL * math.sqrt(float(noise) + max(float(sampling), 0.0))
    return Estimate(value, max(value - half, 0.0), min(value + half, 1.0))


def calibration(answer: Answer, weight: float) -> tuple[Calibrated, ...]:
    """Return the share of true labels for each group of neighbouring scores that holds enough records."""
    counts, found = answer.value.reshape(-1, 2), []
    middles = 1 / (1 + np.exp(-np.concatenate([[-8.25], LOG_ODDS[:-1] + 0.25, [8.25]])))
    start, least = 0, max(FEWEST, 6 * answer.noise_std)
    for end in range(1, len(counts) + 1):
        group = counts[start:end]
        total = float(group.sum())
        if total < least * math.sqrt(end - start):
            continue
        masses = np.maximum(group.sum(axis=1), 0.0)
        share = float(np.clip(group[:, 1].sum() / total, 0.0, 1.0))
        noise = answer.noise_std**2 * (end - start) * ((1 - share) ** 2 + share**2) / total**2
        half = NORMAL * math.sqrt(noise + weight * share * (1 - share) / total + (weight / total) ** 2)
        observed = Estimate(share, max(share - half, 0.0), min(share + half, 1.0))
        found.append(Calibrated(float(masses @ middles[start:end] / masses.sum()), observed, total))
        start = end
    return tuple(found)


@dataclass(frozen=True)
class Moments:
    """Sums of p y, p^2 and y - p; p and y within one."""

    errors: Errors
    size: float
    purpose: str = "calibration"
    longest: float = math.sqrt(3.0)
    diameter: float = 3.0

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        constant = float(self.errors.constant)
        p = np.clip((self.errors.predictions(rows, cache) - constant) / self.size, -1.0, 1.0)
        y = np.clip((np.clip(rows.target, *self.errors.bounds) - constant) / self.size, -1.0, 1.0)
        return weights @ np.stack([p * y, p * p, np.clip(y - p, -1.0, 1.0)], axis=1)


def slope_and_bias(answer: Answer, size: float, weight: float) -> dict[str, Estimate]:
    """Return the slope of the target on the prediction, and the mean of their difference."""
    product, square, rest = (float(one) for one in answer.value)
    std = math.hypot(answer.noise_std, math.sqrt(weight * max(square, 0.0)))
    half = NORMAL * math.hypot(answer.noise_std, math.sqrt(weight))
    found = {"bias": Estimate(rest * size, (rest - half) * size, (rest + half) * size)}
    if square > 3 * answer.noise_std:
        slope = product / square
        half = NORMAL * math.hypot(std, slope * answer.noise_std) / square
        found["slope"] = Estimate(slope, slope - half, slope + half)
    return found
