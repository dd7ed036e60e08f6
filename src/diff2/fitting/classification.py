r"""RF-C: the cross entropy on random features, preconditioned by a released Gram matrix.

Shares of the budget (of mu^2): shares of the classes .01 (few records: up to .1), histograms .05, whitening .05, Gram
matrix .20, descent the rest. Histograms and whitening are left out where noise would hide them. The radius is public:
it follows from the shares of the classes and the effective dimension.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .asking import Ask, Choose
from .columns import Column, histograms_seen, often_missing, uniform_column
from .linear import LinearModel
from .preparation import Preparation, Projections, whitening_of, whitening_seen
from .second_moment import ROOT, as_matrix, noise_norm
from .shrinking import Shrinkage
from .statistics import (
    CONSTANT,
    FREE,
    ClassShares,
    ClippedDescent,
    ColumnHistograms,
    Design,
    Gram,
    Residuals,
    WhiteningMoment,
)
from .tree_model import TreeModel
from .trees import TREE_SHARE, Leafing, questions_of, tree_count, with_trees

SHARES = {"target": 0.01, "histogram": 0.05, "whitening": 0.05, "gram": 0.20}
MAX_ROUNDS = 32
FEW_ROUNDS = 6
MAX_FEATURES = 200
LINEAR_BELOW = 600  # records times mu
CLASS_SIGNAL = 0.2  # of that of a regression, for trees
TREES_FROM = 1200  # records times mu, of that


def fit_classification(
    ask: Ask,
    choose: Choose | None,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    classes: int,
    rng: np.random.Generator,
) -> LinearModel | TreeModel:
    """Fit by releases that cost ``mu`` together; ``weight`` is that of the heaviest unit."""
    share = share_of_prior(mu, weight)
    answer = ask(ClassShares(classes), mu * math.sqrt(share))
    mu *= math.sqrt((1 - share) / (1 - SHARES["target"]))
    prior = np.maximum(answer.value, max(answer.noise_std, weight))
    prior /= prior.sum()
    trees = 0 if choose is None else class_trees(mu / weight, prior)
    model = _linear(ask, mu * math.sqrt(1 - TREE_SHARE * trees), weight, preparation, bounds, prior, rng)
    if choose is None or not trees:
        return model
    questions, step = questions_of(CLASS_SIGNAL * mu / weight), min(1 / prior_curvature(prior), 8.0)
    leafing = Leafing(questions, radius=public_radius(prior), step=step, classes=classes)
    price = mu * math.sqrt((1 - SHARES["target"]) * TREE_SHARE * trees)
    return with_trees(ask, choose, price, trees, model, leafing, rng)


def share_of_prior(mu: float, weight: float) -> float:
    """Return the share of mu^2 for the shares of the classes: that of the recipe, or more where there are few records.

    Their noise is to have a deviation of at most .05, for at most a tenth of the budget.
    """
    return min(0.1, max(SHARES["target"], (ROOT * weight / (0.05 * mu)) ** 2))


def class_trees(signal: float, prior: np.ndarray) -> int:
    """Return how many trees are worth their noise: fewer than for numbers where a class is rare or classes are many.

    >>> [class_trees(20_000, prior) for prior in (np.array([0.5, 0.5]), np.array([0.04, 0.96]), np.full(26, 1 / 26))]
    [15, 0, 0]
    """
    spread = math.sqrt(1 - float(prior @ prior)) / public_radius(prior)
    signal *= CLASS_SIGNAL * min(1.0, spread) / math.sqrt(len(prior) - 1)
    return tree_count(signal) if signal > TREES_FROM else 0


def _linear(
    ask: Ask,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    prior: np.ndarray,
    rng: np.random.Generator,
) -> LinearModel:
    """Return logistic regression on random features."""
    classes = len(prior)
    preparation, spent = _prepared(ask, mu, weight, preparation, bounds)
    features = feature_count(mu / weight)
    preparation = replace(preparation, projections=_projections(preparation, features, rng))
    design = Design(preparation, FREE / math.sqrt(2 * preparation.original), FREE / math.sqrt(max(1, features)))
    gram = ask(Gram(design), mu * math.sqrt(SHARES["gram"]))
    centred = Centred.of(as_matrix(gram.value), gram.noise_std)
    left = (1 - SHARES["target"] - spent - SHARES["gram"]) * mu**2
    while centred.rounds(left, weight, classes) < 8 and centred.ridge <= FREE**2:
        centred = centred._replace(ridge=centred.ridge * 1.3)
    rounds, step = _pace(centred, prior, left, weight)
    design = replace(design, matrix=centred.matrix, centre=centred.mean)
    radius = public_radius(prior) * math.sqrt(centred.dimension)
    theta, offset = np.zeros((len(centred.matrix), classes)), np.log(prior)
    total, first = np.zeros_like(theta), rounds // 2
    curvature = np.concatenate([[1.0], centred.curvature]) * prior_curvature(prior)
    shrinkage, before = Shrinkage(np.repeat(curvature, classes), doubt=1.0), np.zeros_like(theta)
    for round in range(rounds):
        answer = ask(ClippedDescent(Residuals(design, theta, offset), radius), math.sqrt(left / rounds))
        direction = answer.value.reshape(theta.shape)
        direction = direction - direction.mean(axis=1, keepdims=True)
        if round >= max(1, first if rounds >= FEW_ROUNDS else 1):
            shrinkage.see((before / round).ravel(), theta.ravel(), direction.ravel(), answer.noise_std)
        theta = theta + step * direction
        before += theta
        if round >= first:
            total += theta / (rounds - first)
    return LinearModel(design, total * shrinkage.factors().reshape(total.shape), offset)


def _prepared(
    ask: Ask, mu: float, weight: float, preparation: Preparation, bounds: np.ndarray
) -> tuple[Preparation, float]:
    """Return the preparation with columns and whitening from releases, and their share of the budget."""
    numeric, spent = len(bounds), 0.0
    if not numeric:
        return preparation, spent
    if histograms_seen(numeric, mu * math.sqrt(SHARES["histogram"]), weight):
        edges = tuple(class_edges(low, high) for low, high in bounds)
        answer = ask(ColumnHistograms(edges), mu * math.sqrt(SHARES["histogram"]))
        spent += SHARES["histogram"]
        parts = np.split(answer.value, np.cumsum([len(one) - 1 for one in edges])[:-1])
        columns = tuple(score_column(one, part) for one, part in zip(edges, parts, strict=True))
        nullable = tuple(j for j in preparation.nullable if often_missing(parts[j], answer.noise_std))
        preparation = replace(preparation, columns=columns, nullable=nullable, whiten_scores=True)
    else:
        columns = tuple(uniform_column(low, high) for low, high in bounds)
        preparation = replace(preparation, columns=columns, nullable=())
    if whitening_seen(numeric, mu * math.sqrt(SHARES["whitening"]), weight):
        moment = ask(WhiteningMoment(preparation), mu * math.sqrt(SHARES["whitening"]))
        spent += SHARES["whitening"]
        preparation = replace(preparation, whitening=whitening_of(as_matrix(moment.value), moment.noise_std))
    return preparation, spent


def _projections(preparation: Preparation, features: int, rng: np.random.Generator) -> Projections:
    """Draw public directions; their cosines less what they are on average where inputs are normal."""
    p, width = preparation.original, preparation.width
    inputs = rng.standard_normal((width, features)) / (p / 3)
    phases = rng.uniform(0, 2 * math.pi, features)
    level = np.exp(-np.sum(inputs**2, axis=0) * p / (2 * max(1, width))) * np.cos(phases)
    return Projections(inputs, np.zeros((len(preparation.columns), features)), phases, level)


class Centred(NamedTuple):
    """A second moment of features about their mean, with eigenvalues less the noise, and a ridge."""

    values: np.ndarray
    vectors: np.ndarray
    rest: float  # the trace that is in no eigenvalue
    mean: np.ndarray  # drawn towards zero by its noise
    ridge: float
    noise: float  # its norm

    @classmethod
    def of(cls, moment: np.ndarray, noise_std: float) -> Centred:
        """Take off the mean, which the constant feature shows in the first row."""
        mean = moment[0, 1:] / CONSTANT  # off the diagonal the noise has half the variance
        kept = max(0.0, 1 - 2 * len(mean) * noise_std**2 / max(float(mean @ mean), 1e-300))
        centred = moment[1:, 1:] - (2 * kept - kept**2) * np.outer(mean, mean)
        ridge = noise_norm(len(mean), noise_std)
        values, vectors = np.linalg.eigh(centred)
        values = np.maximum(values - ridge, 0.0)
        trace = likely_trace(float(np.trace(centred)), noise_std * math.sqrt(len(mean)))
        return cls(values, vectors, max(trace - float(values.sum()), 0.0), kept * mean, ridge, ridge)

    @property
    def largest(self) -> float:
        """The largest variance after division by itself and the ridge; noise may hide one of a quarter of its norm."""
        most = float(self.values.max())
        return (most + self.noise / 4) / (most + self.ridge)

    @property
    def curvature(self) -> np.ndarray:
        """The variances of the model's features, about."""
        return (self.values + self.rest / len(self.values)) / ((self.values + self.ridge) * self.largest)

    @property
    def effective(self) -> float:
        """How many directions count, those that noise hides among them."""
        return float(np.sum(self.values / (self.values + self.ridge))) + self.rest / self.ridge

    @property
    def dimension(self) -> float:
        """The mean squared length of the model's features, about."""
        return self.effective / self.largest + 1

    @property
    def matrix(self) -> np.ndarray:
        """What makes the constant one, and the other features uncorrelated and at most of variance one."""
        matrix = np.zeros((len(self.values) + 1, len(self.values) + 1))
        matrix[0, 0] = 1 / CONSTANT
        matrix[1:, 1:] = self.vectors / np.sqrt((self.values + self.ridge) * self.largest)
        return matrix

    def rounds(self, left: float, weight: float, classes: int) -> int:
        """Return how many rounds the noise allows."""
        return int(0.2 * left / (4.84 * (self.effective + 1) ** 2 * weight**2 * (classes - 1)))


