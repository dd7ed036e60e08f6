"""The statistics that recipes ask for, each with the largest distance of two records' vectors.

A record's vector is bounded for every record and every parameter of the statistic, so a statistic that somebody else
chose costs what it states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tables.rows import Rows
from . import columns
from .preparation import Preparation, whitening_vectors
from .second_moment import ROOT, as_vector, length_limited

HISTOGRAM, WHITENING, TARGET, GRAM, NORMS, DESCENT = "histogram", "whitening", "target", "gram", "norms", "descent"
FEATURES = "features"
CONSTANT = 0.5  # the first feature
FREE = math.sqrt(1 - CONSTANT**2)  # the largest length of the others
UNDERFLOW = 2.0**-510  # the root of more than a square loses that is subnormal, or taken for zero
LENGTHS = 1.5  # factor of squared lengths, in what is released with a mean


@dataclass(frozen=True)
class ColumnHistograms:
    """The histograms of all numeric columns: one count of each moves, from one bin to another."""

    edges: tuple[np.ndarray, ...]
    purpose: str = HISTOGRAM

    @property
    def longest(self) -> float:
        return math.sqrt(len(self.edges))

    @property
    def diameter(self) -> float:
        return ROOT * self.longest

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        return columns.histogram(rows.numeric, weights, self.edges)


@dataclass(frozen=True)
class WhiteningMoment:
    """The second moment of (sqrt p, v), of length at most sqrt(3 p)."""

    preparation: Preparation
    purpose: str = WHITENING

    @property
    def longest(self) -> float:
        return 3.0 * len(self.preparation.columns)

    @property
    def diameter(self) -> float:
        return ROOT * self.longest

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        return _moment(whitening_vectors(self.preparation.standard(rows)), weights)


@dataclass(frozen=True)
class TargetMean:
    """The mean of the target less the middle of its bounds, so that a null record counts as the middle."""

    low: float
    high: float
    purpose: str = TARGET

    @property
    def middle(self) -> float:
        return self.low + self.longest

    @property
    def longest(self) -> float:
        return (self.high - self.low) / 2

    @property
    def diameter(self) -> float:
        return self.high - self.low

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        offsets = np.clip(rows.target, self.low, self.high) - self.middle
        return np.array([weights @ np.clip(offsets, -self.longest, self.longest)])


@dataclass(frozen=True)
class ClassShares:
    """The weight of each class."""

    classes: int
    purpose: str = TARGET
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        return np.bincount(rows.target.astype(np.int64), weights=weights, minlength=self.classes)


@dataclass(frozen=True, eq=False)
class Design:
    """The features of a linear model: one half, and what a preparation gives within a ball, times a released matrix."""

    preparation: Preparation
    linear: float  # factor of the inputs
    cosine: float  # factor of the random features
    centre: np.ndarray | float = 0.0  # of the features but the first
    matrix: np.ndarray | None = None  # applied last

    def bounded(self, rows: Rows) -> np.ndarray:
        """Return features of length at most one, before centre and matrix."""
        inputs = self.preparation.inputs(rows)
        cosines = self.preparation.cosines(inputs, rows)
        free = length_limited(np.concatenate([inputs * self.linear, cosines * self.cosine], axis=1), FREE)
        return np.concatenate([np.full((rows.size, 1), CONSTANT), free], axis=1)

    def features(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return the features of the model, kept for the next statistic."""
        if cache.get("design") is not self:
            found = self.bounded(rows)
            found[:, 1:] -= self.centre
            found = found if self.matrix is None else found @ self.matrix
            lost = UNDERFLOW * math.sqrt(found.shape[1])  # at most, of a length whose squares underflow
            cache.update(features=found, lengths=np.linalg.norm(found, axis=1) + lost, design=self)
        return cache["features"]


@dataclass(frozen=True)
class Gram:
    """The second moment of features of length at most one."""

    design: Design
    purpose: str = GRAM
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        return _moment(self.design.bounded(rows), weights)


@dataclass(frozen=True)
class FeatureLengths:
    r"""The mean of the features but the first, and of 1.5 times their squared length: what a Gram matrix has to say.

    Two such vectors of lengths a and b <= F, x = a - b >= 0, are at most :math:`(a + b) \sqrt{1 + (1.5 x)^2}` apart,
    where a + b <= 2 F - x. With y = x / 2 F, of at most 1/2, and F^2 = 3/4 that is at most 2 F: :math:`1 + 6.75 y^2 \le
    1 + 2 y + 3 y^2 \le (1 - y)^{-2}`. Opposite features of length F are as far apart.
    """

    design: Design
    purpose: str = FEATURES
    longest: float = FREE * math.sqrt(1 + (LENGTHS * FREE) ** 2)
    diameter: float = 2 * FREE

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        features = self.design.bounded(rows)[:, 1:]
        return np.append(weights @ features, LENGTHS * (weights @ np.sum(features**2, axis=1)))


@dataclass(frozen=True, eq=False)
class Residuals:
    """A linear model of the target, and the gradients of its loss."""

    design: Design
    theta: np.ndarray  # (features,) for squared error, (features, classes) for the cross entropy
    offset: np.ndarray  # added to the outputs
    bounds: tuple[float, float] = (-math.inf, math.inf)  # of the target

    def of(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return what the target is above the prediction: (rows,) or, for classes, (rows, classes)."""
        outputs = self.design.features(rows, cache) @ self.theta + self.offset
        if self.theta.ndim == 1:
            return np.clip(rows.target, *self.bounds) - outputs
        return class_residuals(outputs, rows.target)

    def norms(self, rows: Rows, cache: dict[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
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
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        norms = self.residuals.norms(rows, cache)[1]
        bins = np.searchsorted(self.edges, norms)
        return np.bincount(bins, weights=weights, minlength=len(self.edges) + 1)


@dataclass(frozen=True)
class MeanResidual:
    """The mean size of the residuals, each at most the bound."""

    residuals: Residuals
    bound: float
    purpose: str = NORMS

    @property
    def longest(self) -> float:
        return self.bound

    @property
    def diameter(self) -> float:
        return self.bound

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        return np.array([weights @ np.minimum(np.abs(self.residuals.of(rows, cache)), self.bound)])


@dataclass(frozen=True)
class ClippedDescent:
    """The sum of the records' descent directions, each no longer than the radius."""

    residuals: Residuals
    radius: float
    purpose: str = DESCENT

    @property
    def longest(self) -> float:
        return self.radius

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        residual, norms = self.residuals.norms(rows, cache)
        factors = weights * np.minimum(1.0, self.radius / np.maximum(norms, 1e-300))
        return (self.residuals.design.features(rows, cache).T @ (residual.T * factors).T).ravel()


def class_residuals(outputs: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return one for the class that came, less the probabilities; ``outputs`` are overwritten."""
    outputs -= outputs.max(axis=1, keepdims=True)
    np.exp(outputs, out=outputs)
    outputs /= -outputs.sum(axis=1, keepdims=True)
    outputs[np.arange(len(outputs)), target.astype(np.int64)] += 1.0
    return outputs


def _moment(vectors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted second moment of vectors."""
    return as_vector((vectors * weights[:, None]).T @ vectors)
