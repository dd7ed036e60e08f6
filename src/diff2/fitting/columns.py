r"""Numeric columns, from released histograms to standardised values and normal scores.

Every column has public bounds. Its histogram, with noise, gives a centre and a deviation that outliers do not move, and
the ranks of values. A value becomes two numbers: :math:`v`, standardised, its tails pressed together by a logarithm,
within 6; and :math:`g`, the normal score of its rank, within 3. Both are functions of the value, its public bounds and
what was released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

LINEAR_BINS = 64
MAX_STANDARD, MAX_SCORE = 6.0, 3.0
CONSTANT = 0.9999  # share of one bin from which on a column says nothing


def bin_edges(low: float, high: float) -> np.ndarray:
    """Return public edges between the bounds: equal steps, and steps that halve towards the lower end and zero.

    >>> len(bin_edges(0.0, 1.0)), len(bin_edges(-1.0, 1.0))
    (99, 149)
    """
    span = high - low
    parts = [np.linspace(low, high, LINEAR_BINS + 1), low + span * 2.0 ** (-np.arange(1, 41) / 2)]
    if low < 0 < high:
        tails = max(-low, high) * 2.0 ** (-np.arange(1, 31) / 2)
        parts += [tails, -tails]
    edges = np.unique(np.concatenate(parts))
    return edges[(edges >= low) & (edges <= high)]


class Column(NamedTuple):
    """What is known of a numeric column."""

    edges: np.ndarray
    ranks: np.ndarray  # share of values below each edge
    heavy: np.ndarray  # bins that hold so much that all their values get one rank
    centre: float
    deviation: float
    score_mean: float
    score_deviation: float
    constant: bool

    def standard(self, values: np.ndarray) -> np.ndarray:
        """Return standardised values whose tails grow like a logarithm; a missing one is 0."""
        if self.constant:
            return np.zeros_like(values)
        t = (values - self.centre) / self.deviation
        size = np.abs(t)
        soft = np.where(size <= 2, t, np.sign(t) * 2 * (1 + np.log(np.maximum(size, 2) / 2)))
        return np.nan_to_num(np.clip(soft, -MAX_STANDARD, MAX_STANDARD))

    def score(self, values: np.ndarray) -> np.ndarray:
        """Return normal scores of the ranks; a missing value is 0."""
        if self.constant:
            return np.zeros_like(values)
        raw = ndtri(np.clip(self.rank(values), 0.001, 0.999))
        return np.nan_to_num(np.clip((raw - self.score_mean) / self.score_deviation, -MAX_SCORE, MAX_SCORE))

    def rank(self, values: np.ndarray) -> np.ndarray:
        """Return the share of values below each of these: linear within a bin, its middle where it is heavy."""
        rank = np.interp(values, self.edges, self.ranks)
        if self.heavy.any():
            bins = np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(self.heavy) - 1)
            middle = (self.ranks[:-1] + self.ranks[1:]) / 2
            rank = np.where(self.heavy[bins] & np.isfinite(values), middle[bins], rank)
        return rank


def column_of(edges: np.ndarray, histogram: np.ndarray, noise_std: float) -> Column:
    """Return what a histogram with noise tells about a column."""
    mass = np.where(histogram < 2 * noise_std, 0.0, histogram)
    if mass.sum() <= 0:  # noise hides everything: as if all bins of equal width were equally full
        mass = np.diff(edges)
    mass = mass / mass.sum()
    ranks = np.concatenate([[0.0], np.cumsum(mass)])
    ranks /= ranks[-1]
    low, high = np.interp([0.01, 0.99], ranks, edges)
    centres = np.clip((edges[:-1] + edges[1:]) / 2, low, high)
    centre = float(mass @ centres)
    deviation = max(float(np.sqrt(mass @ np.square(centres - centre))), 1e-4 * float(edges[-1] - edges[0]))
    middle = ndtri(np.clip((ranks[:-1] + ranks[1:]) / 2, 0.001, 0.999))
    score_mean = float(mass @ middle)
    score_deviation = max(float(np.sqrt(mass @ np.square(middle - score_mean))), 0.05)
    return Column(
        edges, ranks, mass > 0.02, centre, deviation, score_mean, score_deviation, bool(mass.max() > CONSTANT)
    )


def histograms_seen(columns: int, mu: float, weight: float) -> bool:
    """Return whether histograms of all columns at this price show more than their noise: a tenth of the mass."""
    return math.sqrt(2 * columns) * weight / mu <= 0.1


def often_missing(histogram: np.ndarray, noise_std: float) -> bool:
    """Return whether a histogram shows that values of its column are missing: its bins add up to less than one."""
    return float(1 - histogram.sum()) > max(3 * noise_std * math.sqrt(len(histogram)), 1e-3)


def histogram(values: np.ndarray, weights: np.ndarray, edges: Sequence[np.ndarray]) -> np.ndarray:
    """Return the weighted histograms of the columns, one after the other; a missing value is in no bin."""
    parts = []
    for j, column_edges in enumerate(edges):
        bins = np.clip(np.searchsorted(column_edges, values[:, j], side="right") - 1, 0, len(column_edges) - 2)
        present = np.isfinite(values[:, j])
        parts.append(np.bincount(bins[present], weights=weights[present], minlength=len(column_edges) - 1))
    return np.concatenate(parts)


def uniform_column(low: float, high: float) -> Column:
    """Return a column of which nothing but its bounds is known."""
    edges = np.array([low, high])
    deviation = (high - low) / math.sqrt(12)
    return Column(edges, np.array([0.0, 1.0]), np.zeros(1, bool), (low + high) / 2, deviation, 0.0, 1.0, False)