def likely_trace(trace: float, noise_std: float) -> float:
    """Return the trace of features with length at most sqrt .75, between what was released and what is usual, by noise.

    >>> round(likely_trace(0.6, 0.01), 2), round(likely_trace(3.0, 10.0), 2)
    (0.6, 0.4)
    """
    usual, deviation = 0.4, 0.2
    return (trace * deviation**2 + usual * noise_std**2) / (deviation**2 + noise_std**2)


def _pace(centred: Centred, prior: np.ndarray, left: float, weight: float) -> tuple[int, float]:
    """Return the number of rounds and the step."""
    rounds = int(np.clip(centred.rounds(left, weight, len(prior)), 1, MAX_ROUNDS))
    # Many classes of like size curve the loss less.
    step = float(np.clip(1 / prior_curvature(prior), 2.0, math.sqrt(2 * len(prior))))
    # Noise in outputs is to stay about one: it grows with the radius, and what is to be learnt with the spread.
    size = math.sqrt(math.sqrt(max(1 - float(prior @ prior), 1e-12)) * public_radius(prior))
    most = math.sqrt(left) / (2 * size * weight * centred.dimension) * step / 2  # of rounds times step
    if step * rounds > most:
        rounds = max(min(4, rounds), math.ceil(most / step))
        step = most / rounds
    return rounds, step


