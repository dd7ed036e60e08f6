r"""How much a model explains, from two releases on records.

A record's *deviance* is its squared error, twice its log loss, or its Poisson deviance; :math:`e^2` under the model and
:math:`t^2` under the constant that predicts best, which was released (the mean, or the shares of the classes). The
share of the deviance that is explained, for a regression :math:`R^2`, is :math:`1 - \sum e^2 / \sum t^2`.

Errors have no useful bound, so a histogram of e and of t comes first: two counts move, which costs the distance 2. It
tells a size c above which no errors stand out of the noise. Then the sums of :math:`\min(e, c)^2 / c^2` and of t alike
are released, for classes also how many records are predicted right and how many wrong: distance :math:`\sqrt 2`, or 2.
Errors beyond c count as c; if few records with huge errors decide, the share is that of all others.

A model may be anybody's, and its outputs anything, for one record alone: they are made finite first. So each record's
part is within its bounds, and the guarantee is for these records whoever made the model.

Intervals (95 %) account for the noise and, by the fourth moments that the histogram shows, for the sampling of records.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..tables.kinds import LARGEST, Classes, Counts, Regression, Target
from ..tables.rows import Rows
from .asking import Ask
from .bounds import standing_out
from .counts import expected_counts
from .linear import half_octaves
from .second_moment import ROOT

SIZE_BINS = 40
HISTOGRAM_SHARE = 0.25
NORMAL = 1.96  # of 95 %
HALF = 0.5
LARGEST_LOSS = 30.0  # log loss of a class that the model thinks impossible
FAINT = 1e-6  # the smallest mean of counts


@dataclass(frozen=True)
class Score:
    """A private score with its interval. ``str()`` gives the sentence."""

    share: float  # of the deviance that is explained; of a regression: R^2
    low: float
    high: float
    what: str  # "variance" or "deviance"
    constant: str  # what it is compared with
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    loss: float | None = None  # mean deviance under the model, of errors cut off
    loss_low: float | None = None
    loss_high: float | None = None
    cut: float | None = None  # where errors are cut off

    @property
    def worthless(self) -> bool:
        """Whether the model cannot be told from a constant, though a model that explains half could be."""
        return self.low <= 0 and not self.hidden

    @property
    def hidden(self) -> bool:
        """Whether noise hides how good the model is: the interval reaches from nothing to half of all."""
        return self.low <= 0 and self.high >= HALF

    def __str__(self) -> str:
        found = f"explains about {self.share:.2f} of the {self.what} ({self.low:.2f} to {self.high:.2f})"
        if self.accuracy is not None:
            found += f", accuracy about {self.accuracy:.3f} ({self.accuracy_low:.3f} to {self.accuracy_high:.3f})"
        if self.worthless:
            return f"worthless: not distinguishable from predicting {self.constant}; {found}"
        if self.hidden:
            return f"noise hides how good it is: between {self.low:.2f} and {self.high:.2f} of the {self.what}"
        return found

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Errors:
    """The errors of a model and of a constant: roots of the records' deviances."""

    model: Any  # gives outputs
    target: Target
    bounds: tuple[float, float]
    constant: np.ndarray | float  # a number, or the logarithms of the classes' shares
    blur: float = 0.0  # deviation of the noise in a number: a variance like this is no variance of the target

    @property
    def longest(self) -> float:
        """A size that all errors are below, or at least those that are ordinary."""
        if isinstance(self.target, Regression):
            return self.bounds[1] - self.bounds[0]
        if isinstance(self.target, Classes):
            return math.sqrt(2 * LARGEST_LOSS)
        return 4 * math.sqrt(self.bounds[1] + 1)

    def predictions(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return numbers within the bounds, or logarithms of probabilities, finite whatever the model gives."""
        with np.errstate(all="ignore"):  # a model that somebody else made may overflow, for some records only
            outputs = finite(self.model.outputs(rows, cache))
            if isinstance(self.target, Classes):
                return log_shares(outputs)
            found = expected_counts(self.model, outputs) if isinstance(self.target, Counts) else outputs
            return np.clip(finite(found), *self.bounds)

    def of(self, rows: Rows, cache: dict[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, 2) errors, and predictions."""
        found = self.predictions(rows, cache)
        if isinstance(self.target, Classes):
            place = np.arange(rows.size), rows.target.astype(np.int64)
            losses = np.stack([-found[place], -log_shares(np.atleast_2d(self.constant))[0][place[1]]], axis=1)
            return np.sqrt(2 * np.clip(losses, 0.0, LARGEST_LOSS)), found
        wanted = np.clip(rows.target, *self.bounds)
        both = np.stack([found, np.full(rows.size, float(self.constant))], axis=1)
        if isinstance(self.target, Counts):
            return np.sqrt(poisson_deviance(wanted[:, None], both)), found
        return np.abs(wanted[:, None] - both), found


def finite(outputs: np.ndarray) -> np.ndarray:
    """Return numbers of at most 1e100; what is none becomes 0."""
    return np.clip(np.nan_to_num(outputs), -LARGEST, LARGEST)


def log_shares(outputs: np.ndarray) -> np.ndarray:
    """Return logarithms of probabilities."""
    outputs = outputs - outputs.max(axis=1, keepdims=True)
    return outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))


