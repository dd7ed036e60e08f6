r"""RF-M: squared error on random features, preconditioned by a released Gram matrix.

Shares of the budget (of mu^2): histograms .05, whitening .05, mean of the target .005, Gram matrix .20, radii .02,
descent .675, of what trees and a curve for heavy tails leave. What noise would hide is not asked for: histograms,
whitening, histograms of gradients (the mean size of residuals is asked for instead), and for few records random
features. Public numbers decide.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .asking import Ask, Choose
from .columns import bin_edges, column_of, histograms_seen, often_missing, uniform_column
from .curve import MOST_SHARE, TAILS_SHARE, curved
from .descent import Descent, radius_looks, shrunk
from .linear import LinearModel
from .preparation import Preparation, Projections, whitening_of, whitening_seen
from .second_moment import as_matrix
from .statistics import FREE, ColumnHistograms, Design, Gram, Residuals, TargetMean, WhiteningMoment
from .tree_model import TreeModel
from .trees import TREE_SHARE, Leafing, questions_of, tree_count, with_trees

SHARES = {"histogram": 0.05, "whitening": 0.05, "target": 0.005, "gram": 0.20}
MAX_ROUNDS = 160
MOST_FOR_MEAN = 0.15
LINEAR_BELOW = 600  # records times mu
LARGEST = 2.0  # radius of the residuals that trees see, in deviations


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
    questions = questions_of(mu / weight)
    whole, mu, left = mu, mu * math.sqrt(1 - TREE_SHARE * trees), TREE_SHARE * trees
    share = share_of_mean(mu, weight)
    mean = released_mean(ask, mu * math.sqrt(share), target)
    mu *= math.sqrt((1 - share) / (1 - SHARES["target"]))
    descent = descent_of(ask, mu, weight, *prepared(ask, mu, weight, preparation, bounds), rng)
    longest = max(target[1] - mean, mean - target[0])
    theta, size = descent.run(ask, lambda theta: Residuals(descent.design, theta, np.array(mean), target), longest)
    model = LinearModel(descent.design, theta, mean)
    if choose is None or not trees:
        return model
    if left > TAILS_SHARE + MOST_SHARE:
        model, spent = curved(ask, whole, weight, model, target)
        left, trees = left - spent, max(1, trees - round(spent / TREE_SHARE))
    leafing = Leafing(questions, target, largest=LARGEST * size)
    return with_trees(ask, choose, whole * math.sqrt(left), trees, model, leafing, rng)


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
    return Descent(replace(design, matrix=whitener.matrix), whitener, rounds, left, looks, norms * mu**2, weight)
