r"""RF-M: squared error on random features, preconditioned by a released Gram matrix.

Shares of the budget (of mu^2): histograms .05, whitening .05, mean of the target .005, Gram matrix .20, radii .02,
descent .675.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .asking import Answer, Ask
from .columns import bin_edges, column_of, often_missing
from .linear import LinearModel, half_octaves, radius_from
from .preparation import Preparation, Projections, whitening_of
from .second_moment import as_matrix, noise_norm
from .statistics import (
    ClippedDescent,
    ColumnHistograms,
    Design,
    Gram,
    NormHistogram,
    Residuals,
    TargetMean,
    WhiteningMoment,
)

SHARES = {"histogram": 0.05, "whitening": 0.05, "target": 0.005, "gram": 0.20, "norms": 0.02, "descent": 0.675}
LOOKS = (0, 1, 2, 4, 8, 16)  # rounds at which the radius is found anew
NORM_BINS = 30
MAX_ROUNDS = 160
MOST_FOR_MEAN = 0.5


class Whitener(NamedTuple):
    """The eigenvectors of a Gram matrix, with eigenvalues freed of noise, and the ridge."""

    values: np.ndarray
    vectors: np.ndarray
    ridge: float
    likely: np.ndarray  # eigenvalues without noise, those that it hides by their mean
    largest: float  # bound of the features' second moment after the matrix, if the noise has the norm it should

    @property
    def safe_step(self) -> float:
        """A step for which descent cannot oscillate with growing length."""
        return min(1.0, 1.9 / self.largest)

    @property
    def matrix(self) -> np.ndarray:
        return self.vectors / np.sqrt(self.values + self.ridge)

    @property
    def curvature(self) -> np.ndarray:
        """The second moment of the features after the matrix, about."""
        return self.likely / (self.values + self.ridge)

    @property
    def effective_dimension(self) -> float:
        return float(np.sum(self.values / (self.values + self.ridge)))


def shrunk(moment: np.ndarray, noise_std: float) -> Whitener:
    """Return the eigenvalues that a matrix has below its noise."""
    values, vectors = np.linalg.eigh(moment)
    edge = noise_norm(len(moment), noise_std)
    kept = values > edge
    cleaned = (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2
    smallest = float(cleaned[kept].min()) if kept.any() else edge
    hidden = max(float(values.sum() - cleaned[kept].sum()), 0.0) / max(1, int((~kept).sum()))
    likely = np.where(kept, cleaned, hidden)
    cleaned, ridge = np.where(kept, cleaned, 0.1 * min(smallest, edge / 2)), edge / 2
    # The true matrix is at most the noisy one plus the norm of the noise; a larger ridge makes this smaller.
    largest = float(np.max((np.maximum(values, 0.0) + edge) / (cleaned + ridge)))
    return Whitener(cleaned, vectors, ridge, likely, largest)


def projections(preparation: Preparation, features: int, rng: np.random.Generator) -> Projections:
    """Draw public directions: half on all inputs, a fifth on one column of scores, the rest on two."""
    p, columns = preparation.original, len(preparation.columns)
    inputs = rng.standard_normal((preparation.width, features)) / (p / 3)
    scores = np.zeros((columns, features))
    starts = np.cumsum([columns, *preparation.categories])
    for j in range(features // 2, features):
        one = j < features // 2 + features // 5
        inputs[:, j] = 0.0
        chosen = rng.choice(p, size=min(p, 1 if one else 2), replace=False)
        scale = 1 / 0.7 if one else 1.0
        for c in chosen:
            if c < columns:
                scores[c, j] = rng.standard_normal() * scale
            else:
                block = slice(starts[c - columns], starts[c - columns + 1])
                inputs[block, j] = rng.standard_normal(block.stop - block.start) * scale
    return Projections(inputs, scores, rng.uniform(0, 2 * math.pi, features))


def prepared(ask: Ask, mu: float, preparation: Preparation, bounds: np.ndarray) -> Preparation:
    """Return the preparation with columns and whitening from releases."""
    edges = tuple(bin_edges(low, high) for low, high in bounds)
    if not edges:
        return preparation
    answer = ask(ColumnHistograms(edges), mu * math.sqrt(SHARES["histogram"]))
    splits = np.cumsum([len(one) - 1 for one in edges])[:-1]
    parts = np.split(answer.value, splits)
    columns = tuple(column_of(one, part, answer.noise_std) for one, part in zip(edges, parts, strict=True))
    nullable = tuple(j for j in preparation.nullable if often_missing(parts[j], answer.noise_std))
    preparation = replace(preparation, columns=columns, nullable=nullable)
    moment = ask(WhiteningMoment(preparation), mu * math.sqrt(SHARES["whitening"]))
    return replace(preparation, whitening=whitening_of(as_matrix(moment.value), moment.noise_std))


def fit_regression(
    ask: Ask,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    target: tuple[float, float],
    rng: np.random.Generator,
) -> LinearModel:
    """Fit by releases that cost ``mu`` together; ``weight`` is that of the heaviest unit."""
    share = share_of_mean(mu, weight)
    mean = released_mean(ask, mu * math.sqrt(share), target)
    mu *= math.sqrt((1 - share) / (1 - SHARES["target"]))
    preparation = prepared(ask, mu, preparation, bounds)
    descent = descent_of(ask, mu, weight, preparation, rng)
    theta = descent.run(
        ask, lambda theta: Residuals(descent.design, theta, np.array(mean), target), target[1] - target[0]
    )
    return LinearModel(descent.design, theta, mean)


def share_of_mean(mu: float, weight: float) -> float:
    """Return the share of mu^2 for the mean of the target: that of the recipe, or more where there are few records.

    Noise in the mean is to cost at most 2 % of the variance of a target whose bounds are eight deviations apart.
    """
    return min(MOST_FOR_MEAN, max(SHARES["target"], 8**2 * (weight / mu) ** 2 / 0.02))


def released_mean(ask: Ask, mu: float, target: tuple[float, float]) -> float:
    """Return the mean of the target, with noise, within its bounds."""
    centred = TargetMean(*target)
    offset = ask(centred, mu).value[0]
    return float(np.clip(centred.middle + offset, *target))


def descent_of(ask: Ask, mu: float, weight: float, preparation: Preparation, rng: np.random.Generator) -> Descent:
    """Return features whose second moment is about the identity, from a released Gram matrix."""
    features = int(np.clip(mu / weight / 30, 200, 400))
    preparation = replace(preparation, projections=projections(preparation, features, rng))
    design = Design(preparation, 1 / (2 * math.sqrt(preparation.original)), 1 / math.sqrt(features))
    gram = ask(Gram(design), mu * math.sqrt(SHARES["gram"]))
    whitener = shrunk(as_matrix(gram.value), gram.noise_std)
    allowed = SHARES["descent"] * mu**2 / (4.84 * weight**2)
    while int(0.2 * allowed / whitener.effective_dimension**2) < 8 and whitener.ridge <= 1:
        whitener = whitener._replace(ridge=whitener.ridge * 1.3)
    allowed /= whitener.effective_dimension**2
    rounds = max(1, min(MAX_ROUNDS, max(8, int(0.008 * allowed)), int(0.2 * allowed)))
    return Descent(mu, replace(design, matrix=whitener.matrix), whitener, rounds)


class Descent(NamedTuple):
    """Descent with clipped gradients, in coordinates in which the loss is about round."""

    mu: float
    design: Design
    whitener: Whitener
    rounds: int

    def run(self, ask: Ask, residuals_at: Callable[[np.ndarray], Residuals], longest: float) -> np.ndarray:
        """Return the mean of the last half of the iterates; the first residuals are at most ``longest``."""
        mu, whitener, rounds = self.mu, self.whitener, self.rounds
        looks = [round for round in LOOKS if round < rounds]
        # The longest gradient of the first round: the longest residual times the longest features.
        edges = half_octaves(longest / math.sqrt(whitener.ridge + float(whitener.values.min())), NORM_BINS)
        radius, theta, total = float(edges[-1]), np.zeros(len(whitener.values)), np.zeros(len(whitener.values))
        step, slope, averaged = CautiousStep(whitener.safe_step), Slope(whitener.curvature), 0
        for round in range(rounds):
            residuals = residuals_at(theta)
            if round in looks:
                counts = ask(NormHistogram(residuals, edges), mu * math.sqrt(SHARES["norms"] / len(looks)))
                radius = min(radius, radius_from(counts.value, edges, counts.noise_std))
            answer = ask(ClippedDescent(residuals, radius), mu * math.sqrt(SHARES["descent"] / rounds))
            if averaged:
                slope.see(total / averaged, theta, answer)
            theta = theta + step.after(answer) * answer.value
            if round >= rounds // 2:
                total, averaged = total + theta, averaged + 1
        return total / averaged * slope.value


class Slope:
    r"""How far the mean of the iterates should be drawn back to zero, from descent directions that are released anyway.

    With p the predictions of the mean iterate less the mean, and y the target less the mean, the best multiple of p is
    :math:`1 + E[(y - p) p] / E[p^2]`. The descent direction at :math:`\bar\theta` is :math:`E[(y - p) \psi]`, so the
    numerator is its product with :math:`\bar\theta`. The noise of a direction is independent of all iterates before it:
    products with an earlier mean are right on average. Directions are asked at the current iterate; what they would be
    at the mean one follows from the curvature.
    """

    def __init__(self, curvature: np.ndarray):
        self._curvature = curvature
        self._products: list[float] = []
        self._squares: list[float] = []
        self._noise: list[float] = []

    def see(self, mean: np.ndarray, current: np.ndarray, direction: Answer) -> None:
        """Take in a direction at ``current``, released after the iterates that ``mean`` is of."""
        there = direction.value + self._curvature * (current - mean)
        self._products.append(float(mean @ there))
        self._noise.append(direction.noise_std * float(np.linalg.norm(mean)))
        self._squares.append(float(self._curvature @ mean**2))

    @property
    def value(self) -> float:
        """Between 0, where noise is all that iterates show, and 1."""
        if not self._products:
            return 1.0
        product = float(np.sum(self._products)) + math.hypot(*self._noise)  # one deviation is the benefit of the doubt
        return float(np.clip(1 + product / max(float(np.sum(self._squares)), 1e-300), 0.0, 1.0))


class CautiousStep:
    r"""Step one, until two descent directions in a row point against each other by more than noise explains.

    Where the second moment of the features exceeds 2 in a direction, steps of one go back and forth along it with
    growing length: successive directions then have a negative product. From then on the step is the safe one, for
    which no direction grows.

    *Why.* Clipping :math:`r \psi` to the radius C clips r to :math:`C / |\psi|`: the clipped sum is minus the gradient
    of a sum F of Huber losses, convex, whose Hessian is at most the second moment of :math:`\psi`, hence at most L =
    ``largest`` if the noise of the Gram matrix has the norm it should. For a step a <= 2 / L the map
    :math:`\theta - a \nabla F` brings no two points further apart (Baillon and Haddad 1977), so with noise
    :math:`\xi_j` in round j

    .. math::
        |\theta_k - \theta^*| \le |\theta_0 - \theta^*| + a \sum_{j<k} |\xi_j|.

    Whatever the noise was, and before the step is a safe one, a round moves :math:`\theta` by at most C and its noise:
    iterates grow no faster than by that sum, never geometrically. Trees change an output by at most 0.7 of a radius.
    """

    def __init__(self, safe: float):
        self._safe = safe
        self._step = 1.0
        self._before: Answer | None = None

    def after(self, answer: Answer) -> float:
        """Return the length of the step along this direction."""
        if self._before is not None:
            product = float(self._before.value @ answer.value)
            noise = self._before.noise_std * answer.noise_std * math.sqrt(len(answer.value))
            noise += (self._before.noise_std + answer.noise_std) * float(np.linalg.norm(answer.value))
            if product < -3 * noise:
                self._step = min(self._step, self._safe)
        self._before = answer
        return self._step
