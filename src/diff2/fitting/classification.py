r"""RF-C: the cross entropy on random features, preconditioned by a released Gram matrix.

Shares of the budget (of mu^2): shares of the classes .01, histograms .05, whitening .05, Gram matrix .20, descent the
rest. Histograms and whitening are left out where noise would hide them. The radius is public: it follows from the
shares of the classes and the effective dimension.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .asking import Ask
from .columns import Column, often_missing, uniform_column
from .preparation import Preparation, Projections, whitening_of
from .linear import LinearModel
from .second_moment import as_matrix, noise_norm
from .statistics import FREE, ClassShares, ClippedDescent, ColumnHistograms, Design, Gram, Residuals, WhiteningMoment

SHARES = {"target": 0.01, "histogram": 0.05, "whitening": 0.05, "gram": 0.20}
MAX_ROUNDS = 32
MAX_FEATURES = 200
LINEAR_BELOW = 600  # records times mu


def fit_classification(
    ask: Ask,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    classes: int,
    rng: np.random.Generator,
) -> LinearModel:
    """Fit by releases that cost ``mu`` together; ``weight`` is that of the heaviest record."""
    left = 1.0
    answer = ask(ClassShares(classes), mu * math.sqrt(SHARES["target"]))
    left -= SHARES["target"]
    prior = np.maximum(answer.value, max(answer.noise_std, weight))
    prior /= prior.sum()
    numeric = len(bounds)
    if numeric:
        edges = tuple(class_edges(low, high) for low, high in bounds)
        std = math.sqrt(2 * numeric) * weight / (mu * math.sqrt(SHARES["histogram"]))
        if std <= 0.1:
            answer = ask(ColumnHistograms(edges), mu * math.sqrt(SHARES["histogram"]))
            left -= SHARES["histogram"]
            splits = np.cumsum([len(one) - 1 for one in edges])[:-1]
            parts = np.split(answer.value, splits)
            columns = tuple(score_column(one, part) for one, part in zip(edges, parts, strict=True))
            nullable = tuple(j for j in preparation.nullable if often_missing(parts[j], answer.noise_std))
            preparation = replace(preparation, columns=columns, nullable=nullable, whiten_scores=True)
        else:
            columns = tuple(uniform_column(low, high) for low, high in bounds)
            preparation = replace(preparation, columns=columns, nullable=())
        std = math.sqrt(2) * 3 * numeric * weight / (mu * math.sqrt(SHARES["whitening"]))
        if math.sqrt(2 * numeric) * std <= 3:
            moment = ask(WhiteningMoment(preparation), mu * math.sqrt(SHARES["whitening"]))
            left -= SHARES["whitening"]
            preparation = replace(preparation, whitening=whitening_of(as_matrix(moment.value), moment.noise_std))
    p, width, features = preparation.original, preparation.width, feature_count(mu / weight)
    omega = rng.standard_normal((width, features)) / (p / 3)
    phases = rng.uniform(0, 2 * math.pi, features)
    level = np.exp(-np.sum(omega**2, axis=0) * p / (2 * max(1, width))) * np.cos(phases)
    projections = Projections(omega, np.zeros((numeric, features)), phases, level)
    preparation = replace(preparation, projections=projections)
    design = Design(preparation, FREE / math.sqrt(2 * p), FREE / math.sqrt(max(1, features)))
    gram = ask(Gram(design), mu * math.sqrt(SHARES["gram"]))
    left -= SHARES["gram"]
    moment = as_matrix(gram.value)
    d, s = len(moment) - 1, gram.noise_std / 0.75
    mean = 2 * moment[0, 1:] / math.sqrt(0.75)
    f = max(0.0, 1 - 1.5 * d * s**2 / max(float(mean @ mean), 1e-300))
    centred = moment[1:, 1:] / 0.75 - (2 * f - f**2) * np.outer(mean, mean)
    ridge = noise_norm(d, s)
    values, vectors = np.linalg.eigh(centred)
    values = np.maximum(values - ridge, 0.0)
    rest = max(float(np.trace(centred)) - float(values.sum()), 0.0)
    budget = left * mu**2

    def effective(ridge: float) -> float:
        return float(np.sum(values / (values + ridge))) + rest / ridge

    def allowed(ridge: float) -> int:
        return int(0.2 * budget / (4.84 * (effective(ridge) + 1) ** 2 * weight**2 * (classes - 1)))

    while allowed(ridge) < 8 and ridge <= 1:
        ridge *= 1.3
    rounds = int(np.clip(allowed(ridge), 1, MAX_ROUNDS))
    largest = float(values.max() / (values.max() + ridge)) or 1.0
    dimension = effective(ridge) / largest + 1
    # Of the loss where all records are predicted by the prior; many classes of like size curve it less.
    curvature = float(np.linalg.eigvalsh(np.diag(prior) - np.outer(prior, prior))[-1])
    eta = float(np.clip(1 / curvature, 2.0, math.sqrt(2 * classes)))
    r0 = math.sqrt(max(1 - float(prior @ prior), 1e-12))
    most = math.sqrt(budget) / (2 * r0 * weight * dimension) * eta / 2
    if eta * rounds > most:
        rounds = max(min(4, rounds), math.ceil(most / eta))
        eta = most / rounds
    matrix = np.zeros((d + 1, d + 1))
    matrix[0, 0] = 2.0  # the constant is one half
    matrix[1:, 1:] = vectors / np.sqrt((values + ridge) * largest) / math.sqrt(0.75)
    design = replace(design, matrix=matrix, centre=f * mean * math.sqrt(0.75))
    radius = public_radius(prior) * math.sqrt(dimension)
    theta, offset = np.zeros((d + 1, classes)), np.log(prior)
    mean_theta = np.zeros_like(theta)
    for round in range(rounds):
        residuals = Residuals(design, theta, offset)
        step = ask(ClippedDescent(residuals, radius), math.sqrt(budget / rounds)).value.reshape(theta.shape)
        theta = theta + eta * (step - step.mean(axis=1, keepdims=True))
        if round >= rounds // 2:
            mean_theta += theta / (rounds - rounds // 2)
    return LinearModel(design, mean_theta, offset)


def feature_count(signal: float) -> int:
    """Return how many random features are worth their noise, from records times mu; none for few: a linear model.

    >>> [feature_count(signal) for signal in (200, 800, 5000)]
    [0, 100, 200]
    """
    return min(MAX_FEATURES, int(signal / 8)) if signal > LINEAR_BELOW else 0


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
