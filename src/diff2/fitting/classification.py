r"""RF-C: the cross entropy on random features, preconditioned by a released Gram matrix.

Shares of the budget (of mu^2): shares of the classes .01 (few records: up to .1), histograms .05, whitening .05, Gram
matrix .20, descent the rest. Histograms and whitening are left out where noise would hide them; in the place of such a
Gram matrix the mean of the features and their length is asked for, .15. The radius is public: it follows from the
shares of the classes and the effective dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .asking import Ask, Choose
from .centred import Centred, gram_seen
from .columns import Column, histograms_seen, often_missing, uniform_column
from .linear import LinearModel
from .preparation import Preparation, Projections, whitening_of, whitening_seen
from .restraint import Restraint
from .second_moment import ROOT, as_matrix
from .statistics import (
    FREE,
    ClassShares,
    ClippedDescent,
    ColumnHistograms,
    Design,
    FeatureLengths,
    Gram,
    Residuals,
    WhiteningMoment,
)
from .tree_model import TreeModel
from .trees import TREE_SHARE, Leafing, questions_of, tree_count, with_trees

SHARES = {"target": 0.01, "histogram": 0.05, "whitening": 0.05, "gram": 0.20, "lengths": 0.15}
MAX_ROUNDS = 32
MAX_FEATURES = 200
MOST_CLIPPED, LEAST_UNEVEN = 0.15, 0.05  # of the sum of residuals
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
    radius = public_radius(prior, most_uneven(mu / weight, prior))
    trees = 0 if choose is None else class_trees(mu / weight, prior)
    model = _linear(ask, mu * math.sqrt(1 - TREE_SHARE * trees), weight, preparation, bounds, prior, radius, rng)
    if choose is None or not trees:
        return model
    questions, step = questions_of(CLASS_SIGNAL * mu / weight), min(1 / prior_curvature(prior), 8.0)
    leafing = Leafing(questions, radius=radius, step=step, classes=classes)
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
    spread = math.sqrt(1 - float(prior @ prior)) / public_radius(prior, most_uneven(signal, prior))
    signal *= CLASS_SIGNAL * min(1.0, spread) / math.sqrt(len(prior) - 1)
    return tree_count(signal) if signal > TREES_FROM else 0


def _linear(
    ask: Ask,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    prior: np.ndarray,
    radius: float,
    rng: np.random.Generator,
) -> LinearModel:
    """Return logistic regression on random features."""
    preparation, spent = _prepared(ask, mu, weight, preparation, bounds)
    features = feature_count(mu / weight)
    preparation = replace(preparation, projections=_projections(preparation, features, rng))
    design = Design(preparation, FREE / math.sqrt(2 * preparation.original), FREE / math.sqrt(max(1, features)))
    seen = gram_seen(preparation.width + features, mu * math.sqrt(SHARES["gram"]), weight)
    left = (1 - SHARES["target"] - spent - SHARES["gram" if seen else "lengths"]) * mu**2
    if seen:
        gram = ask(Gram(design), mu * math.sqrt(SHARES["gram"]))
        centred = Centred.of(as_matrix(gram.value), gram.noise_std)
        while centred.rounds(left, weight, len(prior)) < 8 and centred.ridge <= FREE**2:
            centred = centred._replace(ridge=centred.ridge * 1.3)
    else:
        lengths = ask(FeatureLengths(design), mu * math.sqrt(SHARES["lengths"]))
        centred = Centred.of_lengths(lengths.value, lengths.noise_std)
    return _descended(ask, left, weight, design, centred, prior, radius)


def _descended(
    ask: Ask,
    left: float,
    weight: float,
    design: Design,
    centred: Centred,
    prior: np.ndarray,
    radius: float,
) -> LinearModel:
    """Return the mean of the last half of the iterates, drawn back to the prior."""
    classes = len(prior)
    rounds, step = _pace(centred, prior, left, weight, radius)
    design = replace(design, matrix=centred.matrix, centre=centred.mean)
    radius *= math.sqrt(centred.dimension)
    theta, offset = np.zeros((len(centred.matrix), classes)), np.log(prior)
    total, first = np.zeros_like(theta), rounds // 2
    restraint = Restraint(centred.curvature, prior, rounds, step)
    for round in range(rounds):
        answer = ask(ClippedDescent(Residuals(design, theta, offset), radius), math.sqrt(left / rounds))
        direction = answer.value.reshape(theta.shape)
        direction = direction - direction.mean(axis=1, keepdims=True)
        restraint.see(theta, direction, answer.noise_std)
        theta = theta + step * direction
        if round >= first:
            total += theta / (rounds - first)
    return LinearModel(design, total * restraint.factor(total, weight), offset)


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


def _pace(centred: Centred, prior: np.ndarray, left: float, weight: float, radius: float) -> tuple[int, float]:
    """Return the number of rounds and the step."""
    rounds = int(np.clip(centred.rounds(left, weight, len(prior)), 1, MAX_ROUNDS))
    # Many classes of like size curve the loss less.
    step = float(np.clip(1 / prior_curvature(prior), 2.0, math.sqrt(2 * len(prior))))
    # Noise in outputs is to stay about one: it grows with the radius, and what is to be learnt with the spread.
    size = math.sqrt(math.sqrt(max(1 - float(prior @ prior), 1e-12)) * radius)
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


def most_uneven(signal: float, prior: np.ndarray) -> float:
    """Return how uneven clipping may be: less where records are many, and no class is rare.

    Uneven clipping draws to the majority; but a larger radius is more noise, which the few residuals of a rare class do
    not outweigh.

    >>> [round(most_uneven(signal, np.array([0.25, 0.75])), 3) for signal in (200, 2000, 20_000)]
    [0.15, 0.08, 0.05]
    """
    return float(np.clip(60 / max(signal * (1 - float(prior @ prior)), 1e-12), LEAST_UNEVEN, MOST_CLIPPED))


def public_radius(prior: np.ndarray, uneven: float) -> float:
    """Return a residual above which at most 15 % of the residuals' sum is, if the prior predicts all records.

    Classes may be clipped by different factors, which differ from their mean by ``uneven`` at most, on average.

    >>> even, two = np.full(26, 1 / 26), np.array([0.25, 0.75])
    >>> [round(public_radius(prior, uneven), 2) for prior in (even, two) for uneven in (0.15, 0.05)]
    [0.83, 0.83, 0.74, 0.95]
    """
    sizes = np.sqrt(1 - 2 * prior + float(prior @ prior))
    sums = prior * sizes / float(prior @ sizes)

    def clipped(radius: float) -> float:
        return 1 - float(sums @ np.minimum(1.0, radius / sizes))

    def differing(radius: float) -> float:
        return float(sums @ np.abs(np.minimum(1.0, radius / sizes) - 1 + clipped(radius)))

    radius, most = _least(clipped, MOST_CLIPPED, 0.0, float(sizes.max())), float(sizes.max())
    return radius if differing(radius) <= uneven else _least(differing, uneven, radius, most)


def _least(of: Callable[[float], float], most: float, low: float, high: float) -> float:
    """Return where a function falls to a value."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) > most else (low, middle)
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