def feature_count(signal: float) -> int:
    """Return how many random features are worth their noise, from records times mu; none for few: a linear model.

    >>> [feature_count(signal) for signal in (200, 800, 5000)]
    [0, 100, 200]
    """
    return min(MAX_FEATURES, int(signal / 8)) if signal > LINEAR_BELOW else 0


def prior_curvature(prior: np.ndarray) -> float:
    """Return the largest curvature of the loss where all records are predicted by the prior."""
    return float(np.linalg.eigvalsh(np.diag(prior) - np.outer(prior, prior))[-1])


def public_radius(prior: np.ndarray) -> float:
    """Return the residual above which 15 % of the residuals' sum is, if all records are predicted by the prior."""
    sizes = np.sqrt(1 - 2 * prior + float(prior @ prior))
    low, high = 0.0, float(sizes.max())
    for _ in range(60):
        middle = (low + high) / 2
        above = float(prior @ np.maximum(sizes - middle, 0.0))
        low, high = (middle, high) if above > 0.15 * float(prior @ sizes) else (low, middle)
    return high


def class_edges(low: float, high: float) -> np.ndarray:
    """Return 32 equal bins, and steps that halve towards zero, or towards the lower bound."""
    around = 0.0 if low < 0 < high else low
    tails = (high - low) * 2.0 ** -np.arange(6, 21)
    edges = np.unique(np.concatenate([np.linspace(low, high, 33), around + tails, around - tails, [around]]))
    return edges[(edges >= low) & (edges <= high)]


def score_column(edges: np.ndarray, histogram: np.ndarray) -> Column:
    """Return a column whose values become normal scores of their ranks."""
    mass = on_simplex(histogram)
    ranks = np.concatenate([[0.0], np.cumsum(mass)])
    constant = bool(mass.max() > 0.9999)
    return Column(edges, ranks / ranks[-1], np.zeros(len(mass), bool), 0.0, 1.0, 0.0, 1.0, constant)


def on_simplex(values: np.ndarray) -> np.ndarray:
    """Return the nearest vector of shares that add up to one."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(values) + 1)
    last = int(np.nonzero(ordered > excess)[0][-1])
    return np.maximum(values - excess[last], 0.0)
