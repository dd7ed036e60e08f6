"""The statistics that recipes ask for, each with the largest distance of two records' vectors.

A record's vector is bounded for every record and every parameter of the statistic, so a statistic that somebody else
chose costs what it states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import columns
from .preparation import Preparation, whitening_vectors
from .rows import Rows
from .second_moment import ROOT, as_vector, length_limited

HISTOGRAM, WHITENING, TARGET, GRAM, NORMS, DESCENT = "histogram", "whitening", "target", "gram", "norms", "descent"


@dataclass(frozen=True)
class ColumnHistograms:
    """The histograms of all numeric columns: one count of each moves, from one bin to another."""

    edges: tuple[np.ndarray, ...]
    purpose: str = HISTOGRAM

    @property
    def diameter(self) -> float:
        return math.sqrt(2 * len(self.edges))

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, np.ndarray]) -> np.ndarray:
        return columns.histogram(rows.numeric, weights, self.edges)


@dataclass(frozen=True)
class WhiteningMoment:
    """The second moment of (sqrt p, v), of length at most sqrt(3 p)."""

    preparation: Preparation
    purpose: str = WHITENING

    @property
    def diameter(self) -> float:
        return ROOT * 3 * len(self.preparation.columns)

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, np.ndarray]) -> np.ndarray:
        return _moment(rows, weights, lambda part: whitening_vectors(self.preparation.standard(part)))


@dataclass(frozen=True)
class TargetMean:
    """The mean of the target within its bounds."""

    low: float
    high: float
    purpose: str = TARGET

    @property
    def diameter(self) -> float:
        return self.high - self.low

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, np.ndarray]) -> np.ndarray:
        return np.array([weights @ np.clip(rows.target, self.low, self.high)])


@dataclass(frozen=True)
class ClassShares:
    """The weight of each class."""

    classes: int
    purpose: str = TARGET

    @property
    def diameter(self) -> float:
        return ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, np.ndarray]) -> np.ndarray:
        return np.bincount(rows.target.astype(np.int64), weights=weights, minlength=self.classes)


@dataclass(frozen=True, eq=False)
class Design:
    """The features of a linear model: what a preparation gives, within a ball, times a released matrix."""

    preparation: Preparation
    constant: float  # the first feature; the others are at most sqrt(1 - constant^2) long
    linear: float  # factor of the linear part
    matrix: np.ndarray | None = None  # applied last
    centre: np.ndarray | None = None  # of the features but the first
    ball: bool = False

    def bounded(self, rows: Rows) -> np.ndarray:
        """Return features of length at most one."""
        inputs = self.preparation.inputs(rows)
        cosines = self.preparation.cosines(inputs, rows)
        parts = [inputs * self.linear, cosines / math.sqrt(max(1, cosines.shape[1]))]
        limit = math.sqrt(1 - self.constant**2)
        free = np.concatenate(parts, axis=1)
        free = limit * length_limited(free, 1.0) if self.ball else length_limited(free, limit)
        if self.centre is not None:
            free = free - self.centre
        return np.concatenate([np.full((rows.size, 1), self.constant), free], axis=1)

    def features(self, rows: Rows, cache: dict[Any, np.ndarray]) -> np.ndarray:
        """Return the features after the matrix, kept for the next statistic."""
        if cache.get("design") is not self:
            matrix = self.matrix
            found = [self.bounded(part) if matrix is None else self.bounded(part) @ matrix for _, part in rows.chunks()]
            cache.clear()
            cache["design"], cache["features"] = self, np.concatenate(found)  # type: ignore[assignment]
            cache["lengths"] = np.linalg.norm(cache["features"], axis=1)
        return cache["features"]


@dataclass(frozen=True)
class Gram:
    """The second moment of features of length at most one."""

    design: Design
    purpose: str = GRAM

    @property
    def diameter(self) -> float:
        return ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, np.ndarray]) -> np.ndarray:
        return _moment(rows, weights, lambda part: length_limited(self.design.bounded(part), 1.0))


@dataclass(frozen=True, eq=False)
class Residuals:
    """A linear model of the target, and the gradients of its loss."""

    design: Design
    theta: np.ndarray  # (features,) for squared error, (features, classes) for the cross entropy
    offset: np.ndarray  # added to the outputs
    bounds: tuple[float, float] = (-math.inf, math.inf)  # of the target

    def of(self, rows: Rows, cache: dict[Any, np.ndarray]) -> np.ndarray:
        """Return what the target is above the prediction: (rows,) or, for classes, (rows, classes)."""
        outputs = self.design.features(rows, cache) @ self.theta + self.offset
        if self.theta.ndim == 1:
            return np.clip(rows.target, *self.bounds) - outputs
        outputs -= outputs.max(axis=1, keepdims=True)
        np.exp(outputs, out=outputs)
        outputs /= -outputs.sum(axis=1, keepdims=True)
        outputs[np.arange(rows.size), rows.target.astype(np.int64)] += 1.0
        return outputs

    def norms(self, rows: Rows, cache: dict[Any, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the residuals and the lengths of the gradients."""
        residual = self.of(rows, cache)
        size = np.abs(residual) if residual.ndim == 1 else np.linalg.norm(residual, axis=1)
        return residual, size * cache["lengths"]


@dataclass(frozen=True)
class NormHistogram:
    """How many gradients have which length: bins between public edges."""

    residuals: Residuals
    edges: np.ndarray
    purpose: str = NORMS

    @property
    def diameter(self) -> float:
        return ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, np.ndarray]) -> np.ndarray:
        norms = self.residuals.norms(rows, cache)[1]
        bins = np.searchsorted(self.edges, norms)
        return np.bincount(bins, weights=weights, minlength=len(self.edges) + 1)


@dataclass(frozen=True)
class ClippedDescent:
    """The sum of the records' descent directions, each no longer than the radius."""

    residuals: Residuals
    radius: float
    purpose: str = DESCENT

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, np.ndarray]) -> np.ndarray:
        residual, norms = self.residuals.norms(rows, cache)
        factors = weights * np.minimum(1.0, self.radius / np.maximum(norms, 1e-300))
        scaled = (residual.T * factors).T
        features = self.residuals.design.features(rows, cache)
        total = sum(features[place].T @ scaled[place] for place, _ in rows.chunks())
        return np.asarray(total).ravel()


def _moment(rows: Rows, weights: np.ndarray, vectors: Any) -> np.ndarray:
    """Return the weighted second moment of the vectors of all rows."""
    total: Any = 0.0
    for place, part in rows.chunks():
        found = vectors(part)
        total = total + (found * weights[place, None]).T @ found
    return as_vector(total)
