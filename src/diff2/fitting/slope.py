"""How far an estimate should be drawn back to a constant, from releases that are made anyway."""

from __future__ import annotations

import math

import numpy as np


class Slope:
    r"""How far the mean of the iterates should be drawn back to zero, from descent directions that are released anyway.

    With p the predictions of the mean iterate less the mean, and y the target less the mean, the best multiple of p is
    :math:`1 + E[(y - p) p] / E[p^2]`. The descent direction at :math:`\bar\theta` is :math:`E[(y - p) \psi]`, so the
    numerator is its product with :math:`\bar\theta`. The noise of a direction is independent of all iterates before it:
    products with an earlier mean are right on average. Directions are asked at the current iterate; what they would be
    at the mean one follows from the curvature.

    For classes the curvature at the prior is too large where the model is sure, and clipping is public and coarse: they
    have the benefit of the doubt, one deviation of the noise of all products.
    """

    def __init__(self, curvature: np.ndarray, doubt: float = 0.0):
        self._curvature = curvature
        self._doubt, self._variance = doubt, 0.0
        self._products: list[float] = []
        self._squares: list[float] = []

    def see(self, mean: np.ndarray, current: np.ndarray, direction: np.ndarray, noise_std: float = 0.0) -> None:
        """Take in a direction at ``current``, released after the iterates that ``mean`` is of."""
        there = direction + self._curvature * (current - mean)
        self._products.append(float(mean @ there))
        self._squares.append(float(self._curvature @ mean**2))
        self._variance += noise_std**2 * float(mean @ mean)

    @property
    def value(self) -> float:
        """Between 0, where noise is all that iterates show, and 1."""
        if not self._products:
            return 1.0
        product = sum(self._products) + self._doubt * math.sqrt(self._variance)
        return float(np.clip(1 + product / max(sum(self._squares), 1e-300), 0.0, 1.0))
