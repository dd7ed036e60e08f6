"""Linear models of prepared features, and the radius that most of their gradients are within."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tables.rows import Rows
from .statistics import Design

QUANTILE = 0.93  # of the gradients, or residuals, that are not clipped
CLIPPED = 0.08  # of their sum that is: where tails are heavy, fewer of them are, as far as the noise allows
SMALL_NOISE = 0.006  # of a count, at which a radius may be larger
LEAST_KEPT = 0.4  # share of the gradients that a radius keeps whole
LOST = 0.02  # what the squares of what is clipped cost, against those of noise


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Predicts features @ theta + offset: one number, or one score per class."""

    design: Design
    theta: np.ndarray  # (features,) or (features, classes)
    offset: np.ndarray | float

    def outputs(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return the outputs for encoded records."""
        return self.design.features(rows, cache) @ self.theta + self.offset


@dataclass(frozen=True, eq=False)
class CurvedModel(LinearModel):
    """A linear model and a curve: adds what lies between the rises of the two knots next to an output."""

    knots: np.ndarray  # outputs
    rises: np.ndarray  # what is added at each; beyond the last, too

    def outputs(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        straight = LinearModel.outputs(self, rows, cache)
        return straight + np.interp(straight, self.knots, self.rises)


def half_octaves(largest: float, count: int) -> np.ndarray:
    """Return edges, each larger than the one before by a factor of sqrt 2.

    >>> half_octaves(8.0, 3).round(3)
    array([4.   , 5.657, 8.   ])
    """
    return largest * 2.0 ** (-np.arange(count)[::-1] / 2)


def radius_from(counts: np.ndarray, edges: np.ndarray, noise_std: float) -> float:
    """Return a radius that most values are below, and most of their sum, from counts with noise between the edges."""
    mass, sizes = _above_noise(counts, edges, noise_std)
    if mass.sum() <= 0:
        return float(edges[-1])
    most = int(np.searchsorted(np.cumsum(mass) / mass.sum(), QUANTILE))
    beyond = np.maximum(sizes - edges[:, None], 0.0) @ mass
    heavy = int(np.argmax(beyond <= CLIPPED * float(mass @ sizes)))
    radius = float(edges[min(most, len(edges) - 1)])
    return max(radius, min(float(edges[heavy]), radius * SMALL_NOISE / max(noise_std, 1e-300)))


def quiet_radius(counts: np.ndarray, edges: np.ndarray, noise_std: float, noise: float) -> tuple[float, float]:
    r"""Return the radius whose sums say most, at most that of ``radius_from``, and the share of values below it.

    Sums of clipped gradients C follow the model by the share k of the records that are not clipped. Divided by it, they
    are right for residuals of either sign alike, and their noise grows like C / k: for normal residuals it is smallest
    for a C near zero. Where large residuals have more to say, that is lost with what is clipped. So C has the least of
    :math:`\text{noise}\, (C / k)^2 + 0.02\, E[(g - C)_+^2]`.

    Args:
        noise: variance of the noise in all coordinates of a mean, for C = 1.
    """
    most = radius_from(counts, edges, noise_std)
    mass, sizes = _above_noise(counts, edges, noise_std)
    if mass.sum() <= 0:
        return most, 1.0
    kept = np.cumsum(mass)[:-1] / mass.sum()
    lost = np.square(np.maximum(sizes - edges[:, None], 0.0)) @ mass / mass.sum()
    cost = np.where(kept < LEAST_KEPT, np.inf, noise * np.square(edges / np.maximum(kept, LEAST_KEPT)) + LOST * lost)
    best = min(int(np.argmin(cost)), int(np.searchsorted(edges, most)))
    return float(edges[best]), max(float(kept[best]), LEAST_KEPT)


def clipped_size(counts: np.ndarray, edges: np.ndarray, noise_std: float, radius: float) -> float:
    """Return the root mean square of the values, each at most the radius."""
    mass, sizes = _above_noise(counts, edges, noise_std)
    if mass.sum() <= 0:
        return radius
    return float(np.sqrt(mass @ np.minimum(sizes, radius) ** 2 / mass.sum()))


def _above_noise(counts: np.ndarray, edges: np.ndarray, noise_std: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts that noise does not explain, and about the size of the values in each bin."""
    return np.where(counts < 2 * noise_std, 0.0, counts), np.append(edges * 2**-0.25, edges[-1])
