r"""RF-M: squared error on random features, preconditioned by a released Gram matrix.

Shares of the budget (of mu^2): histograms .05, whitening .05, mean of the target .005, Gram matrix .20, radii .02,
descent .675. What noise would hide is not asked for: histograms, whitening, histograms of gradients (the mean
size of residuals is asked for instead), and for few records random features. Public numbers decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .asking import Answer, Ask, Choose
from .columns import bin_edges, column_of, histograms_seen, often_missing, uniform_column
from .linear import LinearModel, half_octaves, radius_from
from .preparation import Preparation, Projections, whitening_of, whitening_seen
from .second_moment import as_matrix, noise_norm
from .slope import Slope
from .statistics import (
    FREE,
    ClippedDescent,
    ColumnHistograms,
    Design,
    Gram,
    MeanResidual,
    NormHistogram,
    Residuals,
    TargetMean,
    WhiteningMoment,
)
from .tree_model import TreeModel
from .trees import TREE_SHARE, Leafing, tree_count, with_trees

SHARES = {"histogram": 0.05, "whitening": 0.05, "target": 0.005, "gram": 0.20, "norms": 0.02, "descent": 0.675}
LOOKS = (0, 1, 2, 4, 8, 16)  # rounds at which the radius is found anew
NORM_BINS = 30
MAX_ROUNDS = 160
MOST_FOR_MEAN = 0.5
LINEAR_BELOW = 600  # records times mu
MEAN_RESIDUAL_SHARE = 0.05


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


def prepared(
    ask: Ask, mu: float, weight: float, preparation: Preparation, bounds: np.ndarray
) -> tuple[Preparation, float]:
    """Return the preparation with columns and whitening from releases, and their share of the budget."""
    edges, spent = tuple(bin_edges(low, high) for low, high in bounds), 0.0
    if not edges:
        return preparation, spent
    if histograms_seen(len(edges), mu * math.sqrt(SHARES["histogram"]), weight):
        answer = ask(ColumnHistograms(edges), mu * math.sqrt(SHARES["histogram"]))
        spent += SHARES["histogram"]
        parts = np.split(answer.value, np.cumsum([len(one) - 1 for one in edges])[:-1])
        columns = tuple(column_of(one, part, answer.noise_std) for one, part in zip(edges, parts, strict=True))
        nullable = tuple(j for j in preparation.nullable if often_missing(parts[j], answer.noise_std))
    else:
        columns, nullable = tuple(uniform_column(low, high) for low, high in bounds), ()
    preparation = replace(preparation, columns=columns, nullable=nullable)
    if whitening_seen(len(edges), mu * math.sqrt(SHARES["whitening"]), weight):
        moment = ask(WhiteningMoment(preparation), mu * math.sqrt(SHARES["whitening"]))
        spent += SHARES["whitening"]
        preparation = replace(preparation, whitening=whitening_of(as_matrix(moment.value), moment.noise_std))
    return preparation, spent


def fit_regression(
    ask: Ask,
    choose: Choose | None,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    target: tuple[float, float],
    rng: np.random.Generator,
) -> LinearModel | TreeModel:
    """Fit by releases that cost ``mu`` together; ``weight`` is that of the heaviest unit."""
    trees = 0 if choose is None else tree_count(mu / weight)
    price, mu = mu * math.sqrt(TREE_SHARE * trees), mu * math.sqrt(1 - TREE_SHARE * trees)
    share = share_of_mean(mu, weight)
    mean = released_mean(ask, mu * math.sqrt(share), target)
    mu *= math.sqrt((1 - share) / (1 - SHARES["target"]))
    descent = descent_of(ask, mu, weight, *prepared(ask, mu, weight, preparation, bounds), rng)
    longest = max(target[1] - mean, mean - target[0])
    theta = descent.run(ask, lambda theta: Residuals(descent.design, theta, np.array(mean), target), longest)
    model = LinearModel(descent.design, theta, mean)
    if choose is None or not trees:
        return model
    return with_trees(ask, choose, price, trees, model, Leafing(target), rng)


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


def feature_count(signal: float) -> int:
    """Return how many random features are worth their noise, from records times mu; none for few: a linear model.

    >>> [feature_count(signal) for signal in (200, 800, 5000, 9000)]
    [0, 100, 200, 300]
    """
    return int(min(max(min(signal / 8, 200), signal / 30), 400)) if signal > LINEAR_BELOW else 0


def descent_of(
    ask: Ask, mu: float, weight: float, preparation: Preparation, spent: float, rng: np.random.Generator
) -> Descent:
    """Return features whose second moment is about the identity, from a released Gram matrix.

    Args:
        spent: share of mu^2 that the preparation has cost.
    """
    features = feature_count(mu / weight)
    preparation = replace(preparation, projections=projections(preparation, features, rng))
    linear = 0.5 if features else FREE / math.sqrt(1.5)
    design = Design(preparation, linear / math.sqrt(preparation.original), 1 / math.sqrt(max(1, features)))
    gram = ask(Gram(design), mu * math.sqrt(SHARES["gram"]))
    whitener = shrunk(as_matrix(gram.value), gram.noise_std)
    looks, norms = radius_looks(mu / weight)
    left = (1 - SHARES["target"] - spent - SHARES["gram"] - norms) * mu**2
    allowed = left / (4.84 * weight**2)
    while int(0.2 * allowed / whitener.effective_dimension**2) < 8 and whitener.ridge <= 1:
        whitener = whitener._replace(ridge=whitener.ridge * 1.3)
    allowed /= whitener.effective_dimension**2
    rounds = max(1, min(MAX_ROUNDS, max(8, int(0.008 * allowed)), int(0.2 * allowed)))
    return Descent(replace(design, matrix=whitener.matrix), whitener, rounds, left, looks, norms * mu**2)


def radius_looks(signal: float) -> tuple[int, float]:
    """Return how many histograms of gradients noise leaves readable, and their share; none: the mean residual.

    Noise is to have a deviation of at most .05 in a bin.

    >>> [radius_looks(signal)[0] for signal in (100, 300, 5000)]
    [0, 2, 6]
    """
    looks = min(len(LOOKS), int(SHARES["norms"] * (0.05 * signal) ** 2 / 2))
    return looks, SHARES["norms"] if looks else MEAN_RESIDUAL_SHARE


class Descent(NamedTuple):
    """Descent with clipped gradients, in coordinates in which the loss is about round."""

    design: Design
    whitener: Whitener
    rounds: int
    left: float  # of mu^2, for the descent
    looks: int  # rounds at which the radius is found
    norms: float  # of mu^2, for that

    def run(self, ask: Ask, residuals_at: Callable[[np.ndarray], Residuals], longest: float) -> np.ndarray:
        """Return the mean of the last half of the iterates; the first residuals are at most ``longest``."""
        whitener, rounds = self.whitener, self.rounds
        looks = [round for round in LOOKS[: self.looks] if round < rounds]
        # The longest gradient of the first round: the longest residual times the longest features.
        edges = half_octaves(longest / math.sqrt(whitener.ridge + float(whitener.values.min())), NORM_BINS)
        radius, theta, total = float(edges[-1]), np.zeros(len(whitener.values)), np.zeros(len(whitener.values))
        step, slope, averaged = CautiousStep(whitener.safe_step), Slope(whitener.curvature), 0
        if not looks:
            mean = ask(MeanResidual(residuals_at(theta), longest), math.sqrt(self.norms))
            size = max(float(mean.value[0]), mean.noise_std)
            radius = min(radius, 1.5 * size * math.sqrt(whitener.effective_dimension))
        for round in range(rounds):
            residuals = residuals_at(theta)
            if round in looks:
                counts = ask(NormHistogram(residuals, edges), math.sqrt(self.norms / len(looks)))
                radius = min(radius, radius_from(counts.value, edges, counts.noise_std))
            answer = ask(ClippedDescent(residuals, radius), math.sqrt(self.left / rounds))
            if averaged:
                slope.see(total / averaged, theta, answer.value)
            theta = theta + step.after(answer) * answer.value
            if round >= rounds // 2:
                total, averaged = total + theta, averaged + 1
        return total / averaged * slope.value


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
