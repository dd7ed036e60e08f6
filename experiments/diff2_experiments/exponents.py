r"""An exponent from measurements: a weighted straight line through logarithms, with an interval over seeds.

A point is one :math:`s` (say :math:`N \varepsilon`) and the values of several seeds there. The line goes through
:math:`(\log s, \log \text{mean value})`; a point weighs one over the variance of that logarithm, which is
:math:`\operatorname{var} / (\text{seeds} \cdot \text{mean}^2)`, with the mean of these variances over all points added,
for a handful of seeds may agree by chance. The interval comes from drawing the seeds of each point again, with
replacement: it says how far other noise would move the exponent, not whether the points lie on a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diff2._validate import at_least
from diff2.errors import InvalidArgument

DRAWS = 2000
LEVEL = 0.95


class Point(NamedTuple):
    """The values that the seeds gave at one place."""

    at: float
    values: tuple[float, ...]


class Fit(NamedTuple):
    """value = factor * at ** exponent, with the interval of the exponent."""

    exponent: float
    low: float
    high: float
    factor: float

    def __call__(self, at: float) -> float:
        return self.factor * at**self.exponent


def fit_exponent(points: Sequence[Point], *, seed: int = 0) -> Fit:
    """Return the exponent of the values against the places, with its interval of 95 %.

    Args:
        seed: of the draws; they concern results only.

    >>> fit = fit_exponent([Point(at, (0.9 / at**2, 1.1 / at**2)) for at in (1, 10, 100)])
    >>> round(fit.exponent, 6), round(fit.factor, 6), fit.low <= -2 <= fit.high
    (-2.0, 1.0, True)
    """
    _check(points)
    places = np.log([point.at for point in points])
    values = [np.asarray(point.values) for point in points]
    weights = _weights(values)
    exponent, constant = _line(places, np.log([part.mean() for part in values]), weights)
    generator = np.random.default_rng(seed)
    drawn = np.stack([_drawn_means(part, generator) for part in values])  # (points, DRAWS)
    slopes = _line(places, np.log(drawn), weights)[0]
    low, high = np.quantile(slopes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Fit(float(exponent), float(low), float(high), math.exp(float(constant)))


def _check(points: Sequence[Point]) -> None:
    at_least("number of places", len({point.at for point in points}), 2)
    for point in points:
        if not point.at > 0 or not point.values or not all(0 < value < math.inf for value in point.values):
            raise InvalidArgument(f"expected places and values above zero and finite, got {point}")


def _weights(values: Sequence[np.ndarray]) -> np.ndarray:
    variances = np.array([part.var(ddof=1) / len(part) / part.mean() ** 2 if len(part) > 1 else 0.0 for part in values])
    if variances.max() <= 1e-20:  # seeds that agree but for rounding
        return np.ones(len(values))
    return 1 / (variances + variances.mean())


def _line(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return slope and constant of the weighted line; ``y`` may have a column for each line wanted."""
    share = weights / weights.sum()
    centre, height = share @ x, share @ y
    slope = (share * (x - centre)) @ (y - height) / (share @ (x - centre) ** 2)
    return slope, height - slope * centre


def _drawn_means(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    means: np.ndarray = generator.choice(values, size=(DRAWS, len(values))).mean(1)
    return means