def poisson_deviance(wanted: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return 2 (y log(y / m) - y + m)."""
    mean = np.maximum(predicted, FAINT)
    return np.maximum(2 * (wanted * np.log(np.maximum(wanted, FAINT) / mean) - wanted + mean), 0.0)


@dataclass(frozen=True)
class ErrorSizes:
    """How many errors have which size, of the model and of the constant: one count of each moves."""

    errors: Errors
    edges: np.ndarray
    purpose: str = "score"
    longest: float = ROOT
    diameter: float = 2.0

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        sizes = self.errors.of(rows, cache)[0]
        bins = np.searchsorted(self.edges, sizes)
        return np.concatenate([np.bincount(bins[:, j], weights, len(self.edges) + 1) for j in range(2)])


@dataclass(frozen=True)
class CutDeviances:
    """Sums of squared errors, cut off, in units of the cut; for classes also right and wrong ones."""

    errors: Errors
    cut: float
    purpose: str = "score"

    @property
    def classes(self) -> bool:
        return isinstance(self.errors.target, Classes)

    @property
    def longest(self) -> float:
        return math.sqrt(3.0) if self.classes else ROOT

    @property
    def diameter(self) -> float:
        return 2.0 if self.classes else ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        sizes, found = self.errors.of(rows, cache)
        sums = weights @ np.square(np.minimum(sizes / self.cut, 1.0))
        if not self.classes:
            return sums
        right = weights @ (found.argmax(axis=1) == rows.target)
        return np.concatenate([sums, [right, weights.sum() - right]])


def score_of(ask: Ask, mu: float, weight: float, errors: Errors) -> Score:
    """Score a model on the records that answer, by releases that cost ``mu`` together."""
    edges = half_octaves(errors.longest, SIZE_BINS)
    answer = ask(ErrorSizes(errors, edges), mu * math.sqrt(HISTOGRAM_SHARE))
    cut, fourth = _cut(np.split(answer.value, 2), edges, answer.noise_std)
    answer = ask(CutDeviances(errors, cut), mu * math.sqrt(1 - HISTOGRAM_SHARE))
    model, constant = answer.value[:2]
    variances = answer.noise_std**2 + weight * np.maximum(fourth, np.square(answer.value[:2]))
    least = 2 * math.sqrt(variances[1]) + (3 * errors.blur / cut) ** 2
    words = {
        "what": "variance" if isinstance(errors.target, Regression) else "deviance",
        "constant": "the shares of the classes" if isinstance(errors.target, Classes) else "the mean",
    }
    if constant <= least:  # noise hides whether there is anything to explain
        share, half = 0.0, 1.0
    else:
        ratio = max(float(model / constant), 0.0)
        share, half = 1 - ratio, NORMAL * math.sqrt(variances[0] + ratio**2 * variances[1]) / float(constant)
    numbers: dict[str, float | None] = {}
    if len(answer.value) == 4:
        numbers = _interval("accuracy", *_accuracy(answer.value[2:], answer.noise_std, weight), most=1.0)
    numbers |= _interval("loss", float(model) * cut**2, NORMAL * math.sqrt(variances[0]) * cut**2)
    return Score(share, max(share - half, -1.0), min(share + half, 1.0), cut=cut, **words, **numbers)  # type: ignore[arg-type]


def _cut(sizes: list[np.ndarray], edges: np.ndarray, noise_std: float) -> tuple[float, np.ndarray]:
    """Return where errors are cut off, and the mean fourth powers of errors in units of that."""
    spans = [standing_out(part, noise_std, 2) for part in sizes]
    last = max((span[1] for span in spans if span is not None), default=len(edges) - 1)
    cut = float(edges[min(last, len(edges) - 1)])
    upper = np.minimum(np.append(edges, edges[-1]) / cut, 1.0)
    fourth = [np.where(part > 2 * noise_std, part, 0.0) @ upper**4 for part in sizes]
    return cut, np.array(fourth)


def _accuracy(counts: np.ndarray, noise_std: float, weight: float) -> tuple[float, float]:
    """Return the share of right ones, and half the width of its interval."""
    total = float(counts.sum())
    if total <= 3 * noise_std:
        return 0.5, 0.5
    share = float(np.clip(counts[0] / total, 0, 1))
    noise = noise_std**2 * ((1 - share) ** 2 + share**2) / total**2
    return share, NORMAL * math.sqrt(noise + weight * share * (1 - share) / total + weight**2)


def _interval(name: str, value: float, half: float, most: float = math.inf) -> dict[str, float | None]:
    return {name: max(value, 0.0), f"{name}_low": max(value - half, 0.0), f"{name}_high": min(value + half, most)}
