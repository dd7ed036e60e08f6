r"""From a record to bounded inputs of a linear model: standardised, whitened, random features.

Each step is a function of the record, of public numbers and of what was released before. With p columns,

* ``standard`` (v): standardised numeric columns, tails pressed together (``columns.py``); ``encoded`` (e): an indicator
  for each category, less its share of one, and for each column that may be missing;
* ``whitened`` (u): :math:`(v - m) W`, within 3, with m and W from a second moment that was released;
* random features: cosines of public random projections of (u, e), and of one or two columns of normal scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..tables.rows import Rows
from .columns import Column
from .second_moment import ROOT, length_limited, noise_norm

MAX_WHITENED = 3.0


class Whitening(NamedTuple):
    """The mean of the standardised columns and the matrix that makes them uncorrelated."""

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, standard: np.ndarray) -> np.ndarray:
        return np.clip((standard - self.mean) @ self.matrix, -MAX_WHITENED, MAX_WHITENED)


def whitening_vectors(standard: np.ndarray) -> np.ndarray:
    """Return (sqrt p, v) with v at most sqrt(2 p) long: vectors of length at most sqrt(3 p)."""
    p = standard.shape[1]
    front = np.full((len(standard), 1), math.sqrt(p))
    return np.concatenate([front, length_limited(standard, math.sqrt(2 * p))], axis=1)


def whitening_seen(p: int, mu: float, weight: float) -> bool:
    """Return whether a second moment of such vectors at this price shows more than its noise."""
    return noise_norm(p, ROOT * 3 * p * weight / mu) <= 3


def whitening_of(moment: np.ndarray, noise_std: float) -> Whitening:
    """Return the whitening that a second moment of such vectors gives, with noise of this deviation in it."""
    p = len(moment) - 1
    mean = moment[0, 1:] / math.sqrt(p)
    covariance = moment[1:, 1:] - np.outer(mean, mean)
    size = max(float(np.trace(covariance)) / p, 1e-6)
    values, vectors = np.linalg.eigh(covariance / size)
    ridge = max(0.1, noise_norm(p, noise_std) / size)
    values = np.maximum(values, 0.0)
    matrix = vectors / np.sqrt(values + ridge)
    scale = math.sqrt(float(np.mean(values / (values + ridge))) * size)
    return Whitening(mean, matrix / max(scale, 1e-6))


class Projections(NamedTuple):
    """Public random directions: cos(u omega + g scores + b)."""

    inputs: np.ndarray  # (width of (u, e), features)
    scores: np.ndarray  # (numeric columns, features)
    phases: np.ndarray
    level: np.ndarray | float = 0.0  # subtracted from the cosines


@dataclass(frozen=True)
class Preparation:
    """All that turns encoded records into inputs. Made of public and released values alone."""

    columns: tuple[Column, ...]
    categories: tuple[int, ...]  # number of categories of each categorical column
    nullable: tuple[int, ...]  # numeric columns that may be missing
    whitening: Whitening | None = None
    projections: Projections | None = None
    whiten_scores: bool = False  # whiten the normal scores in the place of the standardised columns

    @property
    def original(self) -> int:
        """The number of columns before any encoding."""
        return max(1, len(self.columns) + len(self.categories))

    @property
    def width(self) -> int:
        """The number of whitened and encoded columns."""
        return len(self.columns) + sum(self.categories) + len(self.nullable)

    def standard(self, rows: Rows) -> np.ndarray:
        """Return the standardised numeric columns."""
        if self.whiten_scores:
            return self.scores(rows)
        return _stacked([column.standard(rows.numeric[:, j]) for j, column in enumerate(self.columns)], rows.size)

    def scores(self, rows: Rows) -> np.ndarray:
        """Return the normal scores of the numeric columns."""
        return _stacked([column.score(rows.numeric[:, j]) for j, column in enumerate(self.columns)], rows.size)

    def encoded(self, rows: Rows) -> np.ndarray:
        """Return the indicators of categories and of missing values."""
        parts = []
        for j, count in enumerate(self.categories):
            block = np.full((rows.size, count), -1.0 / count)
            block[np.arange(rows.size), rows.codes[:, j]] += 1.0
            parts.append(block)
        parts += [np.isnan(rows.numeric[:, [j]]).astype(np.float64) for j in self.nullable]
        return np.concatenate(parts, axis=1) if parts else np.zeros((rows.size, 0))

    def inputs(self, rows: Rows) -> np.ndarray:
        """Return (u, e)."""
        standard = self.standard(rows)
        whitened = standard if self.whitening is None else self.whitening(standard)
        return np.concatenate([whitened, self.encoded(rows)], axis=1)

    def cosines(self, inputs: np.ndarray, rows: Rows) -> np.ndarray:
        """Return the random features, within [-1, 1]."""
        if self.projections is None:
            return np.zeros((rows.size, 0))
        angles = inputs @ self.projections.inputs + self.projections.phases
        if self.projections.scores.any():
            angles += self.scores(rows) @ self.projections.scores
        return np.cos(angles, out=angles) - self.projections.level


def _stacked(columns: list[np.ndarray], rows: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0))
