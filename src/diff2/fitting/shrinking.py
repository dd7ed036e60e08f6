"""An estimate from all descent directions, and how far it is drawn back to a constant. It costs nothing."""

from __future__ import annotations

import math

import numpy as np

FURTHER = 0.25  # of the rounds: how many more along the mean direction
FLAT = 1e-6  # curvature below which a loss is a slope
SILENT = 1e-100  # noise below which there is none


class Shrinkage:
    r"""What was learnt from directions released at iterates: each is b less h times its iterate, with noise.

    With psi the features, h their second moment and b = E[y psi] for a target without its mean, predicting by theta
    changes the squared error by :math:`\sum_j h_j \theta_j^2 - 2 \theta_j b_j`.

    *All rounds count.* The mean of the iterates, and from there some steps along the mean of the directions: a linear
    function of the mean of b with the noise of each round, each weighed by its precision. (The mean of the last half
    of the iterates has up to twice the variance: directions that curve forget the first half.)

    *Factors.* That estimate is r times b where b is constant, so its product with b is too large by r times the
    variance of the mean of b, which is known, and is taken off. What is left is right on average.

    *Overfitting.* b is the mean over the records that theta was learnt from. Their noise is in both, and makes
    products too large: by the variance of a record's residual times the largest weight of a record, for each
    coordinate that was learnt. Where little can be explained and features are many, this decides.

    One family of factors is searched: those of a larger ridge, times a number from 0 to 1. Without ``scale`` it is the
    number alone.
    """

    def __init__(self, curvature: np.ndarray, scale: np.ndarray | None = None):
        self._curvature, self._scale = np.maximum(curvature, FLAT), scale
        self._thetas, self._directions, self._aheads = (np.zeros_like(curvature) for _ in range(3))
        self._precision, self._rounds = 0.0, 0

    def see(self, theta: np.ndarray, direction: np.ndarray, noise_std: float, ahead: np.ndarray) -> None:
        """Take in a direction released at ``theta``; ``ahead`` is the share of the way that is still to go there."""
        precision = max(noise_std, SILENT) ** -2
        self._thetas += precision * theta
        self._directions += precision * direction
        self._aheads += precision * ahead
        self._precision += precision
        self._rounds += 1

    def estimate(self, by_heart: float = 0.0) -> np.ndarray:
        """Return the estimate, drawn back.

        Args:
            by_heart: variance of a record's residual times the largest weight of a record.
        """
        theta, direction, ahead = (one / self._precision for one in (self._thetas, self._directions, self._aheads))
        further = np.clip(1 - self._curvature, 0.0, 1.0) ** max(1.0, FURTHER * self._rounds)
        found = theta + (1 - further) / self._curvature * direction
        learned = 1 - further * np.clip(ahead, 0.0, 1.0)
        noise = learned / self._curvature / self._precision
        products = found * (direction + self._curvature * theta) - noise - by_heart * learned
        return found * self._factors(products, self._curvature * found**2)

    def _factors(self, products: np.ndarray, squares: np.ndarray) -> np.ndarray:
        factors, best = np.ones_like(products), math.inf
        for shape in self._shapes():
            square = max(float(shape**2 @ squares), 1e-300)
            product = float(shape @ products)
            factor = min(max(product / square, 0.0), 1.0)
            error = factor**2 * square - 2 * factor * product
            if error < best:
                factors, best = factor * shape, error
        return factors

    def _shapes(self) -> list[np.ndarray]:
        shapes = [np.ones_like(self._curvature)]
        if self._scale is not None:
            usual = float(np.median(self._scale))
            shapes += [self._scale / (self._scale + usual * 2.0**power) for power in range(-6, 10)]
        return shapes
