r"""Trees on the residual of another model, each chosen whole.

An *oblivious* tree asks the same six yes-or-no questions of every record, and adds the value of one of 64 leaves. Its
structure is chosen by the exponential mechanism among thousands of public candidates, by the score

.. math::
    \sum_{\text{leaves}} \Big| \sum_{i \in \text{leaf}} w_i r_i \Big|, \qquad |r_i| \le C,

which replacing a record of weight w changes by at most 2 C w, however many candidates there are. Then the sums and the
counts of the 64 leaves of the chosen tree are released with noise.

A candidate is a pair of *halves*, three questions each, so that the scores of all pairs come from one matrix product.
Residuals are rounded to whole numbers within :math:`\pm 511` of their radius, hence scores are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from .asking import Ask
from ..tables.rows import Rows
from .second_moment import ROOT

HALF = 3  # questions of a half
LEAVES = 4**HALF
LEVELS = 511  # whole numbers that a residual of the length of the radius is rounded to
EXACT_ROWS = 1 << 14  # rows whose whole numbers add up exactly in single precision
BINS = 250


class Half(NamedTuple):
    """Three questions: is the rank of this column above this threshold?"""

    columns: np.ndarray  # (3,)
    thresholds: np.ndarray  # (3,), in bins


class Tree(NamedTuple):
    """A tree with its leaves' values."""

    first: Half
    second: Half
    values: np.ndarray  # (64,)

    def leaves(self, bins: np.ndarray) -> np.ndarray:
        """Return the leaf of each record, for the bins of its columns."""
        return (_eighth(self.first, bins).astype(np.int64) << HALF) + _eighth(self.second, bins)


def _eighth(half: Half, bins: np.ndarray) -> np.ndarray:
    found = np.zeros(len(bins), dtype=np.uint8)
    for column, threshold in zip(half.columns, half.thresholds, strict=True):
        found = (found << 1) | (bins[:, column] > threshold)
    return found


def pair_scores(halves: list[Half], others: list[Half], bins: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the scores of all pairs, (halves, others), for whole numbers of each record: exact."""
    total = np.zeros((8 * len(halves), 8 * len(others)))
    for start in range(0, len(bins), EXACT_ROWS):
        part, weights = bins[start : start + EXACT_ROWS], whole[start : start + EXACT_ROWS]
        left, right = _indicators(halves, part), _indicators(others, part)
        right *= weights[:, None]
        total += left.T @ right
    sums = np.abs(total).reshape(len(halves), 8, len(others), 8)
    return sums.sum(axis=(1, 3))


def _indicators(halves: list[Half], bins: np.ndarray) -> np.ndarray:
    found = np.zeros((len(bins), 8 * len(halves)), dtype=np.float32)
    rows = np.arange(len(bins))
    for j, half in enumerate(halves):
        found[rows, 8 * j + _eighth(half, bins).astype(np.int64)] = 1.0
    return found


@dataclass
class Drawing:
    """Public candidates: which columns and thresholds the next halves use, given the trees that won."""

    weights: np.ndarray  # of the columns
    rng: np.random.Generator
    winners: list[Half]

    def half(self) -> Half:
        weights = self.weights / self.weights.sum()
        if self.winners:
            used = np.bincount(np.concatenate([half.columns for half in self.winners]), minlength=len(weights))
            weights = (weights + used / used.sum()) / 2
        count = int(self.rng.integers(1, HALF + 1))
        chosen = self.rng.choice(len(weights), size=count, p=weights)
        columns = np.resize(chosen, HALF)
        thresholds = self.rng.integers(0, BINS - 1, HALF)
        if self.winners and self.rng.random() < 0.3:
            for k in range(HALF):
                if self.rng.random() < 0.5:
                    winner = self.winners[self.rng.integers(len(self.winners))]
                    place = self.rng.integers(HALF)
                    columns[k], thresholds[k] = winner.columns[place], winner.thresholds[place]
        return Half(columns, thresholds)


def leaf_values(sums: np.ndarray, counts: np.ndarray, noise_std: float, radius: float) -> np.ndarray:
    """Return the mean residual of each leaf, drawn towards zero where noise or few records make it uncertain."""
    spread = max((float(sums @ sums) - LEAVES * noise_std**2) / max(float(counts @ counts), 1e-300), 1e-12)
    denominator = counts**2 + noise_std**2 / spread + (0.1 / LEAVES) ** 2
    return np.clip(sums * counts / denominator, -radius, radius)


def bounded_range_mu(eta: float) -> float:
    """Return the mu of a choice of bounded range eta: the worst generalised randomised response."""
    from scipy.optimize import minimize_scalar
    from scipy.special import ndtri

    def at(t: float) -> float:
        q = (1 - math.exp(t - eta)) / (math.exp(t) - math.exp(t - eta))
        return -float(ndtri(1 - q) + ndtri(q * math.exp(t)))

    found = minimize_scalar(at, bounds=(1e-9 * eta, eta * (1 - 1e-9)), method="bounded", options={"xatol": 1e-10})
    return -float(found.fun)
