"""How far an estimate should be drawn back to a constant, from releases that are made anyway."""

from __future__ import annotations

import math

import numpy as np


class Shrinkage:
    r"""Factors for the coordinates of a mean of iterates, from the descent directions that are released anyway.

    With psi the features, h their second moment and b = E[y psi] for a target without its mean, predicting by c theta
    in place of theta changes the squared error by :math:`\sum_j h_j c_j^2 \theta_j^2 - 2 c_j \theta_j b_j`, and c is
    chosen to make that small. A direction released at some iterate is b less h times that iterate, with noise that is
    independent of all iterates before it: products of b with an earlier mean are right on average.

    *Overfitting.* b is the mean over the records that theta was learnt from. Their noise is in both, and makes
    products too large: by the variance of a record's residual times the largest weight of a record, for each
    coordinate that was learnt. Where little can be explained and features are many, this decides.

    One family of factors is searched: those of a larger ridge, times a number from 0 to 1. Without ``scale`` it is the
    number alone.

    For classes the curvature at the prior is too large where the model is sure, and clipping is public and coarse: they
    have the benefit of the doubt, one deviation of the noise of all products.
    """

    def __init__(self, curvature: np.ndarray, scale: np.ndarray | None = None, doubt: float = 0.0):
        self._curvature, self._scale, self._doubt = curvature, scale, doubt
        self._products, self._squares, self._learned, self._variance = (np.zeros_like(curvature) for _ in range(4))
        self._seen = False

    def see(
        self,
        mean: np.ndarray,
        current: np.ndarray,
        direction: np.ndarray,
        noise_std: float = 0.0,
        learned: np.ndarray | float = 0.0,
    ) -> None:
        """Take in a direction at ``current``, released after the iterates that ``mean`` is of.

        Args:
            learned: the share of the way to the minimum that each coordinate of ``mean`` has come.
        """
        self._products += mean * (direction + self._curvature * current)
        self._squares += self._curvature * mean**2
        self._variance += (noise_std * mean) ** 2
        self._learned += learned
        self._seen = True

    def factors(self, by_heart: float = 0.0) -> np.ndarray:
        """Return a factor from 0 to 1 for each coordinate.

        Args:
            by_heart: variance of a record's residual times the largest weight of a record.
        """
        found, best = np.ones_like(self._curvature), math.inf
        if not self._seen:
            return found
        products = self._products - by_heart * self._learned
        for shape in self._shapes():
            square = max(float(shape**2 @ self._squares), 1e-300)
            product = float(shape @ products) + self._doubt * math.sqrt(float(shape**2 @ self._variance))
            factor = min(max(product / square, 0.0), 1.0)
            error = factor**2 * square - 2 * factor * product
            if error < best:
                found, best = factor * shape, error
        return found

    def _shapes(self) -> list[np.ndarray]:
        shapes = [np.ones_like(self._curvature)]
        if self._scale is not None:
            usual = float(np.median(self._scale))
            shapes += [self._scale / (self._scale + usual * 2.0**power) for power in range(-6, 10)]
        return shapes
